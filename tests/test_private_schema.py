"""Scales of a table that a part of epsilon buys: the mechanism, its budget, its place in a run."""

import numpy as np
import pandas as pd
import pytest

from mpmtl import InputError
from mpmtl.data import Table
from mpmtl.experiments.config import build
from mpmtl.experiments.runner import run_replicate
from mpmtl.experiments.sweep import jobs
from mpmtl.privacy.quantiles import (
    CENTERS,
    SCALES,
    enough,
    noisy_scale,
    quantile_probabilities,
)

EPSILON = 0.7


@pytest.mark.parametrize("q", [0.5, 0.1])
def test_a_replaced_task_changes_no_probability_by_more_than_epsilon(q, rng):
    """All pairs of neighbours from a set that holds ends, ties and what is no number."""
    grid = np.array([-2.0, -1.0, 0.0, 0.5, 3.0])
    values = rng.choice([-1e9, -2.0, -1.5, 0.0, 0.25, 3.0, 1e9, np.nan, np.inf], 9)
    p = quantile_probabilities(values, grid, q, EPSILON)
    worst = 0.0
    for i in range(len(values)):
        for other in (-1e9, -1.0, 0.1, 0.25, 2.0, 1e9, np.nan, -np.inf):
            changed = values.copy()
            changed[i] = other
            ratio = np.log(quantile_probabilities(changed, grid, q, EPSILON) / p)
            worst = max(worst, np.abs(ratio).max())
    assert 0.3 * EPSILON < worst <= EPSILON + 1e-12


def test_the_likeliest_point_is_the_one_nearest_to_the_quantile(rng):
    values = rng.normal(5, 2, 501)
    for grid, q in [(np.linspace(-20, 20, 81), 0.5), (np.linspace(0, 10, 11), 0.9)]:
        p = quantile_probabilities(values, grid, q, 2.0)
        assert grid[np.argmax(p)] == grid[np.abs(grid - np.quantile(values, q)).argmin()]


@pytest.mark.parametrize(("level", "sd"), [(1980.0, 6.0), (-3e6, 1e6), (0.0, 0.01), (55.0, 10.0)])
def test_enough_tasks_find_center_and_scale(level, sd, rng):
    m = 300
    tasks = [rng.normal(level, sd, 12) for _ in range(m)]
    for seed in range(20):
        center, scale = noisy_scale(tasks, enough(m), np.random.default_rng(seed))
        near = max(abs(level) / 128, 2 * sd)  # tasks' means differ by sd/sqrt(12), grids are coarse
        assert abs(center - level) <= near
        assert sd / 2 <= scale <= 2 * np.hypot(sd, near)


def test_gaps_and_what_is_not_finite_are_left_out():
    tasks = [np.array([np.nan, 1.0, np.inf]), np.zeros(0), np.array([np.nan])] * 50
    center, scale = noisy_scale(tasks, 1e4, np.random.default_rng(0))
    assert center in CENTERS
    assert scale in SCALES


def owners(tmp_path, m=60, n=8, seed=0):
    """A CSV whose column x lies about 1980 and whose target about 300."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1980, 6, m * n)
    slope = np.repeat(rng.normal(1, 0.2, m), n)
    frame = pd.DataFrame(
        {
            "owner": np.repeat([f"o{i:03d}" for i in range(m)], n),
            "x": x,
            "sex": rng.choice(["f", "m"], m * n),
            "y": 300 + 10 * slope * (x - 1980) / 6 + rng.normal(0, 5, m * n),
        }
    )
    path = tmp_path / f"owners-{m}-{seed}.csv"
    frame.to_csv(path, index=False)
    return str(path)


SETTINGS = {"task": "owner", "target": "y", "kind": "regression", "indicators": []}
SETTINGS |= {"levels": {"sex": ["f", "m"]}}


def bought(path, schema_epsilon=8.0, **settings):
    return Table(path=path, schema_epsilon=schema_epsilon, **(SETTINGS | settings))


def test_a_bought_schema_has_no_caveat_and_scales_by_the_noisy_median(tmp_path):
    table = bought(owners(tmp_path))
    assert table.caveats == ()
    assert any("bought with schema_epsilon = 8: x, y" in note for note in table.notes)
    train, _ = table.draw(None, 0, 0)
    column = train.recipes[0]["encoder"]["columns"][0]
    assert column["center"] in CENTERS
    assert column["scale"] in SCALES
    raw = Table(path=table.path, ranges={"x": [-1, 1]}, strict=False, **SETTINGS)  # same split
    assert (train.X[0][:, 0] != raw.draw(None, 0, 0)[0].X[0][:, 0]).all()
    values = pd.read_csv(table.path).groupby("owner").x.apply(np.array).iloc[0]
    back = column["center"] + column["scale"] * train.X[0][:, 0]
    assert np.isclose(back[:, None], values).any(axis=1).all()
    assert train.units[1] in SCALES


def test_other_data_and_replicates_have_other_noise(tmp_path):
    """With so little budget every draw is another; the same data and settings repeat theirs."""

    def column(path, replicate=0, epsilon=0.01):
        train, _ = bought(path, epsilon, strict=False).draw(None, 0, replicate)
        return train.recipes[0]["encoder"]["columns"][0]["center"]

    one, other = owners(tmp_path), owners(tmp_path, seed=1)
    assert column(one) == column(one)
    assert len({column(one), column(one, 1), column(other), column(one, epsilon=0.011)}) == 4


def test_what_is_refused(tmp_path):
    path = owners(tmp_path)
    with pytest.raises(InputError, match=r"schema_epsilon = 0\.2: to find .* 60 tasks takes at"):
        _ = bought(path, 0.2).notes
    declared = {"ranges": {"x": [1900, 2050]}, "target_range": [0, 600]}
    with pytest.raises(InputError, match="everything is declared"):
        _ = bought(path, **declared).notes
    for value in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="must be finite and above 0"):
            bought(path, value)


def run(path, tmp_path, method, epsilon, schema_epsilon):
    words = [
        "dataset=table",
        f"dataset.path={path}",
        "dataset.task=owner",
        "dataset.target=y",
        "dataset.kind=regression",
        "dataset.indicators=[]",
        "dataset.levels={sex:[f,m]}",
        f"dataset.schema_epsilon={schema_epsilon}",
        f"method={method}",
        f"epsilon={epsilon}",
        f"results_dir={tmp_path}",
        "n_replicates=1",
    ]
    (job,) = jobs("config", build, words)
    return job


def test_the_schema_is_a_part_of_epsilon(tmp_path):
    """The statement covers both; the method's own releases get what is left."""
    path = owners(tmp_path)
    job = run(path, tmp_path, "fl_local", 10, 8)
    assert job.budget(60).epsilon == pytest.approx(2)
    record = run_replicate(job, 0)
    assert record["replicates"][0]["epsilon"] == 10
    block = record["privacy"]
    assert block["proved"]["epsilon"] == pytest.approx(10)
    assert "8 for the schema" in block["proved"]["basis"]
    assert "pooled-schema" not in block["caveats"]
    alone = run_replicate(run(path, tmp_path, "stl", 10, 8), 0)["privacy"]
    assert (alone["proved"]["epsilon"], alone["proved"]["delta"]) == (8, 0)
    assert set(alone["caveats"]) >= {"float-noise", "reproducible-rng"}
    with pytest.raises(InputError, match="must be less than epsilon = 5"):
        run(path, tmp_path, "fl_local", 5, 8)


def test_the_exact_cost_holds_the_schema_too(tmp_path):
    job = run(owners(tmp_path), tmp_path, "fl_local", 10, 8)
    train, _ = job.draw(0)
    from mpmtl.datafits import datafit_for

    budget = job.budget(train.n_tasks)
    alone = job.method.statement(None, budget, datafit_for(train))
    both = alone.beside(8, "the schema")
    assert both.cost.delta(10) <= budget.delta
    assert both.cost.delta(2) > alone.cost.delta(2)

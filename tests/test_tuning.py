"""Cross-validation and its race over folds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import make_run, separate_tasks
from scipy.stats import ttest_rel

from mpmtl.data import MultiTaskData
from mpmtl.errors import InputError
from mpmtl.experiments.runner import run_replicate
from mpmtl.experiments.tuning import (
    DENSITIES,
    SURE,
    WIDEN_TO,
    by_density,
    cross_validate,
    prepare,
    still_in_race,
)
from mpmtl.methods import Candidate, MeanRegularised, Method, Proximal, SharedRepresentation
from mpmtl.solvers.single_task import ridge_path
from mpmtl.streams import stream


@pytest.fixture(scope="module")
def setting():
    run = make_run("method=lr", "tuning=standard", "dataset.m=40", "dataset.n=20", "epsilon=1")
    train, _ = run.dataset.draw("", 0, 0)
    problem = prepare(train, run.tuning, run.method, 0, 0)
    candidates = run.method.candidates(problem.scales)
    return run, train, problem, candidates


def noise(fold):
    return stream(0, "noise", 0, fold)


class Counting:
    """A method that counts the candidates it fits."""

    def __init__(self, method):
        self.method, self.count = method, 0

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        self.count += len(candidates)
        return self.method.fit(datafit, W0, candidates, budget, rng, log)


def test_a_race_costs_less_and_agrees_with_the_grid_where_it_finishes(setting):
    run, train, problem, candidates = setting
    budget = run.budget(train.n_tasks)
    grid, race = Counting(run.method), Counting(run.method)
    full = cross_validate(grid, problem, candidates, budget, noise)
    raced = cross_validate(race, problem, candidates, budget, noise, "race")
    assert grid.count == 5 * len(candidates)
    assert race.count <= 0.4 * grid.count
    finished = np.isfinite(raced)
    assert 1 <= finished.sum() < len(candidates)
    if finished.sum() > 1:
        np.testing.assert_allclose(raced[finished], full[finished], rtol=1e-9)
    # what it chooses is among the grid's best
    assert full[raced.argmin()] <= 1.02 * full.min()


def test_a_race_keeps_all_but_the_surely_worse(rng):
    """Against Student's test of scipy, task by task; what is alike, or not defined, stays."""
    base = rng.random((2, 1, 30))
    gaps = np.array([0.0, 0.0, 1e-3, 0.02, 0.05, 0.2, 1.0])[:, None]
    folds = list(base + gaps + 0.1 * rng.standard_normal((2, 7, 30)))
    folds[0][:, 4] = np.nan  # one class in a fold
    folds[0][:, 5] = folds[1][:, 5] = np.nan  # and in all
    folds[1][6, 0] = np.nan  # one that diverges
    stays = still_in_race(folds)
    errors = np.nanmean(np.delete(np.stack(folds), 5, axis=2), axis=0)
    best = np.argmin(
        [np.concatenate([fold[c][~np.isnan(fold[c])] for fold in folds]).mean() for c in range(6)]
    )
    for c in range(6):
        worse = c != best and ttest_rel(errors[c], errors[best], alternative="greater").pvalue
        assert stays[c] == (c == best or worse >= 1 - SURE)
    assert not stays[5:].any()
    assert stays[best]
    alike = np.tile(rng.random((1, 8)), (3, 1))
    assert still_in_race([alike]).all()
    assert still_in_race([np.full((3, 8), np.nan)]).all()
    assert list(still_in_race([np.array([[1.0], [2.0], [np.inf]])])) == [True, True, False]


def test_the_winner_of_a_race_is_seldom_the_wrong_one():
    """The best of 20 candidates, ahead by 0.3 of a task's spread, in 100 races over 4 folds.

    A fold is wrong for a rival with a probability below 1e-5 (a paired t of -3.1 at a mean of 7).
    """
    rng, lost = np.random.default_rng(0), 0
    for _ in range(100):
        alive = np.arange(20)
        for _ in range(4):
            fold = rng.standard_normal((1, 100)) + 0.3 * rng.standard_normal((len(alive), 100))
            fold[alive > 0] += 0.3
            alive = alive[still_in_race([fold])]
        lost += 0 not in alive
    assert lost == 0


def test_a_candidate_that_diverges_is_never_chosen(setting):
    _, _, problem, candidates = setting

    class Diverging:
        def fit(self, datafit, W0, candidates, budget, rng, log=None):
            W = np.repeat(W0[None], len(candidates), axis=0)
            W[1] = np.nan
            W[2] = np.inf
            yield np.arange(len(candidates)), W

    with np.errstate(invalid="ignore"):
        errors = cross_validate(Diverging(), problem, candidates[:4], None, noise)
    assert np.isinf(errors[1:3]).all()
    assert np.isfinite(errors[[0, 3]]).all()


def test_the_error_is_the_mean_over_folds_and_tasks(setting):
    """Against a plain loop over folds, tasks and samples for the STL models."""
    _, train, problem, _ = setting

    class Start:
        def fit(self, datafit, W0, candidates, budget, rng, log=None):
            yield np.array([0]), W0[None]

    got = cross_validate(Start(), problem, [Candidate()], None, noise)[0]
    want = []
    for part, W in zip(problem.parts, problem.fold_starts, strict=True):
        for i in range(train.n_tasks):
            error = ((part.X[i] @ W[i] - part.y[i]) ** 2).mean()
            want.append(error / train.y[i].var())
    assert got == pytest.approx(np.mean(want), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": "random"}, "search = random: use grid or race"),
        ({"density": "thick"}, "density = thick: use fixed or smoke or"),
        ({"ridge": ()}, "ridge is empty"),
        ({"ridge": (1.0, -1.0)}, "ridge = -1.0"),
        ({"folds": 1}, "folds = 1"),
    ],
)
def test_impossible_tunings_are_refused(setting, change, message):
    with pytest.raises(InputError, match=message):
        replace(setting[0].tuning, **change)


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (Proximal("lr", "trace", private=True), {"lam_unit": "relative"}, "use max or absolute"),
        (Proximal("lr", "trace", private=True), {"K_unit": "mean"}, "use median or absolute"),
        (Proximal("lr", "trace", private=True), {"grid": {"Q": 0}}, "Q = 0 must be above 0 or"),
        (Proximal("lr", "trace", private=True), {"grid": {"K": []}}, "grid.K is empty"),
        (Proximal("lr", "trace", private=True), {"grid": {"gamma": 1}}, "lr has no such setting"),
        (Proximal("mtl_lr", "trace", private=False), {"grid": {"K": 1}}, "no such setting; it has"),
        (SharedRepresentation("fedrep"), {"grid": {"rank": (2, 0)}}, "grid.rank = 0"),
        (MeanRegularised("mr_mtl"), {"grid": {"gamma": -1.0}}, "grid.gamma = -1.0"),
        (MeanRegularised("mr_mtl"), {"grid": {"lam": "much"}}, "grid.lam = much must be finite"),
    ],
)
def test_impossible_grids_are_refused(method, change, message):
    with pytest.raises(InputError, match=message):
        replace(method, **change)


def test_a_density_without_values_takes_those_of_the_next_thinner_one():
    values = {"fixed": 1, "laptop": [1, 2], "paper": [1, 2, 3]}
    got = {density: by_density(values, density) for density in DENSITIES}
    assert got == {
        **dict.fromkeys(("fixed", "smoke", "coarse"), 1),
        "laptop": [1, 2],
        "standard": [1, 2],
        "paper": [1, 2, 3],
    }
    for wrong, message in (({"thin": 1}, "thin"), ({"paper": 1}, "no value for fixed")):
        with pytest.raises(InputError, match=message):
            by_density(wrong, "paper")


def test_recorded_settings_hold_the_values_tried():
    """Whether they come from the density, from an experiment's grids or from the command line."""
    run = make_run("method=lr", "tuning=laptop")
    assert run.settings["method"]["grid"]["n_rounds"] == [1, 5, 20, 50]
    assert run.grid == "laptop"
    words = ["grids.lr.n_rounds=[2,3]", "grids.gs.lam=9", "grids.lr.alpha=1", "method.grid.alpha=2"]
    run = make_run("method=lr", "tuning=laptop", *words)
    tried = run.settings["method"]["grid"]
    assert (tried["n_rounds"], tried["alpha"], tried["lam"][0]) == ([2, 3], 2, 0.005)
    assert run.method.grid["n_rounds"] == (2, 3)
    assert "grids" not in run.settings
    assert run.grid == "laptop but for alpha, n_rounds"
    assert make_run("method=stl", "tuning.ridge=1").grid == "smoke but for ridge"
    run = make_run("method=mtl", "grids.mtrl.n_rounds=3", "method.methods.aggr.grid.lam=[1]")
    assert run.method.methods["mtrl"].grid["n_rounds"] == (3,)
    assert run.settings["method"]["methods"]["mtrl"]["grid"]["n_rounds"] == 3
    assert run.grid == "smoke but for lam, n_rounds"


def test_a_method_that_lacks_a_part_is_refused_once():
    with pytest.raises(
        InputError, match="Half lacks name, view, fit, gates or statement: mpmtl.methods"
    ):

        class Half(Method):
            private = True

            def candidates(self, scales):
                return []

    with pytest.raises(InputError, match="Gridless lacks grid"):

        class Gridless(Method):
            name = "gridless"
            private = view = None
            settings = {"lam": 1}  # noqa: RUF012
            candidates = fit = statement = print


# Separate tasks: the grid goes on until the best penalty is inside


@dataclass(frozen=True)
class Drawn:
    """Training and test samples as they are given."""

    train: MultiTaskData
    test: MultiTaskData
    name: str = "drawn"

    def draw(self, data_dir, seed, replicate):
        return self.train, self.test


def tasks_of(slope, noise, kind="regression", m=60, d=6):
    return Drawn(*separate_tasks(0, slope, noise, m=m, d=d, n_test=40, kind=kind))


def plain_errors(problem, lams):
    """Squared errors on all folds of ridge models with free intercepts, by a plain loop."""
    total = np.zeros(len(lams))
    for k, part in enumerate(problem.parts):
        W = ridge_path(problem.training_part(k), lams)
        for i, (X, y) in enumerate(zip(part.X, part.y, strict=True)):
            total += ((W[:, i] @ X.T - y) ** 2).sum(axis=1)
    return total


@pytest.mark.parametrize(
    ("slope", "noise", "ridge"),
    [
        (1.0, 0.3, [10.0, 100.0, 1000.0]),  # the best is far below the grid
        (1.0, 3.0, [1e-6, 1e-5]),  # far above
        (0.15, 1.0, [1e-5, 1e-4]),  # farther, above L
        (1.0, 1.0, [1e-3, 1e-2, 1e-1]),  # inside
        (0.0, 1.0, [1e-6, 1e-5]),  # a task's own mean
        (0.0, 1.0, [1e-3, 1e-2, 1e-1]),
        (1.0, 0.0, [1e-1, 1.0]),  # none
        (1.0, 0.0, [0.0, 1e-1, 1.0]),
    ],
)
def test_the_best_penalty_is_inside_the_values_tried_or_at_a_limit(slope, noise, ridge):
    data = tasks_of(slope, noise)
    run = make_run("method=stl", f"tuning.ridge={ridge}", "tuning.folds=4")
    problem = prepare(data.train, run.tuning, run.method, 0, 0)
    L = problem.scales.lipschitz
    tried = np.array(sorted({*(L * np.array(ridge)), *problem.scales.wider}))
    errors = plain_errors(problem, tried)
    best = int(np.argmin(errors))
    np.testing.assert_allclose(
        problem.start, ridge_path(problem.datafit, tried[[best]])[0], rtol=1e-9
    )
    limits = L * min(ridge) * WIDEN_TO[0], L * max(ridge) * WIDEN_TO[1]
    assert tried[-1] == np.inf
    assert best > 0 or tried[0] == 0 or tried[0] < 100 * limits[0]
    assert best < len(tried) - 2 or tried[-2] > limits[1] / 100 or best == len(tried) - 1
    assert len(tried) < 40
    if noise > 0:  # nothing in a dense grid from end to end is much better
        dense = plain_errors(problem, L * np.append(np.logspace(-8, 6, 57), np.inf))
        assert errors[best] <= 1.03 * dense.min()
    if slope == 0:
        np.testing.assert_array_equal(problem.start[:, :-1], 0)
        np.testing.assert_allclose(problem.start[:, -1], [y.mean() for y in data.train.y])


@pytest.mark.parametrize("ridge", [[1e-3, 1e-2], [10.0, 100.0], [1e-2, 1e-1, 1.0], [0.1]])
@pytest.mark.parametrize(
    ("slope", "noise", "kind"),
    [(1, 0.3, "regression"), (0.2, 1, "regression"), (0, 1, "regression"), (1, 1, "binary")],
)
def test_the_method_stl_has_the_numbers_of_the_stl_in_every_card(slope, noise, kind, ridge):
    """The same penalties are tried, so the same one is chosen, and it is at no edge."""
    run = make_run("method=stl", f"tuning.ridge={ridge}", "tuning.folds=4")
    record = run_replicate(replace(run, dataset=tasks_of(slope, noise, kind, m=25, d=4)), 0)
    values = {row["metric"]: row["value"] for row in record["replicates"]}
    main = next(iter(values))
    assert values[main] == pytest.approx(values[f"{main}_stl"], rel=1e-9)
    assert record["edges"] == []


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("penalty", ["l2", "best"])
def test_errors_that_are_known_are_those_of_fits(kind, penalty, rng):
    """The ridge candidates of separate tasks have the errors that chose the start of every fit."""
    X = [rng.standard_normal((30, 4)) for _ in range(6)]
    y = [rows @ [1.0, -1, 0, 0] + rng.standard_normal(30) for rows in X]
    if kind == "binary":
        y = [np.where(v > 0, 1.0, -1.0) for v in y]
    train = MultiTaskData.checked(X, y, kind)
    grid = [f"method.penalty={penalty}", "tuning.ridge=[0.01,0.1,1]"]
    run = make_run("method=stl", "tuning=laptop", *grid)
    problem = prepare(train, run.tuning, run.method, 0, 0)
    candidates = run.method.candidates(problem.scales)
    assert all(c.separate_ridge in problem.ridge_errors for c in candidates if c.penalty == "l2")
    counting = Counting(run.method)
    known = cross_validate(counting, problem, candidates, None, noise)
    assert counting.count == 5 * sum(c.penalty == "l1" for c in candidates)
    fitted = cross_validate(run.method, replace(problem, ridge_errors={}), candidates, None, noise)
    np.testing.assert_allclose(known, fitted, rtol=1e-8)


@dataclass(frozen=True)
class WithRidge(Candidate):
    """A candidate whose method calls a setting of its own `ridge`."""

    ridge: float


def test_a_setting_called_ridge_is_not_the_penalty_of_separate_tasks(setting):
    """Whatever its value: its method is fitted on every fold."""
    _, _, problem, _ = setting
    penalty = next(iter(problem.ridge_errors))

    class Zero:
        def fit(self, datafit, W0, candidates, budget, rng, log=None):
            yield np.arange(len(candidates)), np.zeros((len(candidates), *datafit.shape))

    counting = Counting(Zero())
    errors = cross_validate(counting, problem, [WithRidge(penalty)], None, noise)
    assert counting.count == len(problem.parts)
    assert errors[0] != pytest.approx(
        np.mean([e.mean() for e in problem.ridge_errors[penalty]]), rel=1e-3
    )

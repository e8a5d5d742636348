"""The table of methods side by side."""

import numpy as np
import pandas as pd
import pytest
from conftest import script

from mpmtl.paper.comparison import compare, gap_recovered
from mpmtl.paper.figures.proved_tradeoff import draw


def rows(method, epsilon, values, stl, metric="nmse"):
    return [
        {
            "dataset": "d",
            "method": method,
            "privacy": "gaussian",
            "status": "proved",
            "epsilon": epsilon,
            "replicate": r,
            "metric": metric,
            "value": value,
            "stl": separate,
        }
        for r, (value, separate) in enumerate(zip(values, stl, strict=True))
    ]


@pytest.mark.parametrize(("metric", "sign"), [("nmse", 1), ("aauc", -1)])
def test_gaps_and_paired_tests_in_either_direction(rng, metric, sign):
    stl = 0.5 + sign * (0.4 + 0.01 * rng.standard_normal(20))
    best, fl = stl - sign * 0.4, stl - sign * 0.3
    worse = fl + sign * (0.1 + 0.001 * rng.standard_normal(20))
    table = pd.DataFrame(
        [
            *rows("mtl", np.nan, best, stl, metric),
            *rows("poor", np.nan, stl, stl, metric),
            *rows("fl", 1.0, fl, stl, metric),
            *rows("other", 1.0, worse[:10], stl[:10], metric),
        ]
    )
    result = compare(table).set_index("method")
    assert (result.best == "mtl").all()
    assert result.R["fl"] == pytest.approx(0.75)
    assert result.R["other"] == pytest.approx(0.5, abs=0.01)
    assert result.R_low["other"] <= result.R["other"] <= result.R_high["other"]
    assert result.difference["other"] == pytest.approx(sign * 0.1, abs=0.002)
    assert result.p["other"] < 1e-6
    assert np.isnan(result.p["fl"])
    assert result.n["other"] == 10


def test_without_a_method_free_of_noise_there_is_no_gap():
    stl = [0.3, 0.3]
    separate = rows("stl_local", np.nan, [0.31, 0.32], stl)  # needs no noise, and is no better
    table = pd.DataFrame([*rows("fl", 1.0, [0.1, 0.2], stl), *separate])
    assert compare(table).R.isna().all()
    assert gap_recovered([1.0], [3.0], [0.0]) == pytest.approx(2 / 3)


def test_the_script_says_in_one_line_that_there_is_nothing(tmp_path):
    done = script("plot_proved_tradeoff.py", "--results", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no finished run below")
    assert done.stderr.count("\n") == 1


def test_the_figure_is_drawn_with_its_table(tmp_path):
    stl = [0.9, 0.8]
    table = pd.DataFrame(
        [
            *rows("fl", 1.0, [0.5, 0.6], stl),
            *rows("fl", 3.0, [0.4, 0.5], stl),
            *rows("mtl", np.nan, [0.3, 0.4], stl),
        ]
    )
    draw(compare(table), tmp_path / "figure")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    drawn = pd.read_csv(tmp_path / "figure.csv")
    assert list(drawn.R.round(2)) == [0.6, 0.8, 1.0]

"""Claims: verdicts follow from intervals over replicates; what was not run is not decided."""

import re

import numpy as np
import pandas as pd
import pytest
from conftest import run_all, script
from scipy.stats import t as student

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import runs
from mpmtl.paper.checks import Runs, below
from mpmtl.paper.claims import CLAIMS, Claim, as_markdown, check_all
from mpmtl.paper.tried import TRIED, jobs_of
from mpmtl.paper.verdicts import FAILS, HOLDS, OPEN, Comparison, judge, replicates_needed


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """lr at two budgets, and two methods without noise, 4 replicates each."""
    return run_all(
        tmp_path_factory.mktemp("results"),
        4,
        ("method=lr", "privacy=wishart", "epsilon=1"),
        ("method=lr", "privacy=wishart", "epsilon=10"),
        ("method=mtl_lr",),
        ("method=stl",),
    )


def test_an_interval_is_students():
    mean, low, high = Comparison("x", [1.0, 2.0, 3.0, 4.0]).interval(0.95)
    half = 3.1824463 * np.std([1, 2, 3, 4], ddof=1) / 2  # t quantile with 3 degrees of freedom
    assert (mean, low, high) == pytest.approx((2.5, 2.5 - half, 2.5 + half), rel=1e-7)


def test_verdicts():
    rng = np.random.default_rng(0)
    low, high, zero = (Comparison("x", m + 0.1 * rng.standard_normal(20)) for m in (-1, 1, 0))
    one = Comparison("x", [-5.0])
    for comparisons, verdict in (
        ([low], HOLDS),
        ([high], FAILS),
        ([zero], OPEN),
        ([low, zero], OPEN),
        ([low, high, zero], FAILS),
        ([one], OPEN),  # a single replicate decides nothing
        ([Comparison("x", np.zeros(5))], OPEN),  # equal is not below
    ):
        assert judge(comparisons)[0] == verdict


def test_true_means_of_zero_are_seldom_decided():
    """Eight comparisons without a difference: a verdict in at most 5 % of cases.

    With 1000 cases, 80 or more verdicts have a probability below 1e-4 if the level is kept.
    """
    rng = np.random.default_rng(1)
    decided = sum(
        judge([Comparison("x", rng.standard_normal(6)) for _ in range(8)])[0] != OPEN
        for _ in range(1000)
    )
    assert decided < 80


@pytest.mark.parametrize(
    ("mean", "sd", "level", "power"),
    [
        (0.5, 1.0, 0.95, 0.8),
        (-0.05, 1.0, 0.9975, 0.5),
        (3.0, 1.0, 0.95, 0.9),
        (0.001, 1.0, 0.95, 0.8),
    ],
)
def test_replicates_needed_are_the_fewest_of_their_formula(mean, sd, level, power):
    n = replicates_needed(mean, sd, level, power)
    ahead = [
        np.sqrt(k) * abs(mean)
        - (student.ppf((1 + level) / 2, k - 1) + student.ppf(power, k - 1)) * sd
        for k in (n - 1, n)
    ]
    assert n == 2 or ahead[0] < 0
    assert ahead[1] >= 0


def test_replicates_needed_decide_as_often_as_they_say():
    """The known number of the textbook, 34 for half a standard deviation; 2000 draws of it decide
    in 80 +- 4 % (4.5 standard errors, a probability below 1e-5; the formula is good to 1 %)."""
    n = replicates_needed(-0.5, 1.0, 0.95)
    assert n == 34
    rng = np.random.default_rng(0)
    decided = sum(
        judge([Comparison("x", rng.standard_normal(n) - 0.5)]).verdict == HOLDS for _ in range(2000)
    )
    assert abs(decided / 2000 - 0.8) < 0.04


def test_an_open_statement_says_what_would_decide_it():
    """One mean above zero is enough against it; for it all must be below."""
    spread = np.tile([-1.0, 1.0], 10)
    near, far = (Comparison(str(m), m + spread) for m in (0.2, 0.1))
    below, under = (Comparison(str(m), m + spread, "tasks", 2) for m in (-0.2, -0.1))
    level = 1 - 0.05 / 3

    def words(comparison):
        n = comparison.needed(level)
        return (
            f"{-(-n // 10) * 10:,} {comparison.counted}"
            if n < 1000
            else f"{-(-n // 100) * 100:,} {comparison.counted}"
        )

    assert judge([near, far, under]).needed == words(near)
    assert judge([below, below, under]).needed == words(under)
    assert under.needed(level) == 2 * replicates_needed(-0.1, spread.std(ddof=1), level)
    assert judge([Comparison("x", [-5.0])]).needed.startswith("no number")
    assert judge([Comparison("x", spread - 9)]).needed == ""


def test_methods_are_compared_on_the_same_replicates(results):
    measured = Runs(runs(results), results)
    first, second = below(measured, "low_rank", "lr", "mtl_lr")
    table = {}
    for name in ("lr/wishart/eps-1", "lr/wishart/eps-10", "mtl_lr/none/eps-inf"):
        rows = pd.read_csv(results / "low_rank" / name / "replicates.csv")
        table[name] = rows[rows.metric == "nmse"].set_index("replicate").value
    free = table["mtl_lr/none/eps-inf"]
    np.testing.assert_allclose(first.values, table["lr/wishart/eps-1"] - free, rtol=1e-12)
    np.testing.assert_allclose(second.values, table["lr/wishart/eps-10"] - free, rtol=1e-12)
    (again,) = below(measured, "low_rank", "lr", "mtl_lr", [10], factor=2)
    np.testing.assert_allclose(again.values, table["lr/wishart/eps-10"] - 2 * free, rtol=1e-12)


def test_what_was_not_run_is_undecided_with_the_reason(results):
    table = check_all(results).set_index("id")
    assert list(table.index) == [claim.name for claim in CLAIMS]
    assert len(table) >= 20
    for name in ("between-school", "theorem-1", "more-tasks", "leakage", "dp-aggr-stl"):
        assert table.verdict[name] == OPEN
        assert table.measured[name].startswith("not measured: ")


def test_other_settings_are_tried_with_the_same_check(results):
    words = ("method=lr", "epsilon=1", "method.grid.lam=[0.1]", "tag=tried/example/shorter")
    run_all(results, 3, words)
    claim = Claim(
        "example", "A|B", "Fig. 0", lambda runs: below(runs, "low_rank", "lr", "stl", [1])
    )
    (row,) = check_all(results, [claim]).itertuples()
    assert row.settings == "smoke, 4 replicates"
    assert row.tried.startswith("shorter\t")
    (tried,) = Runs(runs(results), results).tried("example")
    claim.check(tried[1])
    assert tried[1].settings == "smoke; smoke but for lam, 3 to 4 replicates"  # stl is its own
    text = as_markdown(check_all(results, [claim]))
    assert "| A\\|B | Fig. 0 |" in text
    table = text.partition("## What else was tried\n\n")[2].splitlines()
    assert table[0] == "| statement | with | verdict | measured |"
    assert table[2].startswith("| A\\|B | shorter | ")
    assert len({re.sub(r"\\\|", "", line).count("|") for line in table}) == 1


def test_what_other_settings_leave_out_is_of_the_claims_own_runs(results):
    """But for data that are drawn with other settings."""
    for label, word in (("steps", "method.grid.lam=[0.1]"), ("data", "dataset.noise=2")):
        run_all(results, 4, ("method=lr", "epsilon=1", word, f"tag=tried/other/{label}"))
    own = Runs(runs(results), results)
    tried = dict(own.tried("other"))
    (pair,) = below(tried["steps"], "low_rank", "lr", "mtl_lr", [1])
    errors = tried["steps"].error("low_rank", "lr", 1) - own.error("low_rank", "mtl_lr")
    np.testing.assert_array_equal(pair.values, errors)
    assert not tried["steps"].error("low_rank", "lr", 1).equals(own.error("low_rank", "lr", 1))
    with pytest.raises(ResultsError, match="no finished run of low_rank mtl_lr"):
        below(tried["data"], "low_rank", "lr", "mtl_lr", [1])


FIRST = {label.partition("/")[0]: label for label in reversed(TRIED)}.values()  # of each claim


@pytest.mark.parametrize(
    "label", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FIRST)) for n in TRIED]
)
def test_settings_to_try_are_runs_for_a_claim(label):
    made = jobs_of(label, "smoke")
    assert label.partition("/")[0] in {claim.name for claim in CLAIMS}
    assert made
    assert all(run.tag.startswith(f"tried/{label}") for run in made)
    assert len({run.folder for run in made}) == len(made)


def test_the_script(results, tmp_path):
    words = (results, "--docs", tmp_path / "claims.md")
    done = script("check_claims.py", *words, cwd=tmp_path)
    assert f"{results / 'claims.csv'}" in done.stdout
    columns = ["id", "statement", "source", "measured", "verdict", "needed", "settings", "tried"]
    assert list(pd.read_csv(results / "claims.csv").columns) == columns
    assert (tmp_path / "claims.md").read_text().count("\n| ") == len(CLAIMS) + 2
    empty = script("check_claims.py", tmp_path, cwd=tmp_path)
    assert empty.returncode == 2
    assert empty.stderr.count("\n") == 1
    with pytest.raises(ResultsError, match="no finished run"):
        check_all(tmp_path)

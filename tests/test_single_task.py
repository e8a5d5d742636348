"""Ridge paths: optimality, closed forms, degenerate designs."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_data
from scipy.optimize import minimize

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.solvers import logistic
from mpmtl.solvers.single_task import BARELY, fold_paths, ridge_of, ridge_path, ridge_solver

LAMS = [1e-4, 1e-2, 1.0, 100.0]


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("d", [3, 20])
def test_path_is_stationary(kind, average, d, rng):
    datafit = datafit_for(ragged_data(rng, 5, d, kind), average)
    W = ridge_path(datafit, LAMS)
    residual = datafit.gradient(W) + np.array(LAMS)[:, None, None] * W
    assert np.abs(residual).max() < 1e-6 * max(1.0, datafit.lipschitz())


@pytest.mark.parametrize("k", [1, 4, 40])
def test_small_systems_are_ridge_solutions_whatever_another_task_holds(k, rng):
    """Against least squares of the rows themselves with those of the penalty below."""
    X, y, lam = rng.standard_normal((6, 50, k)), rng.standard_normal((6, 50)), 1e-8
    X[1] = 0.0  # without data
    X[2] = X[2, :1] * rng.standard_normal((50, 1))  # of rank one
    X[3, 1:] = 0.0  # fewer rows than features
    right = np.einsum("mnk,mn->mk", X, y)
    rows = np.concatenate([X, np.broadcast_to(np.sqrt(lam) * np.eye(k), (6, k, k))], axis=1)
    want = [np.linalg.lstsq(r, np.append(t, np.zeros(k)))[0] for r, t in zip(rows, y, strict=True)]
    got = ridge_of(X.swapaxes(1, 2) @ X, right, lam)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    for size in (1e-30, 1e8, 1e30):  # the other tasks stay as they were, to the last bit
        X[2] = size * X[2, :1] * np.ones((50, 1))
        again = ridge_of(X.swapaxes(1, 2) @ X, np.einsum("mnk,mn->mk", X, y), lam)
        assert np.isfinite(again).all()
        np.testing.assert_array_equal(np.delete(again, 2, axis=0), np.delete(got, 2, axis=0))
        X[2] /= size


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_order_of_the_path_does_not_matter(kind, rng):
    datafit = datafit_for(ragged_data(rng, kind=kind))
    up, down = ridge_path(datafit, LAMS), ridge_path(datafit, LAMS[::-1])[::-1]
    np.testing.assert_allclose(up, down, rtol=1e-5, atol=1e-7)


def test_no_penalty_gives_least_squares_of_least_norm(rng):
    data = ragged_data(rng, 4, 9, low=3, high=6)  # fewer samples than features
    W = ridge_path(datafit_for(data), [0.0])[0]
    for w, X, y in zip(W, data.X, data.y, strict=True):
        np.testing.assert_allclose(w, np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-8)


def test_separable_classes_stay_finite_without_penalty():
    X = np.array([[1.0, 0.5], [2.0, 0.1], [-1.0, 0.2], [-2.0, 0.3]])
    data = MultiTaskData.checked([X], [np.sign(X[:, 0])], kind="binary")
    W = ridge_path(datafit_for(data), [0.0, 1e-8])
    assert np.isfinite(W).all()
    assert ((X @ W[0, 0] > 0) == (X[:, 0] > 0)).all()


@pytest.mark.parametrize("size", [1.0, 30.0, 1e10, 1e30])
def test_newton_comes_back_from_where_the_hessian_vanishes(size):
    """Started where every sample is far on the wrong side, p (1 - p) = 0."""
    X, y = size * np.array([[1.0, 0.3], [0.5, -1.0], [-0.2, 0.4]]), np.array([1.0, -1.0, 1.0])
    datafit = datafit_for(MultiTaskData.checked([X], [y], "binary"))
    far = np.array([[-40.0, -60.0]])
    for lam in (0.0, 1e-12, 1.0):
        W = ridge_solver(datafit)([lam], far, far[:, None])
        assert np.isfinite(W).all()
        assert datafit.value(W) <= datafit.value(far[:, None])


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_centers_and_starts(kind, rng):
    """The solution for a center is stationary to rounding wherever Newton's method starts."""
    datafit = datafit_for(ragged_data(rng, 4, 6, kind, low=20, high=60))
    lams, center = np.array([0.01, 0.1, 10.0]), rng.standard_normal((3, 6))
    solve = ridge_solver(datafit)
    W = solve(lams, center)
    again = np.repeat(np.arange(3), 3)  # so many that they are solved together, and twice
    for start in (None, rng.standard_normal((9, *datafit.shape))):
        many = solve(lams[again], center[again], start)
        np.testing.assert_allclose(many, W[again], rtol=1e-9, atol=1e-10)
    residual = datafit.gradient(W) + lams[:, None, None] * (W - center[:, None])
    assert np.abs(residual).max() < 1e-11 * max(1.0, datafit.lipschitz())
    for scale in (1e-3, 1.0, 30.0):
        started = solve(lams, center, W + scale * rng.standard_normal(W.shape))
        np.testing.assert_allclose(started, W, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(solve(lams, np.zeros((3, 6))), solve(lams), rtol=1e-9, atol=1e-10)


def test_hessians_are_kept(rng, monkeypatch):
    """Fewer factorisations than the steps of plain Newton, about six for these digits."""
    datafit = datafit_for(ragged_data(rng, 4, 60, "binary", low=200, high=300))
    count, factor = [], logistic.dpotrf
    monkeypatch.setattr(logistic, "dpotrf", lambda *a, **k: count.append(0) or factor(*a, **k))
    solve = ridge_solver(datafit)
    W = np.concatenate([solve([lam]) for lam in LAMS])
    assert np.abs(datafit.gradient(W) + np.array(LAMS)[:, None, None] * W).max() < 1e-12 * 300
    assert 0 < len(count) < 3 * 4 * len(LAMS)
    assert len(count) < 3 * 4 * len(LAMS)


def logistic_problems(rng, n, d, size):
    """Rows with weak and strong features, noisy labels, weights of 8 problems, penalties, centers.

    Some problems leave rows out, penalties reach over six orders, and two of them are equal.
    """
    X = rng.standard_normal((n, d)) * np.logspace(0, -2, d) * size
    y = np.where(X[:, 0] / size + rng.standard_normal(n) > 0, 1.0, -1.0)
    c = np.where(rng.random((8, n)) < 0.8, 1.0, 0.0)
    c[::2] = 1.0
    lam = size**2 * np.repeat(np.logspace(-4, 2, 4), 2)
    return (
        X,
        y,
        c / np.maximum(c.sum(axis=1, keepdims=True), 1),
        lam,
        rng.standard_normal((8, d)) / size,
    )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("n", "d"), [(60, 4), (40, 40), (200, 12), (5, 9), (1, 1)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_batch_of_logistic_problems_equals_plain_newton(n, d, size, own, rng):
    """Weights, penalties, centers and starts of their own; with and without own Hessians."""
    X, y, c, lam, center = logistic_problems(rng, n, d, size)
    want = np.array(
        [
            logistic.newton(X, y, w, np.full(d, one), about, about)
            for w, one, about in zip(c, lam, center, strict=True)
        ]
    )
    known = logistic.Curvature(X)
    known.own = own
    for start in (center, np.zeros_like(center), want + rng.standard_normal(want.shape) / size):
        got = logistic.newton_batch(X, y, c, lam, center, start, known)
        np.testing.assert_allclose(got * size, want * size, rtol=1e-9, atol=1e-9)
    assert bool(known.near) == own


def test_a_batch_that_does_not_converge_is_finished_by_plain_newton(rng, monkeypatch):
    X, y, c, lam, center = logistic_problems(rng, 50, 6, 1.0)
    want = logistic.newton_batch(X, y, c, lam, center, center, logistic.Curvature(X))
    monkeypatch.setattr(logistic, "MAX_OUTER", 2)
    calls, newton = [], logistic.newton
    monkeypatch.setattr(logistic, "newton", lambda *a: calls.append(0) or newton(*a))
    got = logistic.newton_batch(X, y, c, lam, center, center, logistic.Curvature(X))
    assert calls
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_paths_of_all_folds_are_those_of_each(kind, average, intercept, rng):
    """Folds of all sizes, empty ones too; a penalty of zero among the others."""
    data = ragged_data(rng, 5, 4, kind, low=6, high=30)
    data = data.with_intercept() if intercept else data
    fold = [np.sort(rng.integers(0, 4, len(t))) for t in data.y]
    fold[0][:] = 1  # all of a task's rows in one fold
    parts = [
        datafit_for(data.take([np.flatnonzero(f == k) for f in fold]), average) for k in range(4)
    ]
    for lams in ([1e-3, 0.1, 10.0, 1e3], [0.0, 0.1]):
        got = fold_paths(parts, lams)
        for k in range(4):
            rest = parts[0].merged(parts[:k] + parts[k + 1 :])
            np.testing.assert_allclose(got[k], ridge_path(rest, lams), rtol=1e-8, atol=1e-9)


# With an intercept, the last weight


def with_levels(rng, kind="regression", d=3, low=8, high=14):
    """Ragged tasks with an intercept, whose levels are far from zero."""
    data = ragged_data(rng, 5, d, kind, low, high)
    if kind == "regression":
        data = replace(data, y=tuple(y + 10 * i for i, y in enumerate(data.y)))
    return data.with_intercept()


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("d", [3, 20])
def test_a_path_with_free_intercepts_is_stationary(kind, average, d, rng):
    """Of slopes w and intercept b: gradient + lambda w = 0 and gradient = 0; a logistic level, the
    score b + x'w of the mean sample x, is barely penalised."""
    datafit = datafit_for(with_levels(rng, kind, d), average)
    W = ridge_path(datafit, LAMS)
    residual = datafit.gradient(W)
    residual[..., :-1] += np.array(LAMS)[:, None, None] * W[..., :-1]
    if kind == "binary":
        means = np.stack([X.mean(axis=0) for X in datafit.X])
        level = BARELY * datafit.n * datafit.weight * np.einsum("bmd,md->bm", W, means)
        residual += level[..., None] * means
        assert np.abs(level).max() < 1e-2
    assert np.abs(residual).max() < 1e-10 * max(1.0, datafit.lipschitz())


@pytest.mark.parametrize("average", [False, True])
def test_free_intercepts_equal_one_least_squares_problem(average, rng):
    """Rows sqrt(c) (x, 1) and sqrt(lambda) (e_j, 0), without any centring."""
    datafit = datafit_for(with_levels(rng), average)
    for lam, models in zip(LAMS, ridge_path(datafit, LAMS), strict=True):
        for X, y, c, w in zip(datafit.X, datafit.y, datafit.weight, models, strict=True):
            rows = np.vstack([np.sqrt(c) * X, np.sqrt(lam) * np.eye(4)[:3]])
            want = np.linalg.lstsq(rows, np.append(np.sqrt(c) * y, np.zeros(3)), rcond=None)[0]
            np.testing.assert_allclose(w, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("lam", [0.05, 1.0])
def test_free_logistic_intercepts_equal_a_general_minimiser(lam, average, rng):
    datafit = datafit_for(with_levels(rng, "binary", low=30, high=40), average)
    models = ridge_path(datafit, [lam])[0]
    for i, w in enumerate(models):

        def objective(v, i=i):
            return datafit.value(np.tile(v, (1, 5, 1)))[0, i] + lam / 2 * v[:-1] @ v[:-1]

        best = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-8})
        np.testing.assert_allclose(w, best.x, atol=2e-3)  # the level's own small penalty
        assert objective(w) <= best.fun + 1e-4 * max(1.0, best.fun)


def test_an_infinite_penalty_gives_each_tasks_own_mean(rng):
    data = with_levels(rng)
    W = ridge_path(datafit_for(data), [np.inf, 1e-3])[0]
    np.testing.assert_array_equal(W[:, :-1], 0)
    np.testing.assert_allclose(W[:, -1], [y.mean() for y in data.y])


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_tasks_with_little_to_learn_from_have_finite_models(kind, average, rng):
    """No row, one row, one class or one value: in each the level is what the targets say."""
    X = tuple(rng.standard_normal((n, 3)) for n in (0, 1, 1, 6, 6))
    y = tuple(np.array(t) for t in ([], [1.0], [-1.0], [1.0] * 6, [-1.0] * 6))
    names = {"task_names": tuple("abcde"), "feature_names": tuple("xyz")}
    datafit = datafit_for(MultiTaskData(X, y, kind, **names).with_intercept(), average)
    lams = [0.0, 1e-6, 1.0] + [np.inf] * (kind == "regression")
    W = ridge_path(datafit, lams)
    assert np.isfinite(W).all()
    np.testing.assert_array_equal(W[:, 0], 0)
    for models in W:
        for rows, w, target in zip(datafit.X[1:], models[1:], datafit.y[1:], strict=True):
            if kind == "regression":
                np.testing.assert_allclose(rows @ w, target, atol=1e-12)
            else:
                assert (np.sign(rows @ w) == target).all()


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_where_features_are_zero_does_not_matter(size, kind, average, rng):
    """Features moved by as much: the same slopes, and the same scores to the digits that are left
    of a sum of such numbers; a table whose declared ranges are far too wide is fitted alike."""
    data = with_levels(rng, kind, low=20, high=30)
    X = tuple(np.round(rows * 2**20) / 2**20 for rows in data.X)  # so that moving is exact
    away = np.append(np.round(size * rng.uniform(1, 2, 3)), 0.0)
    here = replace(data, X=X)
    there = replace(data, X=tuple(rows + away for rows in X))
    W, moved = (ridge_path(datafit_for(d, average), LAMS) for d in (here, there))
    np.testing.assert_allclose(moved[..., :-1], W[..., :-1], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(moved[..., -1], W[..., -1] - W[..., :-1] @ away[:-1], rtol=1e-7)


@pytest.mark.parametrize("average", [False, True])
def test_a_shift_of_a_tasks_targets_moves_its_intercept_alone(average, rng):
    data = with_levels(rng)
    shifts = np.array([0.0, 1.0, -20.0, 1e3, 0.25])
    moved = replace(data, y=tuple(y + s for y, s in zip(data.y, shifts, strict=True)))
    lams = [*LAMS, np.inf]
    W, V = (ridge_path(datafit_for(d, average), lams) for d in (data, moved))
    np.testing.assert_allclose(V[..., :-1], W[..., :-1], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(V[..., -1], W[..., -1] + shifts, rtol=1e-11)

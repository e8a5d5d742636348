"""Ridge paths: optimality, closed forms, degenerate designs."""

import numpy as np
import pytest
from conftest import ragged_data

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.solvers import single_task
from mpmtl.solvers.single_task import ridge_path, ridge_solver

LAMS = [1e-4, 1e-2, 1.0, 100.0]


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("d", [3, 20])
def test_path_is_stationary(kind, average, d, rng):
    datafit = datafit_for(ragged_data(rng, 5, d, kind), average)
    W = ridge_path(datafit, LAMS)
    residual = datafit.gradient(W) + np.array(LAMS)[:, None, None] * W
    assert np.abs(residual).max() < 1e-6 * max(1.0, datafit.lipschitz())


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
    residual = datafit.gradient(W) + lams[:, None, None] * (W - center[:, None])
    assert np.abs(residual).max() < 1e-11 * max(1.0, datafit.lipschitz())
    for scale in (1e-3, 1.0, 30.0):
        started = solve(lams, center, W + scale * rng.standard_normal(W.shape))
        np.testing.assert_allclose(started, W, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(solve(lams, np.zeros((3, 6))), solve(lams), rtol=1e-9, atol=1e-10)


def test_hessians_are_kept(rng, monkeypatch):
    """Fewer factorisations than the steps of plain Newton, about six for these digits."""
    datafit = datafit_for(ragged_data(rng, 4, 30, "binary", low=200, high=300))
    count, factor = [], single_task.cho_factor
    monkeypatch.setattr(
        single_task, "cho_factor", lambda *a, **k: count.append(0) or factor(*a, **k)
    )
    W = ridge_path(datafit, LAMS)
    assert np.abs(datafit.gradient(W) + np.array(LAMS)[:, None, None] * W).max() < 1e-12 * 300
    assert len(count) < 3 * 4 * len(LAMS)

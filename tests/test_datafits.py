"""Losses: values, gradients, Lipschitz constants, conjugates and unions of folds."""

import numpy as np
import pytest
from conftest import ragged_data
from scipy.optimize import approx_fprime, minimize_scalar

from mpmtl.datafits import (
    LogisticLoss,
    SquaredLoss,
    datafit_for,
    largest_eigenvalue,
    logistic_loss,
)

KINDS = ["regression", "binary"]


def plain_value(data, w, i, average):
    """Loss of one task as the definition writes it."""
    X, y = data.X[i], data.y[i]
    if data.kind == "regression":
        total = 0.5 * ((X @ w - y) ** 2).sum()
    else:
        total = np.log1p(np.exp(-y * (X @ w))).sum()
    return total / len(y) if average else total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("average", [False, True])
def test_value_and_gradient(kind, average, rng):
    data = ragged_data(rng, kind=kind)
    datafit = datafit_for(data, average)
    W = rng.standard_normal((3, *datafit.shape))
    value, gradient = datafit.value(W), datafit.gradient(W)
    for b in range(3):
        for i in range(data.n_tasks):

            def task(w, i=i):
                return plain_value(data, w, i, average)

            assert value[b, i] == pytest.approx(task(W[b, i]), rel=1e-12)
            numeric = approx_fprime(W[b, i], task, 1e-7)
            np.testing.assert_allclose(gradient[b, i], numeric, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("average", [False, True])
def test_lipschitz_constant_bounds_the_gradient_and_is_reached(kind, average, rng):
    data = ragged_data(rng, kind=kind)
    datafit = datafit_for(data, average)
    W = 1e-4 * rng.standard_normal((200, *datafit.shape))
    change = datafit.gradient(W) - datafit.gradient(np.zeros_like(W))
    ratios = np.linalg.norm(change, axis=2) / np.linalg.norm(W, axis=2)
    assert ratios.max() <= datafit.lipschitz() * (1 + 1e-9)
    curvature = [w / 4 if kind == "binary" else w for w in datafit.weight]
    largest = max(c * np.linalg.norm(X, 2) ** 2 for c, X in zip(curvature, data.X, strict=True))
    assert datafit.lipschitz() == pytest.approx(largest, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("average", [False, True])
def test_merged_folds_are_the_whole(kind, average, rng):
    data = ragged_data(rng, kind=kind)
    halves = [data.take([np.arange(k, len(y), 2) for y in data.y]) for k in (0, 1)]
    whole = datafit_for(data, average)
    merged = type(whole).merged([datafit_for(half, average) for half in halves])
    W = rng.standard_normal((2, *whole.shape))
    np.testing.assert_allclose(merged.value(W), whole.value(W), rtol=1e-12)
    np.testing.assert_allclose(merged.gradient(W), whole.gradient(W), rtol=1e-10, atol=1e-12)


def test_conjugate_of_the_squared_loss(rng):
    """L^*(theta) = c (s^2/2 ||r||^2 + s r'y) for theta = s c r, by maximising over predictions."""
    data = ragged_data(rng, m=1)
    datafit = SquaredLoss(data.X, data.y, average=True)
    W = rng.standard_normal((1, 1, 4))
    r, y, n, s = data.X[0] @ W[0, 0] - data.y[0], data.y[0], len(data.y[0]), 0.7
    theta = s * r / n
    z = y + n * theta  # maximiser of theta'z - ||z - y||^2/(2n)
    direct = theta @ z - ((z - y) ** 2).sum() / (2 * n)
    assert datafit.conjugate(W, np.array([s]))[0] == pytest.approx(direct, rel=1e-12)


def test_conjugate_of_the_logistic_loss(rng):
    data = ragged_data(rng, m=1, kind="binary")
    datafit = LogisticLoss(data.X, data.y, average=False)
    W = rng.standard_normal((1, 1, 4))
    s, y = 0.7, data.y[0]
    theta = -s * y / (1 + np.exp(y * (data.X[0] @ W[0, 0])))
    direct = 0.0
    for t, label in zip(theta, y, strict=True):
        lowest = minimize_scalar(
            lambda z, t=t, label=label: np.logaddexp(0, -label * z) - t * z,
            bounds=(-60, 60),
            method="bounded",
            options={"xatol": 1e-10},
        )
        direct -= lowest.fun
    assert datafit.conjugate(W, np.array([s]))[0] == pytest.approx(direct, rel=1e-6)


def test_logistic_loss_does_not_overflow(rng):
    datafit = datafit_for(ragged_data(rng, kind="binary"))
    W = 1e6 * rng.standard_normal((1, *datafit.shape))
    assert np.isfinite(datafit.value(W)).all()
    assert np.isfinite(datafit.gradient(W)).all()
    assert np.isfinite(datafit.conjugate(W, np.array([1.0]))).all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
def test_the_largest_eigenvalue_is_found_without_all_of_them(scale, spread, rng):
    """Tasks of one size, of mixed sizes, and hardly any that matter; rank one and zero too."""
    for m, d in ((1, 1), (3, 5), (60, 7)):
        A = rng.standard_normal((m, d, d))
        A[0, 1:] = 0
        A = np.matmul(A.swapaxes(1, 2), A) * scale * np.exp(spread * rng.random((m, 1, 1)))
        A[m // 2] *= m == 1
        want = np.linalg.eigvalsh(A)[:, -1].max()
        assert largest_eigenvalue(A) == pytest.approx(want, rel=1e-12, abs=0)
    assert largest_eigenvalue(np.zeros((4, 3, 3))) == 0


def test_the_logistic_loss_is_numpys_over_all_its_range():
    margin = np.concatenate([np.linspace(-800, 800, 4001), [0.0, 1e-300, -1e-300, 1e5, -1e5]])
    np.testing.assert_allclose(logistic_loss(margin), np.logaddexp(0, -margin), rtol=1e-14)

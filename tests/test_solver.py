"""The batched solver: reference trajectories, a plain loop, optimality, an independent solver."""

import numpy as np
import pytest
from conftest import ragged_data

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.penalties import L1, GroupL1, TraceNorm, penalty_named
from mpmtl.privacy.clipping import bounded
from mpmtl.solvers.proximal import (
    Projection,
    Rounds,
    duality_gap,
    proximal_rounds,
    solve,
)


def batch(lam, n_rounds, accelerated, strongly, K, lipschitz, mu=1e-3):
    return Rounds(
        np.array(lam, dtype=float),
        np.array(n_rounds),
        np.array(accelerated),
        np.array(strongly),
        np.array(K, dtype=float),
        mu,
        lipschitz,
    )


@pytest.mark.parametrize("name", ["lr_basic", "lr_accelerated", "gs_basic", "gs_accelerated"])
def test_trajectories_match_reference(vectors, name):
    v = vectors["trajectory"]
    datafit = datafit_for(MultiTaskData.checked(v["X"], v["y"]))
    penalty = TraceNorm() if name.startswith("lr") else GroupL1()
    E = np.array(v["noise"])
    if penalty.view == "diagonal":
        E = np.einsum("tjj->tj", E)
    rounds = batch([v["lam"]], [3], ["accelerated" in name], [False], [v["K"]], 1 / v["eta"])
    W0 = np.array(v["W0"]).T
    project = Projection(penalty, lambda t, W: penalty.covariance(W) + E[t - 1])
    steps = proximal_rounds(datafit, project, W0, rounds)
    for W_hat, want in zip(steps, v["what"][name], strict=True):
        np.testing.assert_allclose(W_hat[0].T, want, rtol=1e-10, atol=1e-12)


def plain_algorithm(data, penalty_name, W0, lam, T, eta, beta, K, noise, mu, clip):
    """Algorithm 2 or 3 step by step for one candidate, with the paper's d x m matrices."""
    W = W0.copy()
    W_hat_prev = None
    for t in range(1, T + 1):
        W_tilde = W / np.maximum(1, np.linalg.norm(W, axis=0) / K)
        if W_hat_prev is None:
            W_hat_prev = W_tilde
        Sigma = W_tilde @ W_tilde.T + noise[t - 1]
        if penalty_name == "trace":
            values, U = np.linalg.eigh(Sigma)
            S = np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(values)))
            M = U @ np.diag(S) @ U.T
        else:
            M = np.diag(np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(np.diag(Sigma)))))
        W_hat = M @ (W_tilde if clip == "models" else W)
        Z = W_hat + beta(t) * (W_hat - W_hat_prev)
        W = np.empty_like(Z)
        for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
            if data.kind == "regression":
                gradient = X.T @ (X @ Z[:, i] - y)
            else:
                gradient = -X.T @ (y / (1 + np.exp(y * (X @ Z[:, i])))) / len(y)
            W[:, i] = Z[:, i] - eta * (gradient + mu * Z[:, i])
        W_hat_prev = W_hat
    return W_hat


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1()], ids=lambda p: p.name)
@pytest.mark.parametrize("clip", ["models", "covariance"])
@pytest.mark.parametrize(("m", "d"), [(6, 4), (4, 4), (3, 6)])
def test_batch_equals_the_algorithm_written_out(kind, penalty, clip, m, d, rng):
    """Every form (basic, accelerated) x (convex, strongly convex), different T, lambda and K."""
    data = ragged_data(rng, m, d, kind)
    datafit = datafit_for(data)
    L, mu = datafit.lipschitz(), 0.05 * datafit.lipschitz()
    T = [9, 7, 7, 4, 1]
    lam = np.array([0.02, 0.1, 0.3, 0.05, 0.2]) * L
    accelerated = [False, True, False, True, True]
    strongly = [False, False, True, True, False]
    K = [0.8, 1.5, 1.1, 0.9, 2.0]
    noise = rng.standard_normal((9, d, d))
    noise = noise + noise.swapaxes(1, 2)
    W0 = rng.standard_normal((d, m))

    def release(t, W):
        Sigma = penalty.covariance(W)
        return Sigma + (noise[t - 1] if penalty.view == "covariance" else np.diag(noise[t - 1]))

    rounds = batch(lam, T, accelerated, strongly, K, L, mu)
    fits = {}
    steps = proximal_rounds(datafit, Projection(penalty, release, clip), W0.T, rounds)
    for t, W_hat in enumerate(steps, start=1):
        fits |= {b: W_hat[b] for b in range(5) if T[b] == t}
    for b in range(5):
        curvature = mu if strongly[b] else 0.0
        eta = 1 / (L + curvature)
        root = np.sqrt(curvature * eta)
        rate = (1 - root) / (1 + root)

        def beta(t, b=b, rate=rate):
            if not accelerated[b]:
                return 0.0
            return rate if strongly[b] else (t - 1) / (t + 2)

        want = plain_algorithm(
            data, penalty.name, W0, lam[b], T[b], eta, beta, K[b], noise, curvature, clip
        )
        np.testing.assert_allclose(fits[b].T, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1(), L1()], ids=lambda p: p.name)
@pytest.mark.parametrize(("m", "d"), [(9, 5), (4, 12)])
def test_solver_reaches_the_optimum(kind, penalty, m, d, rng):
    """Relative duality gap at most 1e-8, on ragged tasks, d < m and d > m."""
    data = ragged_data(rng, m, d, kind, low=3, high=15)
    datafit = datafit_for(data)
    zero = np.zeros((1, *datafit.shape))
    lam_max = penalty.dual_norm(datafit.gradient(zero))[0]
    for share in (0.02, 0.3):
        W, gap, _ = solve(datafit, penalty, share * lam_max, tol=1e-9)
        assert gap <= 1e-8
        assert gap >= -1e-12  # weak duality
        assert np.abs(W).max() > 0
    W, gap, _ = solve(datafit, penalty, 1.01 * lam_max, tol=1e-9)
    assert gap <= 1e-8
    np.testing.assert_allclose(W, 0, atol=1e-9)


@pytest.mark.parametrize("penalty", [TraceNorm(), GroupL1()], ids=lambda p: p.name)
def test_solver_reaches_the_optimum_with_strong_convexity(penalty, rng):
    datafit = datafit_for(ragged_data(rng, 6, 8, low=3, high=6))
    mu = 0.1 * datafit.lipschitz()
    _, gap, _ = solve(datafit, penalty, 0.2 * datafit.lipschitz(), tol=1e-10, mu=mu)
    assert gap <= 1e-9


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("name", ["trace", "l21"])
@pytest.mark.parametrize(("m", "d"), [(6, 4), (3, 7)])
def test_solver_agrees_with_an_independent_one(kind, name, m, d, rng):
    """cvxpy (an interior-point solver) finds the same optimum, to its tolerance."""
    cp = pytest.importorskip("cvxpy", reason="the extra `oracle` is not installed")
    data = ragged_data(rng, m, d, kind)
    datafit, penalty = datafit_for(data), penalty_named(name)
    lam = 0.1 * penalty.dual_norm(datafit.gradient(np.zeros((1, m, d))))[0]
    V = cp.Variable((m, d))
    loss = 0
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        if kind == "regression":
            loss += 0.5 * cp.sum_squares(X @ V[i] - y)
        else:
            loss += cp.sum(cp.logistic(cp.multiply(-y, X @ V[i]))) / len(y)
    norm = cp.normNuc(V) if name == "trace" else cp.sum(cp.norm(V, 2, axis=0))
    problem = cp.Problem(cp.Minimize(loss + lam * norm))
    problem.solve(solver=cp.CLARABEL)
    W, gap, _ = solve(datafit, penalty, lam, tol=1e-10)
    ours = datafit.value(W[None]).sum() + lam * penalty.value(W)
    assert gap <= 1e-10
    assert ours <= problem.value * (1 + 1e-8)
    assert ours == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(W, V.value, atol=1e-3 * np.abs(W).max())


def test_duality_gap_is_a_bound_on_the_distance_to_the_optimum(rng):
    """gap(W) >= (P(W) - P*) / P(W) at arbitrary points."""
    datafit, penalty = datafit_for(ragged_data(rng)), TraceNorm()
    lam = np.array([0.2 * datafit.lipschitz()])
    best, _, _ = solve(datafit, penalty, lam[0], tol=1e-12)

    def primal(W):
        return datafit.value(W).sum(axis=1) + lam * penalty.value(W)

    for scale in (0.0, 0.1, 1.0):
        W = best[None] + scale * rng.standard_normal((1, *datafit.shape))
        gap = duality_gap(datafit, penalty, lam, W)
        assert gap[0] >= ((primal(W) - primal(best[None])) / primal(W))[0] - 1e-12


def test_noise_free_private_rounds_are_the_non_private_ones(rng):
    """A release that adds nothing, K = inf: the private loop is proximal gradient descent."""
    datafit = datafit_for(ragged_data(rng, 8, 5))
    for penalty in (TraceNorm(), GroupL1()):
        settings = batch(
            [0.5, 0.1],
            [20, 20],
            [True, False],
            [False, False],
            [np.inf, np.inf],
            datafit.lipschitz(),
        )
        start = np.zeros(datafit.shape)
        plain, private = (
            list(proximal_rounds(datafit, Projection(penalty, release), start, settings))
            for release in (None, lambda t, W, penalty=penalty: penalty.covariance(W))
        )
        np.testing.assert_allclose(plain[-1], private[-1], rtol=1e-9, atol=1e-9)


def test_bounded_bounds_every_model_and_keeps_short_ones(rng):
    W = rng.standard_normal((2, 50, 4))
    K = np.array([0.5, 2.0])
    clipped = bounded(W, K)
    norms = np.linalg.norm(W, axis=2)
    np.testing.assert_allclose(
        np.linalg.norm(clipped, axis=2), np.minimum(norms, K[:, None]), rtol=1e-14
    )
    short = norms <= K[:, None]
    np.testing.assert_array_equal(clipped[short], W[short])


def test_rounds_refuse_impossible_settings():
    for change in ({"K": [0.0]}, {"n_rounds": [0]}, {"lam": [-1.0]}):
        settings = {"lam": [1.0], "n_rounds": [1], "K": [1.0]} | change
        with pytest.raises(ValueError, match="must be|at least"):
            batch(settings["lam"], settings["n_rounds"], [False], [False], settings["K"], 1.0)

"""Every method's batched fit against its formulas written out, for one candidate at a time.

The plain forms use d x m matrices as the papers do, singular value decompositions, predictions
instead of Gram matrices and a Newton method of their own; only the noise draws are shared.
"""

from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, make_run, ragged_data

from mpmtl.datafits import datafit_for
from mpmtl.experiments.tuning import prepare
from mpmtl.methods import SingleTask
from mpmtl.methods.group_privacy import instance_budget
from mpmtl.privacy.budget import allocate
from mpmtl.privacy.mechanisms import sphere_noise
from mpmtl.privacy.releases import covariance, diagonal, relation

VALUES = {
    **dict.fromkeys(("lam", "lam1", "lam2", "lam_final", "lam_local", "l1", "l2"), "[0.02,0.3]"),
    **dict.fromkeys(("accelerated", "strongly_convex"), "[false,true]"),
    "n_rounds": "[2,4,7]",
}


def grid(name):
    """Words that give every method two or three values of most of its settings."""
    settings = make_run(f"method={name}").method.settings
    return [f"method.grid.{key}={VALUES[key]}" for key in settings if key in VALUES]


def gradient(data, average, W):
    """Gradients of the tasks, d x m, from predictions."""
    columns = []
    for X, y, w in zip(data.X, data.y, W.T, strict=True):
        squared = data.kind == "regression"
        slope = X @ w - y if squared else -y / (1 + np.exp(y * (X @ w)))
        columns.append(X.T @ slope / (len(y) if average else 1))
    return np.array(columns).T


def lipschitz(data, average):
    squared = data.kind == "regression"
    sizes = [np.linalg.norm(X, 2) ** 2 / (len(X) if average else 1) for X in data.X]
    return max(sizes) * (1 if squared else 0.25)


def ridge(X, y, kind, c, lam, center=0.0):
    """argmin c sum loss + lam/2 ||w - center||^2."""
    d = X.shape[1]
    center = np.broadcast_to(center, d)
    if kind == "regression":
        return np.linalg.solve(c * X.T @ X + lam * np.eye(d), c * X.T @ y + lam * center)
    w = np.zeros(d)
    for _ in range(50):
        p = 1 / (1 + np.exp(y * (X @ w)))
        H = c * (X.T * (p * (1 - p))) @ X + lam * np.eye(d)
        w = w - np.linalg.solve(H, lam * (w - center) - c * X.T @ (y * p))
    return w


def local_models(data, average, lam, center=0.0):
    samples = zip(data.X, data.y, strict=True)
    return np.array(
        [ridge(X, y, data.kind, 1 / len(y) if average else 1, lam, center) for X, y in samples]
    ).T


def clipped(W, K):
    return W / np.maximum(1, np.linalg.norm(W, axis=0) / K)


def prox(W, penalty, threshold):
    """Textbook proximal operators, d x m."""
    if penalty == "l21":
        norms = np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-300)
        return W * np.maximum(0, 1 - threshold / norms)
    if penalty == "l1":
        return np.sign(W) * np.maximum(0, np.abs(W) - threshold)
    U, s, V = np.linalg.svd(W, full_matrices=False)
    if penalty == "trace":
        return U @ np.diag(np.maximum(0, s - threshold)) @ V
    tau = 0.0  # squared trace norm: tau = threshold * sum (s - tau)_+
    for k in range(1, len(s) + 1):
        tau = max(tau, threshold * s[:k].sum() / (1 + k * threshold))
    return U @ np.diag(np.maximum(0, s - tau)) @ V


def proximal(run, data, average, W0, c, budget, rng, T):
    """Algorithms 2 to 5 and the accelerated proximal gradient method; T rounds are drawn for."""
    method, (d, m) = run.method, W0.shape
    mechanism = budget.mechanism
    draws, sphere = [], []
    if method.private:
        release = covariance(d) if method.penalty == "trace" else diagonal(d)
        draws = [mechanism.draw(rng, release) for _ in range(T)]
        moved = {"l2": np.sqrt(2), "trace": 2}[mechanism.norm]
        scale = c.K**2 * mechanism.scale(budget.of_rounds(c), moved)
    if getattr(method, "instance_epsilon", None):
        sphere = [sphere_noise(rng, (m, d)).T for _ in range(T)]
        eps = allocate(method.instance_epsilon, 0.0, c.n_rounds, c.alpha or 0.0, c.Q)
    split = hasattr(c, "lam_local")
    penalty = c.penalty if isinstance(method, SingleTask) else method.penalty
    lam = c.lam2 if penalty == "squared_trace" else c.lam
    strongly = getattr(c, "strongly_convex", False)
    shrink = 1e-3 if strongly else 0.0
    if penalty == "squared_trace":
        shrink = c.lam1
    L = lipschitz(data, average) * (2 if split else 1)
    eta = 1 / (L + shrink)
    P = W0 if method.private else np.zeros_like(W0)
    Q = np.zeros_like(P)
    K = getattr(c, "K", None) or np.inf
    P_before, Q_before = clipped(P, K), Q
    for t in range(1, c.n_rounds + 1):
        P_tilde = clipped(P, K)
        if sphere:
            P_tilde = clipped(P_tilde + 2 * K / eps[t - 1] * sphere[t - 1], K)
        if method.private:
            noise = draws[t - 1]
            shift = mechanism.shift * mechanism.spectral_norm(release) * np.eye(d)
            noise = (noise if noise.ndim == 2 else np.diag(noise)) + shift
            Sigma = P_tilde @ P_tilde.T + scale[t - 1] * noise
            if penalty == "trace":
                values, U = np.linalg.eigh(Sigma)
                M = U @ np.diag(np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(values)))) @ U.T
            else:
                M = np.diag(np.maximum(0, 1 - eta * lam / np.sqrt(np.abs(np.diag(Sigma)))))
            P_hat = M @ P_tilde
        else:
            P_hat = prox(P_tilde, penalty, eta * lam)
        Q_hat = prox(Q, method.local, eta * c.lam_local) if split else Q
        root = np.sqrt(shrink * eta)
        beta = (1 - root) / (1 + root) if strongly else (t - 1) / (t + 2)
        beta = beta if getattr(c, "accelerated", True) else 0.0
        Z_P, Z_Q = P_hat + beta * (P_hat - P_before), Q_hat + beta * (Q_hat - Q_before)
        step = eta * (gradient(data, average, Z_P + Z_Q) + shrink * (Z_P + Z_Q))
        P, Q = Z_P - step, Z_Q - step if split else Q
        P_before, Q_before = P_hat, Q_hat
    return P_hat + Q_hat


def rl(run, data, average, W0, c, budget, rng, T):
    m = W0.shape[1]
    draws = [budget.mechanism.draw(rng, relation(m)) for _ in range(T)]
    scale = c.K**2 / (2 * budget.of_rounds(c))  # the paper's
    W = W0
    for t in range(c.n_rounds):
        values, V = np.linalg.eigh(clipped(W, c.K).T @ clipped(W, c.K) + scale[t] * draws[t])
        s = np.sqrt(np.maximum(values, 0))
        inverse = np.linalg.inv(V @ np.diag(s / s.sum()) @ V.T + 1e-6 * np.eye(m))
        W = np.array(
            [
                ridge(X, y, "regression", 2 / len(y), c.lam1 + c.lam2 * inverse[i, i])
                for i, (X, y) in enumerate(zip(data.X, data.y, strict=True))
            ]
        ).T
    return W


def dp_mtrl(run, data, average, W0, c, budget, rng, T):
    d, m = W0.shape
    inner = instance_budget(budget, datafit_for(data))
    eps = inner.mechanism.budgets(inner.epsilon, inner.delta, c.n_rounds, c.alpha or 0.0)
    W, inverse = np.zeros((d, m)), m * np.eye(m)
    for t in range(c.n_rounds):
        for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
            kappa = c.lam1 + c.lam2 * inverse[i, i]
            pull = c.lam2 * sum(inverse[i, j] * W[:, j] for j in range(m) if j != i)
            A = 2 / len(y) * X.T @ X + kappa * np.eye(d)
            w = np.linalg.solve(A, 2 / len(y) * X.T @ y - pull)
            S = 2 * np.abs(2 * (X @ w - y)).max() / (len(y) * kappa)
            W[:, i] = w + S / eps[t] * sphere_noise(rng, (d,))
        # Omega + 1e-6 I in its own directions: once added up it has lost the digits of the small
        # ones, and how many differs between processors.
        _, s, V = np.linalg.svd(W)
        inverse = V.T @ np.diag(1 / (np.pad(s / s.sum(), (0, m - len(s))) + 1e-6)) @ V
    return W


def aggr(run, data, average, W0, c, budget, rng, T):
    d, m = W0.shape
    w = local_models(data, True, c.lam).mean(axis=1)
    b = rng.laplace(size=d)
    if run.method.private:
        n = [len(y) for y in data.y]
        w = w + 2 / (min(n) * budget.epsilon / max(n) * c.lam) * b
    return np.repeat(w[:, None], m, axis=1)


def mr_mtl(run, data, average, W0, c, budget, rng, T):
    d, m = W0.shape
    draws = [rng.standard_normal(d) for _ in range(T)]
    mu = budget.of_rounds(c)
    w0 = np.zeros(d)
    for t in range(c.n_rounds):
        delta = local_models(data, average, c.lam, w0) - w0[:, None]
        w0 = w0 + clipped(delta, c.gamma).mean(axis=1) + 2 * c.gamma / (m * mu[t]) * draws[t]
    return local_models(data, average, c.lam_final, w0)


def fedrep(run, data, average, W0, c, budget, rng, T):
    d, m = W0.shape
    E = rng.standard_normal((d, d))
    E = (E + E.T) / np.sqrt(2)
    rng.standard_normal((d, d))  # the random start, not used here
    draws = [rng.standard_normal((d, min(5, d))) for _ in range(T)]
    mu0, mu = run.method.budgets(c, budget)
    b = gradient(data, True, np.zeros((d, m)))
    b = b / np.linalg.norm(b, axis=0)
    U = np.linalg.eigh(b @ b.T + E / mu0)[1][:, -c.rank :]
    for t in range(c.n_rounds):
        mean = np.zeros_like(U)
        for X, y in zip(data.X, data.y, strict=True):
            v = ridge(X @ U, y, data.kind, 1 / len(y), 1e-8)
            task = replace(data, X=(X,), y=(y,))
            g = np.outer(gradient(task, True, (U @ v)[:, None]), v)
            mean += g * min(1, c.psi / np.linalg.norm(g)) / m
        noise = 2 * c.psi / (m * mu[t]) * draws[t][:, : c.rank]
        U = np.linalg.qr(U - c.step * (mean + noise))[0]
    samples = zip(data.X, data.y, strict=True)
    return np.array([U @ ridge(X @ U, y, data.kind, 1 / len(y), c.lam) for X, y in samples]).T


def stl(run, data, average, W0, c, budget, rng, T):
    """Every task by itself, with a step of its own."""
    if c.penalty == "l2":
        return local_models(data, average, c.lam)
    tasks = [replace(data, X=(X,), y=(y,)) for X, y in zip(data.X, data.y, strict=True)]
    models = [proximal(run, task, average, W0[:, :1], c, budget, rng, T) for task in tasks]
    return np.hstack(models)


PLAIN = {
    "lr": proximal,
    "gs": proximal,
    "lr privacy=gaussian": proximal,
    "gs privacy=gaussian": proximal,
    "lr method.instance_protection.epsilon=3": proximal,
    "lr_sp": proximal,
    "mtl_lr": proximal,
    "mtl_gs": proximal,
    "mtrl": proximal,
    "stl": stl,
    "stl method.penalty=l1": stl,
    "rl": rl,
    "dp_mtrl": dp_mtrl,
    "aggr": aggr,
    "dp_aggr": aggr,
    "mr_mtl": mr_mtl,
    "fedrep": fedrep,
}
SQUARED = ("mtrl", "rl", "dp_mtrl")  # the averaged squared loss, for labels too


@pytest.mark.parametrize("kind", ["regression", "binary"])
@pytest.mark.parametrize("words", PLAIN)
def test_every_method_equals_its_formula(words, kind, rng):
    """All candidates in one fit against one after the other, to 1e-9 of the models' size."""
    name, *more = words.split()
    more += ["privacy.shift=0.5"] if name in ("lr", "lr_sp") else []
    run = make_run(f"method={name}", "epsilon=5", "tuning.ridge=[0.01,0.1]", *grid(name), *more)
    data = ragged_data(rng, 6, 4, kind, low=8, high=14).unit_rows()
    datafit = datafit_for(data)
    problem = prepare(data, run.tuning, run.method, 0, 0)
    candidates = run.method.candidates(problem.scales)
    budget = run.budget(6)
    got = np.empty((len(candidates), *datafit.shape))
    for indices, W in run.method.fit(
        problem.datafit, problem.start, candidates, budget, np.random.default_rng(7)
    ):
        got[indices] = W
    average = datafit.average
    if name in SQUARED:
        data = replace(data, kind="regression")
        average = True
    T = max(c.as_row().get("n_rounds") or 1 for c in candidates)
    sizes = []
    for k in range(0, len(candidates), max(1, len(candidates) // 40)):
        draws = np.random.default_rng(7)
        want = PLAIN[words](run, data, average, problem.start.T, candidates[k], budget, draws, T)
        sizes.append(np.abs(want).max())
        assert np.abs(got[k].T - want).max() <= 1e-9 * sizes[-1], candidates[k]
    assert np.median(sizes) > 0


def test_every_method_is_compared():
    names = {p.stem for p in (ROOT / "conf/method").glob("*.yaml")}
    made_of_others = {"mtl", "stl_best"}
    elsewhere = {"fl", "fl_local", "fl_shared", "stl_local"}  # test_feature_learning.py
    assert {words.split()[0] for words in PLAIN} == names - made_of_others - elsewhere

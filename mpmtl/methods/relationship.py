r"""Task relations: `mtrl` (Zhang and Yeung 2010), `dp_mtrl` (Gupta, Rana, Venkatesh 2016) and `rl`
(Algorithm 1 with W'W); the first two are reconstructed.

.. math:: \min_{W, \Omega} \sum_i \frac1{n_i} \|y_i - X_i w_i\|^2 + \frac{\lambda_1}2 \text{tr}(WW')
    + \frac{\lambda_2}2 \text{tr}(W \Omega^{-1} W'), \quad \Omega \ge 0, \; \text{tr}\,\Omega = 1

With the best Omega = (W'W)^(1/2)/tr the last term is (lambda_2/2) ||W||_*^2.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.datafits import squared_loss
from mpmtl.methods.base import (
    K_UNITS,
    Candidate,
    Method,
    NoisyRelease,
    above_zero,
    at_least_zero,
    count,
    growth,
    one_of,
)
from mpmtl.methods.group_privacy import instance_budget
from mpmtl.methods.proximal import Proximal
from mpmtl.penalties import TraceNorm
from mpmtl.privacy.mechanisms import NoNoise
from mpmtl.privacy.statements import (
    NO_PROTECTION,
    NOISE_CAVEATS,
    Guarantee,
    PrivacyStatement,
)
from mpmtl.solvers.proximal import clip_norms

JITTER = 1e-6  # added to Omega before it is inverted
DIVERGED = 1e60  # noisy models beyond this are hopeless; larger ones would overflow


@dataclass
class Relation:
    r"""Inverse of Omega + 1e-6 I for a batch, never formed: (I - V diag(D) V')/c.

    With the thin singular value decomposition W' = V diag(s) U' and s scaled to sum 1,
    Omega = V diag(s) V', D = s/(s + c), c = 1e-6. The start is Omega = I/m: D = 0, c = 1/m.

    Attributes
    ----------
    V : ndarray, shape (B, m, k)
    D : ndarray, shape (B, k)
    c : float
    """

    V: np.ndarray
    D: np.ndarray
    c: float

    @classmethod
    def start(cls, B, m):
        return cls(np.zeros((B, m, 1)), np.zeros((B, 1)), 1 / m)

    @classmethod
    def of_models(cls, W):
        """Omega = (W'W)^(1/2) / tr of models with shape (B, m, d)."""
        V, s, _ = np.linalg.svd(W, full_matrices=False)
        total = s.sum(axis=1, keepdims=True)
        s = s / np.where(total > 0, total, 1)
        return cls(V, s / (s + JITTER), JITTER)

    @property
    def diagonal(self):
        """(Omega^-1)_ii, shape (B, m)."""
        return (1 - np.einsum("bmk,bk->bm", self.V**2, self.D)) / self.c

    def omega(self):
        """Omega itself, shape (B, m, m)."""
        if not self.D.any():
            m = self.V.shape[1]
            return np.broadcast_to(np.eye(m) / m, (len(self.V), m, m))
        s = self.c * self.D / (1 - self.D)
        return np.matmul(self.V * s[:, None, :], self.V.swapaxes(1, 2))


class TaskSolver:
    """Closed-form solutions of the tasks, from eigendecompositions made once."""

    def __init__(self, datafit):
        twice = 2 / np.maximum(datafit.n, 1)
        values, self.Q = np.linalg.eigh(twice[:, None, None] * datafit.gram)
        self.values = np.maximum(values, 0)
        self.b = twice[:, None] * datafit.xty

    def solve_all(self, shift):
        """[(2/n_i) X_i'X_i + shift_i I]^-1 (2/n_i) X_i'y_i of every task, shape (m, d)."""
        rotated = np.einsum("mdk,md->mk", self.Q, self.b)
        return np.einsum("mdk,mk->md", self.Q, rotated / (self.values + shift[:, None]))

    def solve(self, i, shift, right):
        """[(2/n_i) X_i'X_i + shift I]^-1 right for a batch: shift (B,), right (B, d)."""
        rotated = right @ self.Q[i]
        return (rotated / (self.values[i] + shift[:, None])) @ self.Q[i].T


def sweep(solver, W, relation, lam1, lam2, perturb):
    r"""One Gauss-Seidel pass over the tasks, in place.

    .. math:: w_i = \Bigl[\frac2{n_i} X_i'X_i + (\lambda_1 + \lambda_2 \Omega^{-1}_{ii}) I
        \Bigr]^{-1} \Bigl[\frac2{n_i} X_i'y_i - \lambda_2 \sum_{j \ne i} \Omega^{-1}_{ij} w_j
        \Bigr]

    Parameters
    ----------
    W : ndarray, shape (B, m, d)
    lam1, lam2 : ndarray, shape (B,)
    perturb : callable
        ``perturb(i, w, kappa)`` returns what task i releases instead of w, kappa = lambda_1 +
        lambda_2 Omega^-1_ii.
    """
    diagonal = relation.diagonal
    H = np.matmul(relation.V.swapaxes(1, 2), W)  # V'W, kept up to date
    for i in range(W.shape[1]):
        v, old = relation.V[:, i], W[:, i]
        whole = (old - np.matmul((relation.D * v)[:, None], H)[:, 0]) / relation.c
        others = whole - diagonal[:, i, None] * old
        kappa = lam1 + lam2 * diagonal[:, i]
        new = solver.solve(i, kappa, solver.b[i] - lam2[:, None] * others)
        new = perturb(i, new, kappa)
        H += v[:, :, None] * (new - old)[:, None]
        W[:, i] = new


@dataclass(frozen=True)
class TaskRelationsCandidate(Candidate):
    """lambda_1, lambda_2 and T of the solver."""

    lam1: float
    lam2: float
    n_rounds: int
    accelerated: ClassVar[bool] = True
    strongly_convex: ClassVar[bool] = False
    K: ClassVar[None] = None


@dataclass(frozen=True)
class TaskRelations(Proximal):
    r"""`mtrl`: the joint problem in W alone, by the common solver, squared loss.

    .. math:: \min_W \sum_i \frac1{2 n_i} \|y_i - X_i w_i\|^2 + \frac{\lambda_1}2 \|W\|_F^2
        + \frac{\lambda_2}2 \|W\|_*^2

    Alternating over W and Omega has the same minimum and needs thousands of rounds where tasks
    have about as many samples as features.

    Parameters
    ----------
    grid : dict
        lam1 in units of the averaged loss's L (0 is always among them); lam2 in units of the least
        that gives W = 0 for a matrix of rank one with rows of median norm; n_rounds.

    References
    ----------
    Zhang and Yeung (UAI 2010).
    """

    name: str = "mtrl"
    penalty: str = "squared_trace"
    private: bool = False
    init: str = "zero"
    settings: ClassVar[dict] = {
        "lam1": at_least_zero(0.1),
        "lam2": at_least_zero(0.1),
        "n_rounds": count(200),
    }

    def candidates(self, scales):
        gradient = TraceNorm().dual_norm(scales.gradient) / scales.samples
        size = scales.median_norm * np.sqrt(len(scales.gradient))  # of a matrix of rank one
        unit = float(gradient / size) if size > 0 else 1.0
        return [
            TaskRelationsCandidate(scales.averaged_lipschitz * lam1, unit * lam2, T)
            for lam2, T, lam1 in product(
                self.grid["lam2"], self.grid["n_rounds"], (0.0, *self.grid["lam1"])
            )
        ]

    def _weights(self, candidate):
        return candidate.lam2, candidate.lam1

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        for indices, W in super().fit(
            squared_loss(datafit, average=True), W0, candidates, budget, rng, log
        ):
            if log is not None:
                log.arrays["relation"] = Relation.of_models(W).omega()[0]
            yield indices, W


@dataclass(frozen=True)
class PrivateModelsCandidate(Candidate):
    """lambda_1, lambda_2, T and the growth alpha of the budgets."""

    lam1: float
    lam2: float
    n_rounds: int
    alpha: float


@dataclass(frozen=True)
class PrivateModels(Method):
    r"""`dp_mtrl`: alternate over noisy models and task relations, squared loss.

    In each of T rounds every solution w_i gets noise of density ~ exp(-eps_t ||b||_2 / S_i),
    S_i = 2 L_i/(n_i kappa_i), L_i = max_j |loss'(x_ij'w_i, y_ij)|, and Omega comes from the
    noisy models, which are the output. The budget is that of group privacy, the rounds compose by
    CB.

    Parameters
    ----------
    grid : dict
        lam1 in units of the averaged loss's 2L, lam2 in units of 2L/m; n_rounds; alpha.

    References
    ----------
    Gupta, Rana, Venkatesh (2016) as modified in Section 5.1 of the paper.
    """

    name: str
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "lam1": above_zero(1.0),
        "lam2": above_zero(0.1),
        "n_rounds": count(1),
        "alpha": growth(0.0),
    }
    private: ClassVar[bool] = True
    view: ClassVar[str] = "output"

    def candidates(self, scales):
        grid, unit = self.grid, 2 * scales.averaged_lipschitz
        m = len(scales.gradient)
        return [
            PrivateModelsCandidate(unit * lam1, unit * lam2 / m, T, alpha)
            for lam1, lam2, T, alpha in product(
                grid["lam1"], grid["lam2"], grid["n_rounds"], grid["alpha"]
            )
        ]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; without noise, candidates that differ in T share their rounds."""
        datafit = squared_loss(datafit, average=True)
        noisy = not isinstance(budget.mechanism, NoNoise)
        solver = TaskSolver(datafit)
        T = max(c.n_rounds for c in candidates)
        m, d = datafit.shape
        groups = {}
        for index, c in enumerate(candidates):
            key = (c.lam1, c.lam2) + ((c.alpha, c.n_rounds) if noisy else ())
            groups.setdefault(key, []).append(index)
        heads = [candidates[max(g, key=lambda i: candidates[i].n_rounds)] for g in groups.values()]
        lam1, lam2 = np.array([c.lam1 for c in heads]), np.array([c.lam2 for c in heads])
        W, relation = np.zeros((len(heads), m, d)), Relation.start(len(heads), m)
        scale = np.zeros((len(heads), T))
        for b, c in enumerate(heads):
            budgets = self.round_budgets(c, budget, datafit)
            scale[b, : c.n_rounds] = budget.mechanism.scale(budgets)
        for t in range(1, T + 1):
            noise = np.zeros_like(W[0])

            def perturb(i, w, kappa, t=t, noise=noise):
                if not noisy:
                    return w
                noise[i] = budget.mechanism.draw(rng, d, "output")
                slopes = np.abs(2 * (datafit.X[i] @ w.T - datafit.y[i][:, None]))
                L = slopes.max(axis=0, initial=0)
                sensitivity = 2 * L / (max(datafit.n[i], 1) * kappa)
                step = (sensitivity * scale[:, t - 1])[:, None] * noise[i]
                noise[i] = step[0]
                return np.clip(w + step, -DIVERGED, DIVERGED)

            sweep(solver, W, relation, lam1, lam2, perturb)
            if log is not None and noisy:
                quiet = W[0] - noise
                signal = quiet @ quiet.T
                log.add_round(W[0] @ W[0].T - signal, signal, W[0])
            for b, group in enumerate(groups.values()):
                done = [i for i in group if candidates[i].n_rounds == t]
                if done:
                    yield np.array(done), np.repeat(W[b : b + 1], len(done), axis=0)
            if t < T or log is not None:
                relation = Relation.of_models(W)
        if log is not None:
            log.arrays["relation"] = relation.omega()[0]

    def round_budgets(self, candidate, budget, datafit):
        return instance_budget(budget, datafit).of_rounds(candidate)

    def statement(self, candidate, budget, datafit):
        if isinstance(budget.mechanism, NoNoise):
            return NO_PROTECTION
        claimed = Guarantee(
            budget.epsilon, budget.delta, "Propositions 2 and 3 of the paper (group privacy)"
        )
        return PrivacyStatement(
            budget.mechanism.name, claimed, None, ("data-dependent-lipschitz", *NOISE_CAVEATS)
        )


@dataclass(frozen=True)
class PrivateRelationsCandidate(PrivateModelsCandidate):
    """Those of `PrivateModels`, and the clipping norm K."""

    K: float


@dataclass(frozen=True)
class PrivateRelations(Method):
    r"""`rl`: Algorithm 1 with W'W. Tasks learn how strongly to shrink from private relations.

    A round clips the models, releases Sigma = W~'W~ + E (m x m), makes Omega = Sigma_+^(1/2)/tr and
    lets every task solve

    .. math:: w_i = \Bigl[\frac2{n_i} X_i'X_i + (\lambda_1 + \lambda_2 \Omega^{-1}_{ii}) I
        \Bigr]^{-1} \frac2{n_i} X_i'y_i.

    The cross terms of the MTRL step are left out: they need the other tasks' models, which the
    release does not hold.

    The Frobenius sensitivity of W'W is 2 sqrt(2) sqrt(m-1) K^2 (m >= 2): a replaced task
    changes a whole row and column.

    Parameters
    ----------
    grid : dict
        lam1 in units of the averaged loss's 2L, lam2 in units of 2L/m; n_rounds; alpha; K in
        ``K_unit`` ("median": of the norm of separate models, or "absolute").
    """

    name: str
    K_unit: str = "median"
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "lam1": at_least_zero(0.1),
        "lam2": above_zero(0.1),
        "n_rounds": count(1),
        "alpha": growth(0.0),
        "K": above_zero(1.0),
    }
    private: ClassVar[bool] = True
    view: ClassVar[str] = "relation"

    def __post_init__(self):
        super().__post_init__()
        one_of("K_unit", self.K_unit, K_UNITS)

    def candidates(self, scales):
        grid, unit = self.grid, 2 * scales.averaged_lipschitz
        m = len(scales.gradient)
        Ks = [scales.K_unit(self.K_unit) * K for K in grid["K"]]
        return [
            PrivateRelationsCandidate(unit * lam1, unit * lam2 / m, T, alpha, K)
            for lam1, lam2, T, alpha, K in product(
                grid["lam1"], grid["lam2"], grid["n_rounds"], grid["alpha"], Ks
            )
        ]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        datafit = squared_loss(datafit, average=True)
        solver = TaskSolver(datafit)
        m = datafit.shape[0]
        T = max(c.n_rounds for c in candidates)
        draws = [budget.mechanism.draw(rng, m, "relation") for _ in range(T)]
        shift = budget.mechanism.shift * budget.mechanism.spectral_norm(m, "full")
        for index, c in enumerate(candidates):
            release = NoisyRelease(draws, self.noise_scale(c, budget, m)[None], shift, log)
            W = W0[None]
            for t in range(1, c.n_rounds + 1):
                clipped = clip_norms(W, np.array([c.K]))
                Sigma = release(t, np.matmul(clipped, clipped.swapaxes(1, 2)))
                omega, relation = _relation(Sigma[0])
                W = solver.solve_all(c.lam1 + c.lam2 * relation.diagonal[0])[None]
            if log is not None:
                log.arrays["relation"] = omega
            yield np.array([index]), W

    def noise_scale(self, candidate, budget, m):
        """Noise scale of each round: K^2/(2 eps_t), or s = 2 sqrt(m-1) K^2/mu_t (Gaussian)."""
        scale = candidate.K**2 * budget.mechanism.scale(budget.of_rounds(candidate))
        if budget.mechanism.name == "gaussian":
            scale = scale * 2 * np.sqrt(max(m - 1, 1))
        return scale

    def statement(self, candidate, budget, datafit):
        rounds = budget.of_rounds(candidate)
        m = datafit.shape[0]
        return budget.mechanism.statement(budget.epsilon, budget.delta, rounds, m, self.view)


def _relation(Sigma):
    """Omega = Sigma_+^(1/2)/tr, and its inverse as a `Relation` batch of one."""
    values, V = np.linalg.eigh(Sigma)
    s = np.sqrt(np.maximum(values, 0))
    s = s / s.sum() if s.any() else np.full_like(s, 1 / len(s))
    return (V * s) @ V.T, Relation(V[None], (s / (s + JITTER))[None], JITTER)

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
    above_zero,
    at_least_zero,
    count,
    growth,
    one_of,
    public_or_data,
)
from mpmtl.methods.group_privacy import group_claim, instance_budget
from mpmtl.methods.proximal import Proximal
from mpmtl.penalties import TraceNorm
from mpmtl.privacy.releases import relation, unbounded_output
from mpmtl.solvers.relations import JITTER, Relation, TaskSolver, sweep

DIVERGED = 1e60  # noisy models beyond this are hopeless; larger ones would overflow


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
    eta : "public" or None
        L from a public bound on the rows instead of all tasks' data.
    grid : dict
        lam1 in units of the averaged loss's 2L, lam2 in units of 2L/m; n_rounds; alpha.

    References
    ----------
    Gupta, Rana, Venkatesh (2016) as modified in Section 5.1 of the paper.
    """

    name: str
    eta: str | None = None
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

    def __post_init__(self):
        super().__post_init__()
        public_or_data(self.eta)

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
        noisy = not budget.free
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
            scale[b, : c.n_rounds] = budget.mechanism.scale(budgets, 1.0)
        for t in range(1, T + 1):
            noise = np.zeros_like(W[0])

            def perturb(i, w, kappa, t=t, noise=noise):
                if not noisy:
                    return w
                noise[i] = budget.mechanism.draw(rng, unbounded_output(d))
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
        return group_claim(budget, budget.delta, ("data-dependent-lipschitz", *self.caveats))


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

    A replaced task changes a whole row and column of W'W (`releases.relation`).

    Parameters
    ----------
    eta : "public" or None
        L from a public bound on the rows, and K as it is, instead of all tasks' data.
    grid : dict
        lam1 in units of the averaged loss's 2L, lam2 in units of 2L/m; n_rounds; alpha; K in
        ``K_unit`` ("median": of the norm of separate models, or "absolute").
    """

    name: str
    K_unit: str = "median"
    eta: str | None = None
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
    uses_start: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        one_of("K_unit", self.K_unit, K_UNITS)
        public_or_data(self.eta)

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
        gate = budget.open(relation(m), T, rng, log=log)
        for index, c in enumerate(candidates):
            rounds, W = gate.with_budgets(budget.of_rounds(c)), W0
            for t in range(1, c.n_rounds + 1):
                omega, inverse = _relation(rounds.shifted(t, rounds(t, W, c.K), c.K))
                W = solver.solve_all(c.lam1 + c.lam2 * inverse.diagonal[0])
            if log is not None:
                log.arrays["relation"] = omega
            yield np.array([index]), W[None]

    def gates(self, candidate, budget, datafit):
        return (budget.planned(relation(datafit.shape[0]), budget.of_rounds(candidate)),)


def _relation(Sigma):
    """Omega = Sigma_+^(1/2)/tr, and its inverse as a `Relation` batch of one."""
    values, V = np.linalg.eigh(Sigma)
    s = np.sqrt(np.maximum(values, 0))
    s = s / s.sum() if s.any() else np.full_like(s, 1 / len(s))
    return (V * s) @ V.T, Relation(V[None], (s / (s + JITTER))[None], JITTER)

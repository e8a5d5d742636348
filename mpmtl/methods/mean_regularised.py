"""`mr_mtl`: mean-regularised multi-task learning with task-level privacy (Hu, Wu, Smith 2021)."""

from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.methods.base import (
    K_UNITS,
    Candidate,
    Method,
    above_zero,
    at_least_zero,
    count,
    one_of,
    public_or_data,
)
from mpmtl.methods.proximal import by_round
from mpmtl.privacy.releases import vector_sum
from mpmtl.solvers.single_task import ridge_solver

HEADS = 8  # rounds whose last solves run together


@dataclass(frozen=True)
class MeanRegularisedCandidate(Candidate):
    """lambda of the rounds and of the last solve, clipping norm gamma, rounds T."""

    lam: float
    lam_final: float
    gamma: float
    n_rounds: int


@dataclass(frozen=True)
class MeanRegularised(Method):
    r"""Local models pulled towards a common mean that is learned privately.

    .. math:: \min \sum_i L_i(w_i) + \frac\lambda2 \|w_i - w_0\|^2

    Round: delta_i = w_i - w_0 scaled to a norm of at most gamma; w_0 <- w_0 + (the noisy sum of the
    delta_i)/m; start w_0 = 0. With Gaussian noise sigma_t = 2 gamma/(m mu_t) on the mean. The last
    solve has a lambda of its own.

    Parameters
    ----------
    eta : "public" or None
        L from a public bound on the rows, and gamma as it is, instead of all tasks' data.
    grid : dict
        lam and lam_final in units of L; gamma in ``K_unit`` ("median": of the norm of separate
        models, or "absolute"); n_rounds.

    References
    ----------
    Hu, Wu, Smith, arXiv 2108.12978.
    """

    name: str
    K_unit: str = "median"
    eta: str | None = None
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "lam": at_least_zero(0.1),
        "lam_final": at_least_zero(0.1),
        "gamma": above_zero(1.0),
        "n_rounds": count(1),
    }
    private: ClassVar[bool] = True
    by_chunks: ClassVar[bool] = True
    view: ClassVar[str] = "sum"

    def __post_init__(self):
        super().__post_init__()
        one_of("K_unit", self.K_unit, K_UNITS)
        public_or_data(self.eta)

    def candidates(self, scales):
        lams, finals = (
            [scales.lipschitz * lam for lam in self.grid[key]] for key in ("lam", "lam_final")
        )
        gammas = [scales.K_unit(self.K_unit) * gamma for gamma in self.grid["gamma"]]
        return [
            MeanRegularisedCandidate(lam, final, gamma, T)
            for lam, T, gamma, final in product(lams, self.grid["n_rounds"], gammas, finals)
        ]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; candidates that differ in the last lambda share their rounds, and
        those of one lambda the first local models."""
        m, d = datafit.shape
        solve = ridge_solver(datafit)
        first = list(dict.fromkeys(c.lam for c in candidates))
        first = dict(zip(first, solve(first, start=np.zeros((len(first), m, d))), strict=True))
        groups = {}
        for index, c in enumerate(candidates):
            groups.setdefault((c.n_rounds, c.lam, c.gamma), []).append(index)
        gate = budget.open(vector_sum(d), max(c.n_rounds for c in candidates), rng, log=log)
        for n_rounds in sorted({key[0] for key in groups}):
            together = [key for key in groups if key[0] == n_rounds]
            lams = np.array([lam for _, lam, _ in together])
            gamma = np.array([norm for _, _, norm in together])
            heads = [candidates[groups[key][0]] for key in together]
            rounds = gate.with_budgets(by_round(heads, budget.of_rounds))
            w0, W = np.zeros((len(together), d)), np.stack([first[lam] for lam in lams])
            for t in range(1, n_rounds + 1):
                if t > 1:
                    W = solve(lams, w0, W)
                w0 = w0 + rounds(t, W - w0[:, None], gamma) / m
            of_head = [groups[key] for key in together]
            for first_head in range(0, len(together), HEADS):
                heads = range(first_head, min(first_head + HEADS, len(together)))
                indices = np.concatenate([of_head[b] for b in heads])
                b = np.repeat(heads, [len(of_head[b]) for b in heads])
                last = np.array([candidates[i].lam_final for i in indices])
                yield indices, solve(last, w0[b], W[b])

    def gates(self, candidate, budget, datafit):
        return (budget.planned(vector_sum(datafit.shape[1]), budget.of_rounds(candidate)),)

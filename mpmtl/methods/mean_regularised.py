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
)
from mpmtl.solvers.proximal import clip_norms
from mpmtl.solvers.single_task import ridge_solver


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

    Round: delta_i = w_i - w_0 scaled to a norm of at most gamma;
    w_0 <- w_0 + mean_i delta_i + N(0, sigma_t^2 I), sigma_t = 2 gamma/(m mu_t); start w_0 = 0. The
    last solve has a lambda of its own. Replacing a task moves the mean by at most
    2 gamma/m, so a round is mu_t-GDP and the rounds compose exactly.

    Parameters
    ----------
    grid : dict
        lam and lam_final in units of L; gamma in ``K_unit`` ("median": of the norm of separate
        models, or "absolute"); n_rounds.

    References
    ----------
    Hu, Wu, Smith, arXiv 2108.12978.
    """

    name: str
    K_unit: str = "median"
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "lam": at_least_zero(0.1),
        "lam_final": at_least_zero(0.1),
        "gamma": above_zero(1.0),
        "n_rounds": count(1),
    }
    private: ClassVar[bool] = True
    view: ClassVar[str] = "vector"

    def __post_init__(self):
        super().__post_init__()
        one_of("K_unit", self.K_unit, K_UNITS)

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
        first = dict.fromkeys(c.lam for c in candidates)
        first = dict(zip(first, solve(list(first)), strict=True))
        groups = {}
        for index, c in enumerate(candidates):
            groups.setdefault((c.n_rounds, c.lam, c.gamma), []).append(index)
        T = max(c.n_rounds for c in candidates)
        draws = [budget.mechanism.draw(rng, d, self.view) for _ in range(T)]
        for n_rounds in sorted({key[0] for key in groups}):
            together = [key for key in groups if key[0] == n_rounds]
            lams = np.array([lam for _, lam, _ in together])
            gamma = np.array([norm for _, _, norm in together])
            budgets = budget.of_rounds(candidates[groups[together[0]][0]])
            sigma = 2 * gamma[:, None] / m * budget.mechanism.scale(budgets)
            w0, W = np.zeros((len(together), d)), np.stack([first[lam] for lam in lams])
            for t in range(n_rounds):
                if t > 0:
                    W = solve(lams, w0, W)
                mean = clipped_mean(W - w0[:, None], gamma)
                noise = sigma[:, t, None] * draws[t]
                if log is not None:
                    log.add_round(noise[0], mean[0])
                w0 = w0 + mean + noise
            for b, key in enumerate(together):
                last = np.array([candidates[i].lam_final for i in groups[key]])
                center = np.repeat(w0[b : b + 1], len(last), axis=0)
                near = np.repeat(W[b : b + 1], len(last), axis=0)
                yield np.array(groups[key]), solve(last, center, near)

    def statement(self, candidate, budget, datafit):
        rounds = budget.of_rounds(candidate)
        return budget.mechanism.statement(budget.epsilon, budget.delta, rounds, None, self.view)


def clipped_mean(delta, gamma):
    """Mean over tasks of vectors scaled to a norm of at most gamma; delta (B, m, d), gamma (B,)."""
    return clip_norms(delta, gamma).mean(axis=1)

"""Averages of local models: `aggr` and `dp_aggr` (Pathak, Rane, Raj 2010), reconstructed."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mpmtl.datafits import LogisticLoss
from mpmtl.methods.base import Candidate, Method, above_zero, one_of
from mpmtl.methods.group_privacy import instance_budget
from mpmtl.privacy.mechanisms import NoNoise, sphere_noise
from mpmtl.privacy.statements import (
    NO_PROTECTION,
    NOISE_CAVEATS,
    Guarantee,
    PrivacyStatement,
)
from mpmtl.solvers.single_task import ridge_path


@dataclass(frozen=True)
class AverageCandidate(Candidate):
    """lambda of the local models, whose loss is averaged."""

    lam: float


@dataclass(frozen=True)
class Average(Method):
    r"""All tasks get the mean of the local models, plus noise if private.

    .. math:: \hat w = \frac1m \sum_i \arg\min_w \frac1{n_i} \sum_j \ell(x_{ij}'w, y_{ij})
        + \frac\lambda2 \|w\|^2 + b, \quad b_j \sim \text{Laplace}\bigl(2/(n_{\min} \epsilon'
        \lambda)\bigr)

    with eps' = epsilon/n, n = max n_i (group privacy), T = 1 and delta = 0.

    Parameters
    ----------
    private : bool
    noise : {"laplace", "l2"}
        Independent Laplace entries (published), or a density ~ exp(-||b||_2/scale), for which
        2/(n lambda) is the l2 sensitivity.
    grid : dict
        lam, in units of the averaged loss's L.

    References
    ----------
    Section 4.1 of the paper; Pathak, Rane, Raj (NeurIPS 2010).
    """

    name: str
    private: bool
    noise: str = "laplace"
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {"lam": above_zero(1.0)}
    view: ClassVar[str] = "output"

    def __post_init__(self):
        super().__post_init__()
        one_of("noise", self.noise, ("laplace", "l2"))

    def candidates(self, scales):
        return [AverageCandidate(scales.averaged_lipschitz * lam) for lam in self.grid["lam"]]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        averaged = replace(datafit, average=True)
        means = ridge_path(averaged, [c.lam for c in candidates]).mean(axis=1)
        scale = self.noise_scale(datafit, candidates, budget)
        d = datafit.shape[1]
        b = rng.laplace(size=d) if self.noise == "laplace" else sphere_noise(rng, (d,))
        if log is not None and self.private:
            log.add_round(scale[0] * b, means[0])
        released = means + scale[:, None] * b
        yield np.arange(len(candidates)), np.repeat(released[:, None], datafit.shape[0], axis=1)

    def noise_scale(self, datafit, candidates, budget):
        """2/(n_min eps' lambda) of each candidate; 0 without noise."""
        if not self.private or isinstance(budget.mechanism, NoNoise):
            return np.zeros(len(candidates))
        eps = instance_budget(budget, datafit).epsilon
        n_min = datafit.n[datafit.n > 0].min()  # the model of a task without samples is always zero
        return np.array([2 / (n_min * eps * c.lam) for c in candidates])

    def round_budgets(self, candidate, budget, datafit):
        return [instance_budget(budget, datafit).epsilon]

    def statement(self, candidate, budget, datafit):
        """Proved for the logistic loss with rows of norm at most 1; else claimed.

        The l2 sensitivity of a local model is 2/(n_i lambda), that of the mean 2/(m n_i lambda).
        With independent Laplace entries sqrt(d) <= m makes the l1 sensitivity small enough too.
        """
        if isinstance(budget.mechanism, NoNoise) or not self.private:
            return NO_PROTECTION
        epsilon = budget.epsilon
        claimed = Guarantee(epsilon, 0.0, "Propositions 2 and 3 of the paper (group privacy)")
        m, d = datafit.shape
        bounded = isinstance(datafit, LogisticLoss) and all(
            (X**2).sum(axis=1).max() <= 1 + 1e-9 for X in datafit.X
        )
        if bounded and (self.noise == "l2" or np.sqrt(d) <= m):
            proof = Guarantee(epsilon, 0.0, "output perturbation and group privacy")
            return PrivacyStatement(budget.mechanism.name, None, proof, NOISE_CAVEATS)
        caveats = ("unbounded-loss", *NOISE_CAVEATS)
        return PrivacyStatement(budget.mechanism.name, claimed, None, caveats)

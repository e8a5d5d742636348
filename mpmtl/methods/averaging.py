"""Averages of local models: `aggr` and `dp_aggr` (Pathak, Rane, Raj 2010), reconstructed."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mpmtl.datafits import LogisticLoss
from mpmtl.methods.base import Candidate, Method, above_zero, one_of, public_or_data
from mpmtl.methods.group_privacy import group_claim, instance_budget, public_sizes
from mpmtl.privacy.mechanisms import Laplace, OutputPerturbation
from mpmtl.privacy.releases import vector_sum
from mpmtl.privacy.statements import NO_PROTECTION, RELATION_OF_KNOWN_SIZE
from mpmtl.solvers.single_task import ridge_solver


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

    with eps' = epsilon/n, n = max n_i (group privacy), T = 1 and delta = 0. Sizes n_i are public.

    *Logistic loss.* With rows of norm at most 1 the derivative bounds a local model by 1/lambda,
    and the gate does; so the published noise is that of a pure release of their sum with some
    eps_b <= epsilon, which is proved. *Squared loss*: nothing bounds the models; claimed only.

    Parameters
    ----------
    private : bool
    noise : {"laplace", "l2"}
        Independent Laplace entries (published), or a density ~ exp(-||b||_2/scale), for which
        2/(n lambda) is the l2 sensitivity.
    eta : "public" or None
        L from a public bound on the rows instead of all tasks' data.
    grid : dict
        lam, in units of the averaged loss's L.

    References
    ----------
    Section 4.1 of the paper; Pathak, Rane, Raj (NeurIPS 2010).
    """

    name: str
    private: bool
    noise: str = "laplace"
    eta: str | None = None
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {"lam": above_zero(1.0)}
    view: ClassVar[str] = "output"

    def __post_init__(self):
        super().__post_init__()
        one_of("noise", self.noise, ("laplace", "l2"))
        public_or_data(self.eta)

    def candidates(self, scales):
        return [AverageCandidate(scales.averaged_lipschitz * lam) for lam in self.grid["lam"]]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        m, d = datafit.shape
        lams = np.array([c.lam for c in candidates])
        models = ridge_solver(replace(datafit, average=True))(lams)  # strongly convex in all of w
        if not self.private or budget.free:
            mean = models.mean(axis=1)
        elif isinstance(datafit, LogisticLoss):
            gate = self._inner(budget).open(vector_sum(d), 1, rng, log=log)
            mean = gate.with_budgets([self.spent(datafit, budget)])(1, models, 1 / lams) / m
        else:
            b = self._inner(budget).mechanism.draw(rng, vector_sum(d))
            n_min, _ = public_sizes(datafit)
            noise = 2 / (n_min * instance_budget(budget, datafit).epsilon * lams)[:, None] * b
            mean = models.mean(axis=1) + noise
            if log is not None:
                log.add_round(noise[0], mean[0] - noise[0])
        yield np.arange(len(candidates)), np.repeat(mean[:, None], m, axis=1)

    def _inner(self, budget):
        noise = Laplace() if self.noise == "laplace" else OutputPerturbation()
        return replace(budget, mechanism=noise, delta=0.0)

    def spent(self, datafit, budget):
        r"""eps_b for which the published noise is that of the gate.

        A release of the sum with the bound K = 1/lambda and budget eps_b has noise of scale
        S K/eps_b, S the sensitivity for K = 1; the published one is m 2/(n_min eps' lambda).
        """
        n_min, _ = public_sizes(datafit)
        m, d = datafit.shape
        sensitivity = getattr(vector_sum(d), self._inner(budget).mechanism.norm)
        return sensitivity * n_min * instance_budget(budget, datafit).epsilon / (2 * m)

    def round_budgets(self, candidate, budget, datafit):
        return [instance_budget(budget, datafit).epsilon]

    def statement(self, candidate, budget, datafit):
        """Proved for the logistic loss unless d is out of all proportion to m; else claimed."""
        if budget.free or not self.private:
            return NO_PROTECTION
        m, d = datafit.shape
        spent = self.spent(datafit, budget)
        if not isinstance(datafit, LogisticLoss):
            return group_claim(budget, 0.0, ("unbounded-loss", *self.caveats))
        if spent > budget.epsilon:
            return group_claim(budget, 0.0, self.caveats)
        inner = self._inner(budget)
        block = inner.statement(
            inner.planned(vector_sum(d), [spent]),
            relation=RELATION_OF_KNOWN_SIZE,
            m=m,
            caveats=self.caveats,
        )
        return replace(block, mechanism=budget.mechanism.name)

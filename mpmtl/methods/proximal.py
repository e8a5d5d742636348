"""Algorithms 2, 3 and 5 and their non-private relatives."""

from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.base import (
    K_UNITS,
    LAM_UNITS,
    Candidate,
    Method,
    above_zero,
    at_least_zero,
    count,
    flag,
    growth_or_theory,
    one_of,
    ratio_or_theory,
)
from mpmtl.penalties import penalty_named
from mpmtl.privacy.mechanisms import OutputPerturbation
from mpmtl.privacy.releases import Budget, covariance, diagonal, sample_models
from mpmtl.privacy.statements import NO_PROTECTION, Guarantee
from mpmtl.solvers.proximal import Projection, Rounds, proximal_rounds

PATH_SETTINGS = {"lam": at_least_zero(0.1), "n_rounds": count(1)}
ROUNDS_SETTINGS = PATH_SETTINGS | {
    "accelerated": flag(False),
    "strongly_convex": flag(False),
    "alpha": growth_or_theory(0.0),
    "Q": ratio_or_theory(1.0),
    "K": above_zero(1.0),
}
BLOCK = 16  # candidates that run together; larger blocks no longer fit the cache


@dataclass(frozen=True)
class PathCandidate(Candidate):
    """Without noise: lambda and T of the accelerated convex form."""

    lam: float
    n_rounds: int
    accelerated: ClassVar[bool] = True
    strongly_convex: ClassVar[bool] = False
    K: ClassVar[None] = None


@dataclass(frozen=True)
class ProximalCandidate(Candidate):
    """lambda, T, the form of the rounds, alpha or Q of the allocation, clipping norm K."""

    lam: float
    n_rounds: int
    accelerated: bool
    strongly_convex: bool
    alpha: float | None = None
    Q: float | None = None
    K: float | None = None


@dataclass(frozen=True)
class Proximal(Method):
    """Algorithms 2 and 3 (`lr`, `gs`) and their non-private relatives (`mtl_lr`, `mtl_gs`).

    Parameters
    ----------
    name : str
    penalty : {"trace", "l21"}
    private : bool
        Whether the covariance is released by the privacy mechanism; without it the accelerated
        convex form is used, as in the paper.
    init : {"stl", "zero"}
        W^(0).
    clip : {"auto", "models", "covariance"}
        Clip the models (the paper), or only inside the covariance (same guarantee); "auto" is the
        latter where tasks have an intercept: a clipped model loses its level.
    negative : {"abs", "clip"}
        sqrt(|Lambda|) or sqrt(max(Lambda, 0)) of a noisy covariance.
    mu : float
        Strong convexity added where it is considered.
    eta : float, "public" or None
        Step size; None is 1/L, L the largest over all tasks' data; "public" is 1/L with L from a
        public bound on the rows.
    loss_average : bool or None
        Average a task's loss over its samples; None: no for squared, yes for logistic.
    instance_protection : dict or None
        ``{"epsilon": e}``: Algorithm 5, noise on every clipped model, which protects a single
        sample with budget e besides.
    grid : dict
        lam in ``lam_unit`` ("max": of the smallest lambda that gives W = 0, or "absolute") and
        n_rounds; if private also accelerated, strongly_convex, alpha (convex) and Q (strongly
        convex), which may be "theory", and K in ``K_unit`` ("median": of the norm of separate
        models, or "absolute").
    """

    name: str
    penalty: str
    private: bool
    init: str = "stl"
    clip: str = "auto"
    negative: str = "abs"
    mu: float = 1e-3
    eta: float | str | None = None
    loss_average: bool | None = None
    instance_protection: dict | None = None
    lam_unit: str = "max"
    K_unit: str = "median"
    grid: dict = field(default_factory=dict)
    starts: ClassVar[tuple] = ("stl", "zero")
    by_chunks: ClassVar[bool] = True
    parts: ClassVar[int] = 1  # parts of a decomposed model, which share its gradient

    def __post_init__(self):
        super().__post_init__()
        penalty_named(self.penalty)
        given = self.instance_protection
        require(
            given is None or (isinstance(given, dict) and set(given) == {"epsilon"}),
            f"instance_protection = {given}: give its epsilon, and nothing else",
        )
        if self.instance_epsilon is not None:
            require(self.private, f"instance_protection needs a private method, not {self.name}")
            require(
                isinstance(self.instance_epsilon, int | float)
                and 0 < self.instance_epsilon < np.inf,
                f"instance_protection.epsilon = {self.instance_epsilon} must be finite and above 0",
            )
        for key, allowed in (
            ("init", self.starts),
            ("clip", ("auto", "models", "covariance")),
            ("negative", ("abs", "clip")),
            ("lam_unit", LAM_UNITS),
            ("K_unit", K_UNITS),
        ):
            one_of(key, getattr(self, key), allowed)
        require(0 < self.mu < np.inf, f"mu = {self.mu} must be finite and above 0")
        eta = self.eta
        ok = eta in (None, "public") or (isinstance(eta, int | float) and 0 < eta < np.inf)
        require(ok, f"eta = {eta} must be finite and above 0, or public, or null")

    @property
    def settings(self):
        """Without noise the form is fixed: accelerated and convex."""
        return ROUNDS_SETTINGS if self.private else PATH_SETTINGS

    @property
    def uses_start(self):
        """W^(0) is zero without noise, the separate models with it."""
        return self.init != "zero"

    @property
    def instance_epsilon(self):
        """Budget that protects a single sample, or None."""
        return (self.instance_protection or {}).get("epsilon")

    @property
    def view(self):
        """What crosses: "covariance" or "diagonal"."""
        return penalty_named(self.penalty).view

    def release(self, d):
        """What a round releases of models with d features."""
        return {"covariance": covariance, "diagonal": diagonal}[self.view](d)

    def candidates(self, scales):
        grid = self.grid
        unit = scales.lam_unit(penalty_named(self.penalty), self.lam_unit)
        lams = [unit * lam for lam in grid["lam"]]
        if not self.private:
            return [PathCandidate(lam, T) for lam, T in product(lams, grid["n_rounds"])]
        Ks = [scales.K_unit(self.K_unit) * K for K in grid["K"]]
        mu_over_L = self.mu / (scales.lipschitz + self.mu)
        candidates = []
        for accelerated, strongly in product(grid["accelerated"], grid["strongly_convex"]):
            key = "Q" if strongly else "alpha"
            for lam, T, K, rate in product(lams, grid["n_rounds"], Ks, grid[key]):
                if rate == "theory":
                    rate = theory_rate(accelerated, strongly, mu_over_L)
                candidates.append(
                    ProximalCandidate(lam, T, accelerated, strongly, K=K, **{key: rate})
                )
        return candidates

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)`` for every candidate; see the module's docstring.

        Candidates that differ only in T share a trajectory where the noise does not depend on T.
        """
        trajectories = {}
        for index, c in enumerate(candidates):
            row = c.as_row()
            if budget.free:
                row |= dict.fromkeys(("alpha", "Q", "n_rounds"))
            trajectories.setdefault(tuple(row.values()), []).append(index)
        longest = [
            max(group, key=lambda i: candidates[i].n_rounds) for group in trajectories.values()
        ]
        order = sorted(
            zip(longest, trajectories.values(), strict=True),
            key=lambda item: -candidates[item[0]].n_rounds,
        )
        shared = self._shared(datafit, candidates[order[0][0]].n_rounds, budget, rng, log=log)
        blocks = iter(order)
        while block := list(islice(blocks, BLOCK)):
            yield from self._fit_block(datafit, W0, candidates, block, budget, shared, log)

    def trajectories(self, datafit, W0, candidate, budget, rng, size):
        """Yield the models after each round of `size` fits, each with noise of its own.

        Shape (size, m, d); what an audit needs many of.
        """
        shared = self._shared(datafit, candidate.n_rounds, budget, rng, (size,))
        return self._run(datafit, W0, [candidate] * size, budget, shared, None)

    def _shared(self, datafit, n_rounds, budget, rng, size=(), log=None):
        """Gates and the Lipschitz constant, the same for all candidates of a fit."""
        gate = own = None
        if self.private:
            gate = budget.open(self.release(datafit.shape[1]), n_rounds, rng, size, log)
        if self.instance_epsilon is not None:
            own = self.sample_budget.open(sample_models(*datafit.shape), n_rounds, rng, size)
        return gate, own, self.lipschitz(datafit)

    @property
    def sample_budget(self):
        """Budget of Algorithm 5, which protects a single sample besides."""
        return Budget(OutputPerturbation(), self.instance_epsilon, 0.0)

    def lipschitz(self, datafit):
        """L of the loss in all parts together, or 1/eta where the step is given; never zero."""
        if self.eta in (None, "public"):
            return self.parts * (datafit.lipschitz() or 1.0)
        return 1 / self.eta

    def rounds(self, heads, lipschitz):
        """Settings of the rounds of the candidates that run together."""
        lam, ridge = np.array([self._weights(c) for c in heads], dtype=float).T
        return Rounds(
            lam=lam,
            n_rounds=np.array([c.n_rounds for c in heads]),
            accelerated=np.array([c.accelerated for c in heads]),
            strongly_convex=np.array([c.strongly_convex for c in heads]),
            K=np.array([np.inf if c.K is None else c.K for c in heads], dtype=float),
            mu=self.mu,
            lipschitz=lipschitz,
            ridge=ridge,
        )

    def _fit_block(self, datafit, W0, candidates, block, budget, shared, log):
        heads, groups = [candidates[head] for head, _ in block], [group for _, group in block]
        done = {}
        for b, group in enumerate(groups):
            for index in group:
                done.setdefault(candidates[index].n_rounds, []).append((index, b))
        steps = self._run(datafit, W0, heads, budget, shared, log)
        for t, W_hat in enumerate(steps, start=1):
            if t in done:
                indices, rows = zip(*done[t], strict=True)
                yield np.array(indices), W_hat[list(rows)]

    def _run(self, datafit, W0, heads, budget, shared, log):
        """Models after each round, for the candidates that run together, from their settings."""
        gate, own, lipschitz = shared
        rounds = self.rounds(heads, lipschitz)
        release = perturb = None
        if self.private:
            gate = gate.with_budgets(by_round(heads, budget.of_rounds))

            def release(t, W):
                K = rounds.K[: len(W)]
                return gate.shifted(t, gate(t, W, K), K)

        if self.instance_epsilon is not None:
            own = own.with_budgets(by_round(heads, self.sample_budget.of_rounds))

            def perturb(t, W):
                return own(t, W, rounds.K[: len(W)])

        return self._steps(datafit, W0, heads, rounds, release, perturb, log)

    def _weights(self, candidate):
        """Weights of a candidate's norm and of a ridge penalty besides."""
        return candidate.lam, 0.0

    def _steps(self, datafit, W0, heads, rounds, release, perturb, log):
        """Models after each round, for the candidates that run together."""
        start = W0 if self.init == "stl" else np.zeros_like(W0)
        project = self._projection(datafit, release)
        return proximal_rounds(datafit, project, start, rounds, perturb)

    def clips(self, datafit):
        """What is clipped, "models" or "covariance"."""
        if self.clip != "auto":
            return self.clip
        return "covariance" if datafit.intercept else "models"

    def _projection(self, datafit, release):
        clip = self.clips(datafit)
        return Projection(penalty_named(self.penalty), release, clip, self.negative)

    def gates(self, candidate, budget, datafit):
        return (budget.planned(self.release(datafit.shape[1]), budget.of_rounds(candidate)),)

    def statement(self, candidate, budget, datafit):
        """Statement for a fit with the candidate's rounds."""
        if not self.private:
            return NO_PROTECTION
        block = super().statement(candidate, budget, datafit)
        if self.instance_epsilon is None:
            return block
        basis = "Algorithm 5 with the corrected density; a sample, neighbours replace one sample"
        instance = Guarantee(float(self.instance_epsilon), 0.0, basis)
        caveats = tuple(dict.fromkeys((*block.caveats, *self.caveats)))  # its noise is seeded
        return replace(block, instance=instance, caveats=caveats)


def by_round(candidates, of_rounds):
    """Budgets of the rounds of each candidate, shape (B, T); inf where it has no such round."""
    budgets = np.full((len(candidates), max(c.n_rounds for c in candidates)), np.inf)
    for b, c in enumerate(candidates):
        budgets[b, : c.n_rounds] = of_rounds(c)
    return budgets


def theory_rate(accelerated, strongly_convex, mu_over_L, pure=False):
    """The paper's optimal alpha (convex) or Q (strongly convex), Theorem 6.

    alpha = 0 / 2/5 and Q = (1 - mu/L)^(2/5) / (1 - sqrt(mu/L))^(1/5), basic / accelerated; with
    budgets that add up (`pure`, the supplement's setting no. 1) 2/3, 2/3 and 1/3 instead.
    """
    power = 2 / 3 if pure else 2 / 5
    if strongly_convex:
        return (1 - mu_over_L**0.5) ** (power / 2) if accelerated else (1 - mu_over_L) ** power
    return power if accelerated else 0.0

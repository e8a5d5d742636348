"""The methods: which candidates they have and how they fit a batch of them.

A method is a frozen dataclass with

- ``candidates(tuning, scales)``: the settings to choose from, as `Candidate` objects,
- ``fit(datafit, W0, candidates, budget, rng)``: yields ``(indices, W)``, the models
  (shape (b, m, d)) of the candidates with these indices, in any order,
- ``state(...)``: the `PrivacyStatement` of a fit.
"""

from dataclasses import dataclass, field
from itertools import islice, product
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.penalties import L1, penalty_named
from mpmtl.privacy.mechanisms import Mechanism, NoNoise
from mpmtl.privacy.statements import SEPARATE, PrivacyStatement
from mpmtl.solvers.proximal import Rounds, proximal_rounds
from mpmtl.solvers.single_task import ridge_path

BLOCK = 16  # candidates that run together; larger blocks no longer fit the cache


@dataclass(frozen=True)
class Candidate:
    """One setting of the hyper-parameters; None where a method does not have one.

    Attributes
    ----------
    penalty : str
    lam : float
        Regularisation, absolute.
    n_rounds : int
        T.
    accelerated, strongly_convex : bool
    alpha, Q : float
        Allocation of the budget over rounds; one of them for a private method.
    K : float
        Clipping norm, absolute.
    """

    penalty: str
    lam: float
    n_rounds: int | None = None
    accelerated: bool | None = None
    strongly_convex: bool | None = None
    alpha: float | None = None
    Q: float | None = None
    K: float | None = None


@dataclass(frozen=True)
class Scales:
    """What relative grids are relative to, from one replicate's training data.

    Attributes
    ----------
    lipschitz : float
        L: unit of the ridge penalty.
    gradient : ndarray, shape (m, d)
        Gradient of the loss at zero; its dual norm is the smallest lambda with W = 0.
    median_norm : float
        Median norm of the STL models: unit of K.
    """

    lipschitz: float
    gradient: np.ndarray
    median_norm: float

    def lam_unit(self, penalty, unit):
        if unit == "absolute":
            return 1.0
        return float(penalty.dual_norm(self.gradient)) or 1.0

    def K_unit(self, unit):
        return 1.0 if unit == "absolute" else self.median_norm or 1.0


@dataclass(frozen=True)
class Budget:
    """Mechanism with the total budget that a fit may use."""

    mechanism: Mechanism
    epsilon: float
    delta: float

    def of_rounds(self, candidate):
        """Budgets of the rounds of a candidate, shape (T,)."""
        alpha = 0.0 if candidate.alpha is None else candidate.alpha
        return self.mechanism.budgets(
            self.epsilon, self.delta, candidate.n_rounds, alpha, candidate.Q
        )


NO_BUDGET = Budget(NoNoise(), np.inf, 0.0)


@dataclass(frozen=True)
class NoisyRelease:
    """Adds noise and shift to the covariances of a batch: Sigma_b + K_b^2 scale_bt (E_t + shift I).

    All candidates of a fit share one standard draw E_t for each round.

    Attributes
    ----------
    draws : list of ndarray
        Standard noise of each round, (d, d) or (d,).
    scale : ndarray, shape (B, T)
        K^2 times the mechanism's scale.
    shift : float
        Multiple of the identity added to a standard draw.
    trace : list
        One ``(noise norm, signal norm)`` for each round of the first candidate.
    """

    draws: list
    scale: np.ndarray
    shift: float
    trace: list = field(default_factory=list)

    def __call__(self, t, Sigma):
        E, scale = self.draws[t - 1], self.scale[: len(Sigma), t - 1]
        self.trace.append((float(scale[0] * np.linalg.norm(E)), float(np.linalg.norm(Sigma[0]))))
        shifted = E + self.shift * (np.eye(len(E)) if E.ndim == 2 else 1.0)
        return Sigma + scale.reshape(-1, *[1] * E.ndim) * shifted


@dataclass(frozen=True)
class Proximal:
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
    clip : {"models", "covariance"}
        Clip the models (the paper), or only inside the covariance (same guarantee).
    negative : {"abs", "clip"}
        sqrt(|Lambda|) or sqrt(max(Lambda, 0)) of a noisy covariance.
    mu : float
        Strong convexity added where it is considered.
    eta : float or None
        Step size; None is 1/L.
    loss_average : bool or None
        Average a task's loss over its samples; None: no for squared, yes for logistic.
    """

    name: str
    penalty: str
    private: bool
    init: str = "stl"
    clip: str = "models"
    negative: str = "abs"
    mu: float = 1e-3
    eta: float | None = None
    loss_average: bool | None = None

    def __post_init__(self):
        penalty_named(self.penalty)
        for key, allowed in (
            ("init", ("stl", "zero")),
            ("clip", ("models", "covariance")),
            ("negative", ("abs", "clip")),
        ):
            value = getattr(self, key)
            require(value in allowed, f"method.{key} = {value}: use {' or '.join(allowed)}")
        require(self.mu > 0, f"method.mu = {self.mu} must be above 0")
        require(self.eta is None or self.eta > 0, f"method.eta = {self.eta} must be above 0")

    @property
    def view(self):
        """What other tasks see of the covariance: "full" or "diagonal"."""
        return penalty_named(self.penalty).view

    def candidates(self, tuning, scales):
        unit = scales.lam_unit(penalty_named(self.penalty), tuning.lam_unit)
        lams = [unit * lam for lam in tuning.lam]
        if not self.private:
            return [
                Candidate(self.penalty, lam, n_rounds, accelerated=True, strongly_convex=False)
                for lam, n_rounds in product(lams, tuning.path_rounds)
            ]
        Ks = [scales.K_unit(tuning.K_unit) * K for K in tuning.K]
        mu_over_L = self.mu / (scales.lipschitz + self.mu)
        candidates = []
        for accelerated, strongly in product(tuning.accelerated, tuning.strongly_convex):
            allocations = tuning.Q if strongly else tuning.alpha
            for lam, n_rounds, K, rate in product(lams, tuning.n_rounds, Ks, allocations):
                if rate == "theory":
                    rate = theory_rate(accelerated, strongly, mu_over_L)
                allocation = {"Q": rate} if strongly else {"alpha": rate}
                candidates.append(
                    Candidate(self.penalty, lam, n_rounds, accelerated, strongly, K=K, **allocation)
                )
        return candidates

    def fit(self, datafit, W0, candidates, budget, rng, trace=None):
        """Yield ``(indices, W)`` for every candidate; see the module's docstring.

        Candidates that differ only in T share a trajectory where the noise does not depend on T.
        """
        shared = isinstance(budget.mechanism, NoNoise)
        trajectories = {}
        for index, c in enumerate(candidates):
            key = (c.lam, c.accelerated, c.strongly_convex, c.K)
            if not shared:
                key += (c.alpha, c.Q, c.n_rounds)
            trajectories.setdefault(key, []).append(index)
        longest = [
            max(group, key=lambda i: candidates[i].n_rounds) for group in trajectories.values()
        ]
        order = sorted(
            zip(longest, trajectories.values(), strict=True),
            key=lambda item: -candidates[item[0]].n_rounds,
        )
        d = datafit.shape[1]
        draws = []
        if self.private and order:
            T = candidates[order[0][0]].n_rounds
            draws = [budget.mechanism.draw(rng, d, self.view) for _ in range(T)]
        lipschitz = 1 / self.eta if self.eta else datafit.lipschitz()
        blocks = iter(order)
        while block := list(islice(blocks, BLOCK)):
            heads = [candidates[head] for head, _ in block]
            yield from self._fit_block(
                datafit,
                W0,
                candidates,
                heads,
                [g for _, g in block],
                lipschitz,
                budget,
                draws,
                trace,
            )

    def _fit_block(self, datafit, W0, candidates, heads, groups, lipschitz, budget, draws, trace):
        rounds = Rounds(
            lam=np.array([c.lam for c in heads]),
            n_rounds=np.array([c.n_rounds for c in heads]),
            accelerated=np.array([c.accelerated for c in heads]),
            strongly_convex=np.array([c.strongly_convex for c in heads]),
            K=np.array([np.inf if c.K is None else c.K for c in heads], dtype=float),
            mu=self.mu,
            lipschitz=lipschitz,
        )
        release = None
        if self.private:
            scale = np.zeros((len(heads), heads[0].n_rounds))
            for b, c in enumerate(heads):
                scale[b, : c.n_rounds] = c.K**2 * budget.mechanism.scale(budget.of_rounds(c))
            unit = budget.mechanism.spectral_norm(datafit.shape[1], self.view)
            release = NoisyRelease(
                draws, scale, budget.mechanism.shift * unit, [] if trace is None else trace
            )
        done = {}
        for b, group in enumerate(groups):
            for index in group:
                done.setdefault(candidates[index].n_rounds, []).append((index, b))
        start = W0 if self.init == "stl" else np.zeros_like(W0)
        steps = proximal_rounds(
            datafit, penalty_named(self.penalty), start, rounds, release, self.clip, self.negative
        )
        for t, W_hat in enumerate(steps, start=1):
            if t in done:
                indices, rows = zip(*done[t], strict=True)
                yield np.array(indices), W_hat[list(rows)]

    def state(self, candidate, budget, d):
        """Statement for a fit with the candidate's rounds on d features."""
        if not self.private:
            return budget.mechanism.state(budget.epsilon, budget.delta, None, d, self.view)
        rounds = budget.of_rounds(candidate)
        return budget.mechanism.state(budget.epsilon, budget.delta, rounds, d, self.view)


def theory_rate(accelerated, strongly_convex, mu_over_L):
    """The paper's optimal alpha (convex) or Q (strongly convex), Theorem 6.

    alpha = 0 / 2/5 and Q = (1 - mu/L)^(2/5) / (1 - sqrt(mu/L))^(1/5), basic / accelerated.
    """
    if strongly_convex:
        return (1 - mu_over_L**0.5) ** 0.2 if accelerated else (1 - mu_over_L) ** 0.4
    return 0.4 if accelerated else 0.0


@dataclass(frozen=True)
class SingleTask:
    """STL: every task on its own, with an l2 or l1 penalty, or the better of both.

    Parameters
    ----------
    penalty : {"l2", "l1", "best"}
    loss_average : bool or None
        Average a task's loss over its samples; None: no for squared, yes for logistic.
    """

    name: str = "stl"
    penalty: str = "l2"
    loss_average: bool | None = None
    private: ClassVar[bool] = False
    view: ClassVar[None] = None

    def __post_init__(self):
        require(
            self.penalty in ("l2", "l1", "best"),
            f"method.penalty = {self.penalty}: use l2, l1 or best",
        )

    def candidates(self, tuning, scales):
        found = []
        if self.penalty in ("l2", "best"):
            found += [Candidate("l2", scales.lipschitz * lam) for lam in tuning.ridge]
        if self.penalty in ("l1", "best"):
            unit = scales.lam_unit(L1(), tuning.lam_unit)
            rounds = max(tuning.path_rounds)
            found += [Candidate("l1", unit * lam, rounds, True, False) for lam in tuning.lam]
        return found

    def fit(self, datafit, W0, candidates, budget, rng, trace=None):
        """Yield ``(indices, W)``; nothing of `budget` is used."""
        ridge = [i for i, c in enumerate(candidates) if c.penalty == "l2"]
        lasso = [i for i, c in enumerate(candidates) if c.penalty == "l1"]
        if ridge:
            yield np.array(ridge), ridge_path(datafit, [candidates[i].lam for i in ridge])
        if lasso:
            solver = Proximal("l1", "l1", private=False, init="zero")
            chosen = [candidates[i] for i in lasso]
            for indices, W in solver.fit(datafit, W0, chosen, NO_BUDGET, rng):
                yield np.array(lasso)[indices], W

    def state(self, candidate, budget, d):
        return PrivacyStatement(
            "separate tasks", claimed=SEPARATE, proved=SEPARATE, caveats=("tuning-not-charged",)
        )

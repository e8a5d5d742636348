"""What all methods share: candidates, scales, budgets and the noise on a released covariance.

A method is a frozen dataclass with

- ``name``, ``private``, ``view`` (what the other tasks see; a mechanism must offer it),
- ``loss_average`` (None, true or false),
- ``candidates(tuning, scales)``: the settings to choose from, as `Candidate` objects,
- ``fit(datafit, W0, candidates, budget, rng, log)``: yields ``(indices, W)``, the models
  (shape (b, m, d)) of the candidates with these indices, in any order; the rounds of a single
  candidate go to the `FitLog`,
- ``state(candidate, budget, datafit)``: the `PrivacyStatement` of a fit.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mpmtl.privacy.mechanisms import Mechanism, NoNoise


@dataclass(frozen=True)
class Candidate:
    """One setting of the hyper-parameters; None where a method does not have one.

    Attributes
    ----------
    penalty : str
        What W is regularised by; None where lam is a plain ridge penalty.
    lam : float
        Regularisation, absolute.
    n_rounds : int
        T.
    accelerated, strongly_convex : bool
    alpha, Q : float
        Allocation of the budget over rounds; one of them for a private method.
    K : float
        Clipping norm, absolute.
    lam2 : float
        Second regularisation, where a method has one, absolute.
    rank : int
        Columns of a shared representation.
    step : float
        Step size of a shared representation, absolute.
    variant : str
        Which of several methods, for `mtl`.
    """

    penalty: str | None
    lam: float
    n_rounds: int | None = None
    accelerated: bool | None = None
    strongly_convex: bool | None = None
    alpha: float | None = None
    Q: float | None = None
    K: float | None = None
    lam2: float | None = None
    rank: int | None = None
    step: float | None = None
    variant: str | None = None


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
    samples : float
        Mean number of samples of a task if the loss is summed over them, 1 if it is averaged.
    """

    lipschitz: float
    gradient: np.ndarray
    median_norm: float
    samples: float = 1.0

    @property
    def averaged_lipschitz(self):
        """Typical Lipschitz constant of the averaged loss."""
        return self.lipschitz / self.samples

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


@dataclass
class FitLog:
    """What a fit of one candidate leaves besides its models.

    Attributes
    ----------
    rounds : list of (float, float)
        Norm of the noise and of the signal of each round.
    arrays : dict of str to ndarray
        Matrices worth keeping, such as a learned relation matrix.
    """

    rounds: list = field(default_factory=list)
    arrays: dict = field(default_factory=dict)

    def add_round(self, noise, signal):
        """Note the norms of a round's noise and signal."""
        self.rounds.append((float(np.linalg.norm(noise)), float(np.linalg.norm(signal))))


class Method:
    """Defaults of a method."""

    separate: ClassVar[bool] = False  # tasks never see each other

    def n_candidates(self, tuning):
        """Number of candidates, which does not depend on the data."""
        return len(self.candidates(tuning, Scales(1.0, np.ones((1, 1)), 1.0)))

    def round_budgets(self, candidate, budget, datafit):
        """Budget of each round of a fit, shape (T,), for trace.csv."""
        return budget.of_rounds(candidate)


@dataclass(frozen=True)
class NoisyRelease:
    """Adds noise and shift to the covariances of a batch: Sigma_b + K_b^2 scale_bt (E_t + shift I).

    All candidates of a fit share one standard draw E_t for each round.

    Attributes
    ----------
    draws : list of ndarray
        Standard noise of each round, (d, d) or (d,); with B in front if every one has its own.
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
        shifted = E + self.shift * (np.eye(E.shape[-1]) if Sigma.ndim == 3 else 1.0)
        return Sigma + scale.reshape(-1, *[1] * (Sigma.ndim - 1)) * shifted


def rounds_up_to(tuning, most):
    """Numbers of rounds of the grid up to `most`; at least its smallest one."""
    return [T for T in tuning.n_rounds if most >= T] or [min(tuning.n_rounds)]

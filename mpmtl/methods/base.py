"""What a method is, and what all share: settings, scales, budgets, noise on a covariance."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpmtl.errors import InputError, require
from mpmtl.privacy.mechanisms import Mechanism, NoNoise


class Setting(NamedTuple):
    """A hyper-parameter: what it may be, and its value where no grid is given.

    Attributes
    ----------
    default : object
        Looks at no data; audits use it.
    allowed : callable
        Whether a value is allowed.
    rule : str
        The same in words.
    least : float, optional
        A natural limit that no grid could pass, so it is no edge.
    """

    default: Any
    allowed: Callable
    rule: str
    least: float | None = None


def at_least_zero(default):
    """A penalty, which may be zero."""
    return Setting(default, lambda v: 0 <= v < np.inf, "finite and at least 0", 0)


def above_zero(default):
    """A norm, a step, a penalty that noise is divided by."""
    return Setting(default, lambda v: 0 < v < np.inf, "finite and above 0")


def count(default):
    """A number of rounds or of columns."""
    return Setting(default, lambda v: v >= 1 and v == int(v), "a whole number of at least 1", 1)


def flag(default):
    """True or false."""
    return Setting(default, lambda v: isinstance(v, bool), "true or false")


def growth(default):
    """alpha of eps_t ~ t^alpha."""
    return Setting(default, np.isfinite, "a finite number")


def growth_or_theory(default):
    """The same, or the paper's optimum."""
    return Setting(default, lambda v: v == "theory" or np.isfinite(v), "a finite number or theory")


def ratio_or_theory(default):
    """Q of eps_t ~ Q^-t, or the paper's optimum."""
    return Setting(default, lambda v: v == "theory" or 0 < v < np.inf, "above 0 or theory")


@dataclass(frozen=True)
class Candidate:
    """One value of each hyper-parameter of a method, absolute; every method adds its own fields."""

    def as_row(self):
        """Names and values, for tables."""
        return asdict(self)


class Method(ABC):
    """A way to learn the models of all tasks.

    A method is a frozen dataclass that extends this class and gives all of

    - ``name`` : str;
    - ``private`` : bool, whether noise protects what the tasks release;
    - ``view`` : what the other tasks see, a key of `privacy.mechanisms.VIEWS` (a mechanism must
      offer it), or None if it is not private;
    - ``candidates(scales)``, ``fit(datafit, W0, candidates, budget, rng, log)`` and
      ``statement(candidate, budget, datafit)``, see there.

    It may have

    - ``settings`` : dict of str to `Setting`, its hyper-parameters under the names of its paper,
      and with them a field ``grid``: the values to choose from, by name; a name that is not in the
      grid has its default;
    - ``loss_average`` : None (squared loss no, logistic loss yes), true or false;
    - ``separate`` : bool, whether tasks never see each other;
    - ``round_budgets(candidate, budget, datafit)``: budget of each round, for trace.csv.

    A class that lacks a part is refused where it is defined.
    """

    settings: ClassVar[dict] = {}
    loss_average: ClassVar[None] = None
    separate: ClassVar[bool] = False
    _parts: ClassVar[tuple] = ("name", "private", "view", "candidates", "fit", "statement")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        named = {key for base in cls.__mro__ for key in get_annotations(base)}
        lacking = [
            part
            for part in cls._parts
            if getattr(getattr(cls, part, None), "__isabstractmethod__", False)
            or not (hasattr(cls, part) or part in named)
        ]
        if cls.settings and "grid" not in named:
            lacking.append("grid")
        if lacking:
            raise InputError(
                f"method {cls.__name__} lacks {', '.join(lacking)}: mpmtl.methods.Method says what "
                "a method must give"
            )

    def __post_init__(self):
        if self.settings:
            object.__setattr__(self, "grid", self._checked(self.grid))

    def _checked(self, grid):
        """Every setting of the grid as a tuple of values that are allowed."""
        unknown = sorted(set(grid) - set(self.settings))
        require(
            not unknown,
            f"grid.{', '.join(unknown)}: {self.name} has no such setting; it has "
            f"{', '.join(self.settings)}",
        )
        checked = {}
        for key, setting in self.settings.items():
            values = grid.get(key, setting.default)
            values = (values,) if isinstance(values, str | int | float) else tuple(values)
            require(len(values) > 0, f"grid.{key} is empty: give at least one value")
            for value in values:
                try:
                    ok = setting.allowed(value)
                except (TypeError, ValueError):
                    ok = False
                require(ok, f"grid.{key} = {value} must be {setting.rule}")
            checked[key] = values
        return checked

    @abstractmethod
    def candidates(self, scales):
        """The settings to choose from.

        Parameters
        ----------
        scales : Scales
            What relative values are relative to.

        Returns
        -------
        list of Candidate
        """

    @abstractmethod
    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Fit all candidates.

        Parameters
        ----------
        datafit : Loss
        W0 : ndarray, shape (m, d)
            Separate models, where rounds start.
        candidates : list of Candidate
        budget : Budget
        rng : numpy.random.Generator
        log : FitLog, optional
            Takes in the rounds of the fit of a single candidate.

        Yields
        ------
        (indices, W)
            Models W, shape (b, m, d), of the candidates with these indices, in any order.
        """

    @abstractmethod
    def statement(self, candidate, budget, datafit):
        """The `PrivacyStatement` of a fit of the candidate."""

    def limits(self):
        """Natural limits of the settings that have one."""
        return {key: s.least for key, s in self.settings.items() if s.least is not None}

    def n_candidates(self):
        """Number of candidates, which does not depend on the data."""
        return len(self.candidates(Scales(1.0, np.ones((1, 1)), 1.0)))

    def round_budgets(self, candidate, budget, datafit):
        """Budget of each round of a fit, shape (T,)."""
        return budget.of_rounds(candidate)


def one_of(key, value, allowed):
    """Refuse a word that a setting does not know."""
    require(value in allowed, f"{key} = {value}: use {' or '.join(allowed)}")


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
        """What lambda is multiplied by: ``unit`` is "max" or "absolute"."""
        if unit == "absolute":
            return 1.0
        return float(penalty.dual_norm(self.gradient)) or 1.0

    def K_unit(self, unit):
        """What a clipping norm is multiplied by: ``unit`` is "median" or "absolute"."""
        return 1.0 if unit == "absolute" else self.median_norm or 1.0


LAM_UNITS = ("max", "absolute")
K_UNITS = ("median", "absolute")


@dataclass(frozen=True)
class Budget:
    """Mechanism with the total budget that a fit may use."""

    mechanism: Mechanism
    epsilon: float
    delta: float

    def of_rounds(self, candidate):
        """Budgets of the rounds of a candidate, shape (T,)."""
        alpha, Q = (getattr(candidate, key, None) for key in ("alpha", "Q"))
        return self.mechanism.budgets(
            self.epsilon, self.delta, candidate.n_rounds, 0.0 if alpha is None else alpha, Q
        )


NO_BUDGET = Budget(NoNoise(), np.inf, 0.0)


@dataclass
class FitLog:
    """What a fit of one candidate leaves besides its models.

    Attributes
    ----------
    rounds : list of (float, float)
        Norm of the noise and of the signal of each round.
    released : list of ndarray
        What the other tasks see of each round.
    arrays : dict of str to ndarray
        Matrices worth saving, such as a learned relation matrix.
    """

    rounds: list = field(default_factory=list)
    released: list = field(default_factory=list)
    arrays: dict = field(default_factory=dict)

    def add_round(self, noise, signal, released=None):
        """Note a round: noise and signal, and what is released unless that is their sum."""
        self.rounds.append((float(np.linalg.norm(noise)), float(np.linalg.norm(signal))))
        self.released.append(np.copy(noise + signal if released is None else released))


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
    log : FitLog, optional
        Takes in each round of the first candidate.
    """

    draws: list
    scale: np.ndarray
    shift: float
    log: FitLog | None = None

    def __call__(self, t, Sigma):
        E, scale = self.draws[t - 1], self.scale[: len(Sigma), t - 1]
        shifted = E + self.shift * (np.eye(E.shape[-1]) if Sigma.ndim == 3 else 1.0)
        released = Sigma + scale.reshape(-1, *[1] * (Sigma.ndim - 1)) * shifted
        if self.log is not None:
            first = E if E.ndim < Sigma.ndim else E[0]
            self.log.add_round(scale[0] * first, Sigma[0], released[0])
        return released

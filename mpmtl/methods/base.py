"""What a method is: its settings, what they are relative to, its fit and its statement."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpmtl.errors import InputError, require
from mpmtl.privacy.statements import NOISE_CAVEATS


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

    #: Penalty of the separate ridge models that this is, whose cross-validation starts every fit.
    separate_ridge: ClassVar[float | None] = None

    def as_row(self):
        """Names and values, for tables."""
        return asdict(self)


class Method(ABC):
    """A way to learn the models of all tasks.

    A method is a frozen dataclass that extends this class and gives all of

    - ``name`` : str;
    - ``private`` : bool, whether noise protects what the tasks release;
    - ``view`` : what crosses from a task to the others, a key of `privacy.mechanisms.KINDS` (a
      mechanism must be able to perturb it), or None if it is not private;
    - ``candidates(scales)``, ``fit(datafit, W0, candidates, budget, rng, log)``, see there;
    - ``gates(candidate, budget, datafit)``, everything that crosses in a fit, or a ``statement`` of
      its own.

    It may have

    - ``settings`` : dict of str to `Setting`, its hyper-parameters under the names of its paper,
      and with them a field ``grid``: the values to choose from, by name; a name that is not in the
      grid has its default;
    - ``loss_average`` : None (squared loss no, logistic loss yes), true or false;
    - ``separate`` : bool, whether tasks never see each other;
    - ``uses_start`` : bool, whether the separate models W0 are more than a yardstick;
    - ``by_chunks`` : bool, whether a fit can take a `DividedLoss`;
    - ``eta`` : "public" if steps, units and starting penalties come from public bounds on the rows
      instead of all tasks' data;
    - ``round_budgets(candidate, budget, datafit)``: budget of each round, for trace.csv.

    A class that lacks a part is refused where it is defined.
    """

    settings: ClassVar[dict] = {}
    loss_average: ClassVar[None] = None
    separate: ClassVar[bool] = False
    uses_start: ClassVar[bool] = False
    by_chunks: ClassVar[bool] = False
    _parts: ClassVar[tuple] = ("name", "private", "view", "candidates", "fit")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        named = {key for base in cls.__mro__ for key in get_annotations(base)}
        lacking = [
            part
            for part in cls._parts
            if getattr(getattr(cls, part, None), "__isabstractmethod__", False)
            or not (hasattr(cls, part) or part in named)
        ]
        if cls.statement is Method.statement and cls.gates is Method.gates:
            lacking.append("gates or statement")
        if cls.settings and "grid" not in named:
            lacking.append("grid")
        if lacking:
            raise InputError(
                f"method {cls.__name__} lacks {', '.join(lacking)}: mpmtl.methods.Method says what "
                "a method must give"
            )

    @property
    def kinds(self):
        """All kinds of releases of a fit, which a mechanism must be able to perturb."""
        return (self.view,)

    def status(self, mechanism):
        """ "proved" or "claimed": what a stated budget of this method with the mechanism is."""
        return mechanism.status

    @property
    def public_constants(self):
        """Whether steps, units and sizes come from public bounds instead of all tasks' data."""
        return getattr(self, "eta", None) == "public"

    @property
    def public(self):
        """Whether nothing of all tasks' data crosses but releases, for one given candidate."""
        return self.public_constants

    @property
    def outside_budget(self):
        """What a fit of one candidate takes from all tasks' data besides releases, in words."""
        if self.public or self.separate:
            return ()
        return ("steps and units",) if hasattr(self, "eta") else ("the choice inside the fit",)

    @property
    def caveats(self):
        """What goes with a guarantee of a fit of one candidate."""
        return NOISE_CAVEATS if self.public else ("tuning-not-charged", *NOISE_CAVEATS)

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
            values = tuple(values) if isinstance(values, list | tuple) else (values,)
            require(len(values) > 0, f"grid.{key} is empty: give at least one value")
            for value in values:
                ok = isinstance(value, str | int | float)
                ok = ok and isinstance(value, bool) == isinstance(setting.default, bool)
                try:
                    ok = ok and bool(setting.allowed(value))
                except (TypeError, ValueError, OverflowError):
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

    def gates(self, candidate, budget, datafit):
        """Planned gates of all that crosses in a fit of the candidate; its statement sums them up.

        A method that releases through gates gives this, any other one its own `statement`.
        """
        return ()

    def statement(self, candidate, budget, datafit):
        """The `PrivacyStatement` of a fit of the candidate."""
        gates = self.gates(candidate, budget, datafit)
        return budget.statement(*gates, m=datafit.shape[0], caveats=self.caveats)

    def limits(self):
        """Natural limits of the settings that have one."""
        return {key: s.least for key, s in self.settings.items() if s.least is not None}

    def n_candidates(self):
        """Number of candidates, which does not depend on the data."""
        return len(self.candidates(NOMINAL))

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
    public : bool
        L is a public bound, all else is 1: values are absolute.
    wider : tuple of float
        Ridge penalties, absolute, by which the grid of separate tasks was widened.
    """

    lipschitz: float
    gradient: np.ndarray
    median_norm: float
    samples: float = 1.0
    public: bool = False
    wider: tuple = ()

    @property
    def averaged_lipschitz(self):
        """Typical Lipschitz constant of the averaged loss."""
        return self.lipschitz / self.samples

    def lam_unit(self, penalty, unit):
        """What lambda is multiplied by: ``unit`` is "max" or "absolute"."""
        if unit == "absolute" or self.public:
            return 1.0
        return float(penalty.dual_norm(self.gradient)) or 1.0

    def K_unit(self, unit):
        """What a clipping norm is multiplied by: ``unit`` is "median" or "absolute"."""
        return 1.0 if unit == "absolute" or self.public else self.median_norm or 1.0


#: Where only the number and the names of candidates count: any data of many features.
NOMINAL = Scales(1.0, np.ones((1, 4096)), 1.0)
LAM_UNITS = ("max", "absolute")
K_UNITS = ("median", "absolute")


def public_or_data(eta):
    """Refuse an eta of a method without steps that is neither "public" nor None."""
    require(eta in (None, "public"), f"eta = {eta}: use public, or null for the data's constants")

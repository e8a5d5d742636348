"""A fit as commands and Python make it: tune, refit, and say what the release is worth."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpmtl.divided import divided
from mpmtl.errors import InputError, require
from mpmtl.experiments.tuning import Problem, cross_validate, is_tuned, prepare, search_of
from mpmtl.methods import Budget, Candidate, FitLog
from mpmtl.privacy.mechanisms import NoNoise, check_kind
from mpmtl.privacy.statements import PrivacyStatement


@dataclass(frozen=True)
class FitSettings:
    """What a fit needs besides its data.

    Attributes
    ----------
    method, mechanism, tuning
        `mechanism` is `NoNoise` for methods that are not private.
    epsilon : float
        inf where nothing is protected.
    delta : float or "auto"
    seed : int
        Of the folds.
    """

    method: Any
    mechanism: Any
    tuning: Any
    epsilon: float
    delta: Any
    seed: int

    @property
    def beside(self):
        """Parts of epsilon that buy something else than the models, in words."""
        return {}

    def budget(self, n_tasks):
        """The budget of a fit on `n_tasks` tasks; delta = auto is 1/(m log m)."""
        delta = self.delta
        if delta == "auto":
            if isinstance(self.mechanism, NoNoise):
                delta = 0.0
            else:
                require(
                    n_tasks >= 2,
                    "delta = auto is 1/(m log m), which needs m >= 2 tasks: set "
                    "delta to a number in [0, 1)",
                )
                delta = 1 / (n_tasks * math.log(n_tasks))
        return Budget(self.mechanism, self.epsilon - sum(self.beside.values()), delta)

    def stated(self, statement, others=()):
        """A method's statement as that of the whole fit: tuning has its caveat, `others` follow."""
        if not (statement.claimed or statement.proved):
            return statement
        tuned = ("tuning-not-charged",) if is_tuned(self.method, self.tuning) else ()
        caveats = dict.fromkeys((*tuned, *statement.caveats, *others))
        return replace(statement, caveats=tuple(caveats))


def protected(method, mechanism, epsilon, delta, beside=0.0):
    """Mechanism, epsilon and delta as they count: neither matters where nothing is protected.

    Raises
    ------
    InputError
        If the budget without what is spent `beside` cannot be, or the mechanism does not perturb
        what the method shows.
    """
    if not method.private or isinstance(mechanism, NoNoise):
        return NoNoise(), math.inf, "auto"
    check_budget(method, mechanism, epsilon - beside, delta)
    return mechanism, epsilon, delta


def check_budget(method, mechanism, epsilon, delta):
    """Refuse a budget, or a mechanism that does not perturb what the method shows."""
    try:
        for kind in method.kinds:
            check_kind(mechanism, kind)
    except InputError as error:  # what the library calls a mechanism is chosen by privacy=
        raise InputError(str(error).replace("mechanism ", "privacy=", 1)) from error
    require(
        epsilon > 0 and math.isfinite(epsilon),
        f"epsilon = {epsilon} must be finite and above 0 (privacy=none switches the noise off)",
    )
    if delta != "auto":
        require(
            isinstance(delta, int | float) and 0 <= delta < 1,
            f"delta = {delta} must be auto or a number in [0, 1)",
        )
        mechanism.budgets(epsilon, delta, 1)  # a mechanism may need delta > 0


@dataclass(frozen=True)
class Fit:
    """What came out of a fit.

    Attributes
    ----------
    W : ndarray, shape (m, d)
    candidates : list of Candidate
    scores : ndarray, shape (len(candidates),)
        Cross-validated errors; nan where there was nothing to choose.
    best : int
        The candidate that was refitted.
    statement : PrivacyStatement
    budget : Budget
    problem : Problem
    log : FitLog
    """

    W: np.ndarray
    candidates: list
    scores: np.ndarray
    best: int
    statement: PrivacyStatement
    budget: Budget
    problem: Problem
    log: FitLog

    @property
    def chosen(self) -> Candidate:
        """The settings that were refitted."""
        return self.candidates[self.best]


def tuned_fit(settings, train, noise, replicate=0, keep=None, engine=None, others=()):
    """Tune by cross-validation where there is something to choose, and fit all samples.

    Parameters
    ----------
    settings : FitSettings
    train : MultiTaskData
    noise : callable
        ``noise(fold)`` gives the random stream of a fold's noise, and ``noise("refit")`` the last.
    replicate : int
        Of the folds.
    keep : callable, optional
        Keeps slow preparations for other fits, see `prepare`.
    engine : object, optional
        Takes the chunks of the last fit, see `mpmtl.chunks`.
    others : tuple of str
        Codes of caveats that come from how the data were read.

    Returns
    -------
    Fit
    """
    method, tuning, budget = settings.method, settings.tuning, settings.budget(train.n_tasks)
    problem = prepare(train, tuning, method, settings.seed, replicate, keep)
    candidates = method.candidates(problem.scales)
    scores, best = np.full(len(candidates), np.nan), 0
    if len(candidates) > 1:
        search = search_of(candidates, tuning)
        scores = cross_validate(method, problem, candidates, budget, noise, search)
        best = int(np.argmin(scores))
    chosen, log = candidates[best], FitLog()
    datafit = divided(problem.datafit, engine) if method.by_chunks else problem.datafit
    fits = method.fit(datafit, problem.start, [chosen], budget, noise("refit"), log)
    ((_, W),) = fits
    statement = method.statement(chosen, budget, problem.datafit)
    statement = settings.stated(statement, others).for_tasks(train.n_tasks)
    return Fit(W[0], candidates, scores, best, statement, budget, problem, log)

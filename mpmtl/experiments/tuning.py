"""Candidate grids and 5-fold cross-validation: one setting, shared by all tasks."""

import math
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from mpmtl.data.tasks import assign_folds
from mpmtl.datafits import LogisticLoss, datafit_for
from mpmtl.errors import require
from mpmtl.methods import Scales
from mpmtl.metrics import heldout_error
from mpmtl.solvers.single_task import ridge_path
from mpmtl.streams import stream

GRIDS = (
    "ridge",
    "lam",
    "n_rounds",
    "path_rounds",
    "accelerated",
    "strongly_convex",
    "alpha",
    "Q",
    "K",
    "noisy_ridge",
    "lam2",
    "gamma",
    "psi",
    "rank",
    "step",
)


@dataclass(frozen=True)
class Tuning:
    """Grids of the hyper-parameters; every combination is a candidate.

    Parameters
    ----------
    folds : int
        Folds of the cross-validation, which is left out where there is one candidate only.
    ridge : tuple of float
        l2 penalties of the STL models, in units of the Lipschitz constant L.
    lam : tuple of float
        lambda, in units of the smallest lambda that gives W = 0 (``lam_unit="max"``) or as it is
        (``"absolute"``).
    n_rounds, path_rounds : tuple of int
        T of the private and of the non-private methods.
    accelerated, strongly_convex : tuple of bool
        Forms of the private methods.
    alpha, Q : tuple of float or "theory"
        Allocation over rounds for convex and strongly convex forms.
    noisy_ridge : tuple of float
        l2 penalties of `dp_mtrl` and `dp_aggr`, whose noise shrinks with them, in units of L.
    lam2 : tuple of float
        Second regularisation: of the task relations (`mtrl`, `dp_mtrl`, `rl`; in units of L/m) and
        of the local part (`lr_sp`; in the unit of lam).
    gamma : tuple of float
        Clipping norm of `mr_mtl`, in the unit of K.
    psi : tuple of float
        Clipping norm of `fedrep`, in units of a typical gradient.
    step : tuple of float
        Step of `fedrep`: the furthest that the representation moves in a round without noise.
    rank : tuple of int
        Columns of `fedrep`'s representation.
    K : tuple of float
        Clipping norm, in units of the median norm of the STL models (``K_unit="median"``) or as
        it is (``"absolute"``).
    search : {"grid", "halving"}
        All candidates on all folds, or a race: after each fold only the best eighth of the
        candidates goes on, a quarter of the cost or less.
    """

    name: str
    folds: int
    ridge: tuple
    lam: tuple
    n_rounds: tuple
    path_rounds: tuple
    accelerated: tuple
    strongly_convex: tuple
    alpha: tuple
    Q: tuple
    K: tuple
    noisy_ridge: tuple = (1.0,)
    lam2: tuple = (0.1,)
    gamma: tuple = (1.0,)
    psi: tuple = (1.0,)
    rank: tuple = (5,)
    step: tuple = (1.0,)
    lam_unit: str = "max"
    K_unit: str = "median"
    stratified: bool = True
    search: str = "grid"

    def __post_init__(self):
        for key in GRIDS:
            value = getattr(self, key)
            single = isinstance(value, str | int | float)
            values = (value,) if single else tuple(value)
            require(len(values) > 0, f"tuning.{key} is empty: give at least one value")
            object.__setattr__(self, key, values)
        self._check("ridge", lambda v: v >= 0 and np.isfinite(v), "finite and at least 0")
        self._check("lam", lambda v: v >= 0 and np.isfinite(v), "finite and at least 0")
        for key in ("K", "noisy_ridge", "lam2", "gamma", "psi", "step"):
            self._check(key, lambda v: v > 0 and np.isfinite(v), "finite and above 0")
        whole = "a whole number of at least 1"
        self._check("n_rounds", lambda v: v >= 1 and v == int(v), whole)
        self._check("path_rounds", lambda v: v >= 1 and v == int(v), whole)
        self._check("rank", lambda v: v >= 1 and v == int(v), whole)
        for key in ("accelerated", "strongly_convex"):
            self._check(key, lambda v: isinstance(v, bool), "true or false")
        self._check("alpha", lambda v: v == "theory" or np.isfinite(v), "a finite number or theory")
        self._check("Q", lambda v: v == "theory" or 0 < v < np.inf, "above 0 or theory")
        require(self.folds >= 2, f"tuning.folds = {self.folds}: use at least 2")
        require(
            self.search in ("grid", "halving"),
            f"tuning.search = {self.search}: use grid or halving",
        )
        require(
            self.lam_unit in ("max", "absolute"),
            f"tuning.lam_unit = {self.lam_unit}: use max or absolute",
        )
        require(
            self.K_unit in ("median", "absolute"),
            f"tuning.K_unit = {self.K_unit}: use median or absolute",
        )

    def _check(self, key, allowed, rule):
        for value in getattr(self, key):
            try:
                ok = allowed(value)
            except (TypeError, ValueError):
                ok = False
            require(ok, f"tuning.{key} = {value} must be {rule}")


@dataclass(frozen=True)
class Problem:
    """Training data of a replicate, ready for tuning.

    Attributes
    ----------
    datafit : loss of all training samples
    parts : list of losses of each fold's samples; empty without cross-validation
    variance : ndarray, shape (m,)
        Variance of each task's training targets.
    fold_starts : list of ndarray, shape (m, d)
        STL models of each fold's training part, W^(0) of its fits.
    start : ndarray, shape (m, d)
        STL models of all training samples.
    scales : Scales
    """

    datafit: object
    parts: list
    variance: np.ndarray
    fold_starts: list
    start: np.ndarray
    scales: Scales

    def training_part(self, fold):
        """Loss of all folds but one."""
        return _merged_without(self.parts, fold)


def _merged_without(parts, fold):
    return type(parts[0]).merged([part for k, part in enumerate(parts) if k != fold])


def prepare(train, tuning, method, seed, replicate, keep=None):
    """Losses of the folds, and STL with the ridge penalty chosen by cross-validation.

    There are no folds where neither the method nor STL has anything to choose.

    Parameters
    ----------
    keep : callable, optional
        ``keep(key, compute)`` returns the arrays of ``compute()``, or those of an earlier call with
        the same key. Used for the logistic loss: Newton's method takes long.
    """
    loss_average = method.loss_average
    datafit = datafit_for(train, loss_average)
    lipschitz = datafit.lipschitz()
    lams = np.array([(lipschitz or 1.0) * lam for lam in tuning.ridge])
    variance = np.array([y.var() for y in train.y])
    parts = []
    if len(lams) > 1 or method.n_candidates(tuning) > 1:
        rng = stream(seed, "folds", replicate)
        labels = assign_folds(train, tuning.folds, rng, tuning.stratified)
        parts = [
            datafit_for(train.take([np.flatnonzero(f == k) for f in labels]), loss_average)
            for k in range(tuning.folds)
        ]
    compute = partial(_separate_tasks, datafit, parts, variance, lams)
    slow = keep is not None and isinstance(datafit, LogisticLoss)
    if slow:
        settings = (tuning.ridge, len(parts), tuning.stratified, loss_average, seed, replicate)
        start, fold_starts = keep((train.digest(), *settings), compute)
    else:
        start, fold_starts = compute()
    zero = np.zeros((1, *datafit.shape))
    scales = Scales(
        lipschitz=lipschitz or 1.0,
        gradient=datafit.gradient(zero)[0],
        median_norm=float(np.median(np.sqrt((start**2).sum(axis=1)))),
        samples=1.0 if datafit.average else float(datafit.n.mean()),
    )
    return Problem(datafit, parts, variance, list(fold_starts), start, scales)


def _separate_tasks(datafit, parts, variance, lams):
    """STL at the best ridge penalty: on all samples, (m, d), and for each fold, (F, m, d)."""
    paths, errors, best = [], [], 0
    for k, part in enumerate(parts):
        paths.append(ridge_path(_merged_without(parts, k), lams))
        errors.append(heldout_error(part, paths[-1], variance))
    if errors:
        best = int(np.argmin(_mean_error(errors)))
    start = ridge_path(datafit, lams[best : best + 1])[0]
    return start, np.array([path[best] for path in paths])


def _mean_error(errors):
    """Mean over folds and tasks where the error is defined, shape (B,)."""
    errors = np.stack(errors)
    defined = ~np.isnan(errors).all(axis=1)  # a held-out part decides that for all candidates
    require(
        defined.any(),
        "the held-out error is not defined on any task: all targets constant, "
        "or one class in every fold",
    )
    means = np.array([e[defined].mean() for e in errors.swapaxes(0, 1)])
    return np.where(np.isnan(means), np.inf, means)  # a candidate that diverged is never chosen


KEPT = 8  # one of so many candidates goes on to the next fold of a race


def cross_validate(method, problem, candidates, budget, noise, search="grid"):
    """Mean held-out error of each candidate, shape (len(candidates),).

    Parameters
    ----------
    noise : callable
        ``noise(fold)`` gives the random stream of a fold's noise.
    search : {"grid", "halving"}
        With "halving" a candidate that is dropped on the way has the error inf.
    """
    alive, folds = np.arange(len(candidates)), []
    for k, part in enumerate(problem.parts):
        if k > 0 and search == "halving":
            best = np.argsort(_mean_error(folds), kind="stable")
            kept = np.sort(best[: math.ceil(len(alive) / KEPT)])
            alive, folds = alive[kept], [fold[kept] for fold in folds]
        training = problem.training_part(k)
        running = [candidates[i] for i in alive]
        fold = np.full((len(alive), problem.datafit.shape[0]), np.nan)
        for indices, W in method.fit(training, problem.fold_starts[k], running, budget, noise(k)):
            fold[indices] = heldout_error(part, W, problem.variance)
        folds.append(fold)
    errors = np.full(len(candidates), np.inf)
    errors[alive] = _mean_error(folds)
    return errors


#: Limits that no grid could pass: one round, no penalty.
NATURAL_LIMITS = {"n_rounds": 1, "rank": 1, "lam2": 0.0}


def edges(chosen, candidates):
    """Names of the numeric settings whose chosen value is the first or last of its grid."""
    found = []
    alike = [c for c in candidates if (c.penalty, c.variant) == (chosen.penalty, chosen.variant)]
    for key in (f.name for f in fields(chosen)):
        value = getattr(chosen, key)
        if isinstance(value, bool | str) or value is None:
            continue
        values = {getattr(c, key) for c in alike if getattr(c, key) is not None}
        at_edge = value in (min(values), max(values)) and value != NATURAL_LIMITS.get(key)
        if len(values) > 2 and at_edge:
            found.append(key)
    return found

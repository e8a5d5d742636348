"""5-fold cross-validation: one setting, shared by all tasks."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy.special import stdtrit

from mpmtl.data.tasks import assign_folds
from mpmtl.datafits import LogisticLoss, SquaredLoss, datafit_for
from mpmtl.errors import require
from mpmtl.methods import Scales
from mpmtl.methods.base import NOMINAL, one_of
from mpmtl.metrics import heldout_error, heldout_loss
from mpmtl.solvers.single_task import fold_paths, ridge_path
from mpmtl.streams import stream

#: How dense the methods' grids are, from one value each to all that the paper tunes.
DENSITIES = ("fixed", "smoke", "coarse", "laptop", "standard", "paper")


def by_density(values, density):
    """The values of a grid at a density: its own, or those of the next thinner one that has some.

    Parameters
    ----------
    values : dict
        From density to a value or a list of values; ``fixed`` has one value.
    density : str
    """
    one_of("tuning.density", density, DENSITIES)
    for name in values:
        one_of("a density of a grid", name, DENSITIES)
    require("fixed" in values, f"a grid has no value for fixed, only for {', '.join(values)}")
    at = DENSITIES.index(density)
    return values[next(name for name in DENSITIES[at::-1] if name in values)]


@dataclass(frozen=True)
class Tuning:
    """How settings are chosen; what they are chosen from is each method's ``grid``.

    Parameters
    ----------
    density : str
        Of the methods' grids, one of `DENSITIES`.
    folds : int
        Folds of the cross-validation, which is left out where there is one candidate only.
    ridge : tuple of float
        l2 penalties of the separate tasks that start every fit and stand beside it in every card,
        in units of the Lipschitz constant L. Where the best one is at an end the grid goes on until
        it is not; with an intercept each task's own mean is a candidate too.
    stratified : bool
        Folds of a binary task have both classes where that is possible.
    search : {"grid", "race"}
        All candidates on all folds, or a race over the folds: after each one at most the better
        half goes on, and no candidate that cannot win any more (`still_in_race`), for less than
        two fifths of the cost.
    """

    density: str
    folds: int
    ridge: tuple
    stratified: bool = True
    search: str = "grid"

    def __post_init__(self):
        several = isinstance(self.ridge, list | tuple)
        object.__setattr__(self, "ridge", tuple(self.ridge) if several else (self.ridge,))
        require(len(self.ridge) > 0, "ridge is empty: give at least one value")
        for value in self.ridge:
            ok = isinstance(value, int | float) and not isinstance(value, bool)
            ok = ok and 0 <= value < np.inf
            require(ok, f"ridge = {value} must be finite and at least 0")
        require(self.folds >= 2, f"folds = {self.folds}: use at least 2")
        one_of("density", self.density, DENSITIES)
        one_of("search", self.search, ("grid", "race"))


def search_of(candidates, tuning):
    """The search among candidates: separate ridge models, the yardstick of all, are chosen on all
    folds, as those that stand beside every method are."""
    return "grid" if all(c.separate_ridge is not None for c in candidates) else tuning.search


def is_tuned(method, tuning):
    """Whether anything that a fit uses is chosen from all tasks' data, outside the budget."""
    chosen = method.n_candidates() > 1 or (method.uses_start and len(tuning.ridge) > 1)
    return chosen or "tuning-not-charged" in method.caveats


def chosen_outside(method, tuning):
    """What a run chooses from all tasks' data, outside the budget, in words; () if nothing."""
    rows = [c.as_row() for c in method.candidates(NOMINAL)]
    keys = dict.fromkeys(key for row in rows for key in row)
    varied = [SETTING_WORDS.get(k, k) for k in keys if len({row.get(k) for row in rows}) > 1]
    words = [word.replace("lam", "lambda") for word in varied]
    if method.uses_start and len(tuning.ridge) > 1:
        words.append("the ridge penalty of the separate models")
    return tuple(dict.fromkeys((*words, *method.outside_budget)))


#: Names of settings that are others in text.
SETTING_WORDS = {
    "n_rounds": "T",
    "alpha": "the allocation",
    "Q": "the allocation",
    "accelerated": "the form of the rounds",
    "strongly_convex": "the form of the rounds",
}


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
    ridge_errors : dict of float to ndarray, shape (F, m)
        Held-out errors of STL by its penalty, where the penalty was chosen.
    scales : Scales
    heldout : callable
        `heldout_error`, or `heldout_loss` where it is not defined.
    norms : list of ndarray, shape (m,)
        `LogisticLoss.squared_norms` of each fold's training part, where they are kept.
    """

    datafit: object
    parts: list
    variance: np.ndarray
    fold_starts: list
    start: np.ndarray
    ridge_errors: dict
    scales: Scales
    heldout: object = heldout_error
    norms: list = field(default_factory=list)

    def training_part(self, fold):
        """Loss of all folds but one."""
        part = _merged_without(self.parts, fold)
        return part.with_squared_norms(self.norms[fold]) if self.norms else part


def _merged_without(parts, fold):
    return type(parts[0]).merged([part for k, part in enumerate(parts) if k != fold])


def prepare(train, tuning, method, seed, replicate, keep=None):
    """Losses of the folds, and STL with the ridge penalty chosen by cross-validation.

    There are no folds where neither the method nor STL has anything to choose.

    Parameters
    ----------
    keep : callable, optional
        ``keep(key, compute)`` returns the arrays of ``compute()``, or those of an earlier call with
        the same key and training data: what depends on these alone, if it takes longer than to
        read it.
    """
    loss_average = method.loss_average
    public = method.public_constants
    datafit = datafit_for(train, loss_average, public)
    variance = datafit.variance()
    parts = []
    if len(tuning.ridge) > 1 or method.n_candidates() > 1:
        rng = stream(seed, "folds", replicate)
        labels = assign_folds(train, tuning.folds, rng, tuning.stratified)
        parts = [
            datafit_for(train.take([np.flatnonzero(f == k) for f in labels]), loss_average, public)
            for k in range(tuning.folds)
        ]
    heldout = heldout_error
    if train.kind == "binary" and not any(len(set(y)) == 2 for p in parts for y in p.y):
        heldout = heldout_loss
    compute = partial(_of_data_alone, datafit, parts, variance, tuning.ridge, heldout)
    if keep and (parts or isinstance(datafit, LogisticLoss)):
        settings = (tuning.ridge, len(parts), tuning.stratified, loss_average, public)
        settings += (seed, replicate)
        arrays = keep(settings, partial(compute, norms=True))
    else:
        arrays = compute()
    lipschitz, start, fold_starts, tried, errors, *norms = arrays
    if norms:
        datafit, norms = datafit.with_squared_norms(norms[0]), norms[1:]
    lipschitz = float(lipschitz)
    zero = np.zeros((1, *datafit.shape))
    scales = Scales(
        lipschitz=lipschitz or 1.0,
        gradient=datafit.gradient(zero)[0],
        median_norm=float(np.median(np.sqrt((start**2).sum(axis=1)))),
        samples=_samples(datafit, public),
        public=public,
        wider=tuple(np.setdiff1d(tried, _penalties(tuning.ridge, lipschitz)).tolist()),
    )
    known = dict(zip(tried.tolist(), errors, strict=False))
    return Problem(
        datafit, parts, variance, list(fold_starts), start, known, scales, heldout, norms
    )


def _penalties(ridge, lipschitz):
    """Penalties in units of the Lipschitz constant, shape (B,)."""
    return np.array([(lipschitz or 1.0) * lam for lam in ridge])


def _of_data_alone(datafit, parts, variance, ridge, heldout, norms=False):
    """Arrays that methods on the same training data share: the Lipschitz constant, those of
    `_separate_tasks`, and with `norms`, which not all methods need, of a logistic loss the squared
    norms of X_i, of all samples and of the training part of each fold."""
    lipschitz = datafit.lipschitz()
    separate = _separate_tasks(datafit, parts, variance, _penalties(ridge, lipschitz), heldout)
    losses = []
    if norms and isinstance(datafit, LogisticLoss) and datafit.public is None:
        losses = [datafit, *(_merged_without(parts, k) for k in range(len(parts)))]
    return lipschitz, *separate, *(loss.squared_norms for loss in losses)


def _samples(datafit, public):
    """What L of a summed loss is divided by for that of an averaged one."""
    if datafit.average:
        return 1.0
    return float(datafit.n_public[1] if public else datafit.n.mean())


def _separate_tasks(datafit, parts, variance, lams, heldout):
    """STL at the best ridge penalty: on all samples, (m, d), and for each fold, (F, m, d); the
    penalties tried, (B,), and their held-out errors, (B, F, m), or none if nothing was chosen."""
    if len(lams) == 1 or not parts:
        paths = [ridge_path(_merged_without(parts, k), lams[:1])[0] for k in range(len(parts))]
        return ridge_path(datafit, lams[:1])[0], np.array(paths), lams, np.zeros(0)
    tried, paths, errors, heldout_errors = np.zeros(0), [], np.zeros(0), []
    positive = lams[lams > 0]
    limits = positive.min(initial=np.inf) * WIDEN_TO[0], positive.max(initial=0) * WIDEN_TO[1]
    if datafit.intercept and isinstance(datafit, SquaredLoss):
        lams = np.append(lams, np.inf)  # each task's own mean
    while len(lams):
        of_folds = fold_paths(parts, lams)
        new = [heldout(*pair, variance) for pair in zip(parts, of_folds, strict=True)]
        tried, errors = np.append(tried, lams), np.append(errors, _mean_error(new))
        paths += list(np.swapaxes(of_folds, 0, 1))
        heldout_errors += list(np.swapaxes(new, 0, 1))
        lams = _beyond(tried, errors, limits)
    best = int(np.argmin(errors))
    order = np.argsort(tried, kind="stable")
    start, heldout_errors = ridge_path(datafit, tried[[best]])[0], np.stack(heldout_errors)
    return start, paths[best], tried[order], heldout_errors[order]


def _beyond(tried, errors, limits):
    """The next penalties where the best finite one is at an end of those tried, by the factor
    there. Own means, better than a grid of far too small penalties, do not end the search."""
    known = np.unique(tried[(tried > 0) & np.isfinite(tried)])
    best = tried[np.argmin(np.where(np.isfinite(tried), errors, np.inf))]
    if len(known) < 2 or best not in (known[0], known[-1]):
        return np.zeros(0)
    if best == known[0]:
        further = best * (known[0] / known[1]) ** np.array([1.0, 2.0])
        return further[further >= limits[0]]
    further = best * (known[-1] / known[-2]) ** np.array([1.0, 2.0])
    return further[further <= limits[1]]


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


WIDEN_TO = (1e-6, 1e6)  # of the ends of the grid of ridge penalties
SURE = 0.999  # that a candidate is worse, before it leaves a race


def still_in_race(folds):
    r"""Which candidates can still win after some folds, shape (B,).

    With :math:`D_{ci}` the error of candidate c on task i less that of the best so far, mean over
    the folds, c leaves where a one-sided paired test over the tasks is sure that it is worse:

    .. math:: \bar D_c > t_{m-1}\; s(D_c)/\sqrt m

    with m the number of tasks on which they are defined and t Student's quantile at `SURE`: a race
    in the sense of Maron and Moore (1994), with paired differences.

    Parameters
    ----------
    folds : list of ndarray, shape (B, m)
        Held-out errors of each fold so far; nan where not defined.
    """
    errors = np.stack(folds)
    defined = ~np.isnan(errors).all(axis=1)  # a held-out part decides that for all candidates
    m, count = int(defined.any(axis=0).sum()), np.maximum(defined.sum(axis=0), 1)
    if m == 0:
        return np.ones(errors.shape[1], dtype=bool)
    best = int(np.argmin(_mean_error(folds)))
    with np.errstate(invalid="ignore"):  # of candidates that diverged, which leave
        of_tasks = np.where(defined[:, None], errors, 0.0).sum(axis=0) / count
        difference = (of_tasks - of_tasks[best])[:, defined.any(axis=0)]
        if m == 1:
            return np.isfinite(difference[:, 0])
        allowed = stdtrit(m - 1, SURE) * difference.std(axis=1, ddof=1) / np.sqrt(m)
        return difference.mean(axis=1) <= allowed


def _better_half(folds, stays):
    """Places of those that stay, the best of them if they are more than half of all."""
    places = np.flatnonzero(stays)
    half = -(-len(stays) // 2)
    if len(places) <= half or all(np.isnan(fold).all() for fold in folds):
        return places
    order = np.argsort(_mean_error(folds)[places], kind="stable")
    return np.sort(places[order[:half]])


def cross_validate(method, problem, candidates, budget, noise, search="grid"):
    """Mean held-out error of each candidate, shape (len(candidates),).

    Parameters
    ----------
    noise : callable
        ``noise(fold)`` gives the random stream of a fold's noise.
    search : {"grid", "race"}
        In a race a candidate that leaves it has the error inf; the folds end where one is left.
    """
    alive, folds = np.arange(len(candidates)), []
    for k, part in enumerate(problem.parts):
        if k > 0 and search == "race":
            kept = _better_half(folds, still_in_race(folds))
            alive, folds = alive[kept], [fold[kept] for fold in folds]
            if len(alive) == 1:
                break
        training = problem.training_part(k)
        fold = np.full((len(alive), problem.datafit.shape[0]), np.nan)
        to_fit = []
        for place, i in enumerate(alive):
            known = problem.ridge_errors.get(candidates[i].separate_ridge)
            if known is None:
                to_fit.append(place)
            else:
                fold[place] = known[k]
        to_fit = np.array(to_fit, dtype=int)
        running, start = [candidates[i] for i in alive[to_fit]], problem.fold_starts[k]
        for indices, W in method.fit(training, start, running, budget, noise(k)):
            fold[to_fit[indices]] = problem.heldout(part, W, problem.variance)
        folds.append(fold)
    errors = np.full(len(candidates), np.inf)
    errors[alive] = _mean_error(folds)
    return errors


def edges(limits, chosen, candidates):
    """Names of the numeric settings whose chosen value is the first or last of its grid.

    Parameters
    ----------
    limits : dict of str to float
        Natural limits of settings, which no grid could pass and are no edges.
    chosen : Candidate
    candidates : list of Candidate
    """
    row = chosen.as_row()
    words = {key: value for key, value in row.items() if isinstance(value, str)}
    alike = [r for r in (c.as_row() for c in candidates) if words.items() <= r.items()]
    at_edge = []
    for key, value in row.items():
        if isinstance(value, bool | str) or value is None:
            continue
        values = {r[key] for r in alike if r[key] is not None}
        at_end = value in (min(values), max(values)) and np.isfinite(value)
        extreme = at_end and value != limits.get(key)
        if len(values) > 2 and extreme:
            at_edge.append(key)
    return at_edge

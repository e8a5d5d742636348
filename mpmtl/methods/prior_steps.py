"""Steps of `fl` that a chunk of tasks takes by itself, from its rows and what is released.

Every function here is the same wherever its chunk is (`mpmtl.chunks`), and holds the decompositions
of that chunk only.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from mpmtl.privacy.clipping import directions
from mpmtl.solvers.gaussian_prior import PriorSystems, mean_samples, rows_at
from mpmtl.solvers.hierarchy import by_hierarchy, preferences
from mpmtl.solvers.noisy_covariance import Prior
from mpmtl.solvers.refinement import contributions

GAMMA = np.logspace(-3, 2, 11)  # grid of gamma, in units of a task's mean squared row norm
LESS = 2  # with several rounds, models are shown two steps of the grid less shrunk
ROUNDING = 1e-12  # part of a model that is no direction: all that is left of that of one sample


class Own(NamedTuple):
    """What a chunk of tasks keeps between rounds.

    Attributes
    ----------
    W, shown : ndarray, shape (m, d)
        Models, and less shrunk ones to be shown; None before the first.
    at : ndarray, shape (m, d)
        Where a logistic loss is expanded.
    ridge : ndarray, shape (m,), or None
        Unit of gamma, see `gamma_grid`.
    weight : ndarray, shape (m,), or None
        `Rows.error_weight` for the shared choice.
    """

    W: np.ndarray | None
    shown: np.ndarray | None
    at: np.ndarray
    ridge: np.ndarray | None = None
    weight: np.ndarray | None = None


def gamma_grid(rows, grid=GAMMA, ridge=None):
    """Gamma to choose from, shape (g, m): a grid in units of a task's mean squared row norm.

    With `ridge` it is near the penalty that cross-validation chose for separate tasks: that choice
    is by the AUC, while the leave-one-out logistic loss would take too small a gamma.
    """
    return grid[:, None] * (rows.unit if ridge is None else ridge)


def ridge_of(rows, W, intercept=False):
    """Penalty for which W is the ridge solution, w'(X'y - X'X w)/||w||^2; shape (m,). Of the slopes
    alone where the last weight is an intercept."""
    slope = rows.xty - np.einsum("mde,me->md", rows.gram, W)
    if intercept:
        slope, W = slope[:, :-1], W[:, :-1]
    size = (W**2).sum(axis=1)
    ridge = (slope * W).sum(axis=1) / np.where(size > 0, size, 1)
    return np.where(ridge > 0, ridge, rows.unit)


def with_free_intercept(candidates, datafit):
    """The priors, and each once more with the intercept left free, if tasks have one."""
    free = [replace(prior, free=True) for prior in candidates] if datafit.intercept else []
    return [*candidates, *free]


def separate_priors(datafit):
    """The priors of tasks on their own: ridge, with the intercept penalised and not."""
    return with_free_intercept([Prior("separate", np.eye(datafit.shape[1]))], datafit)


def own_models(datafit):
    """A chunk before the first release: every task on its own, chosen by its evidence."""
    own = Own(np.zeros(datafit.shape), None, np.zeros(datafit.shape))
    priors = separate_priors(datafit)
    for _ in range(2 if datafit.logistic else 1):
        own = averaged(by_evidence, priors, GAMMA, True, datafit, own)
    return own


def started(datafit, W0=None):
    """A chunk whose logistic loss is expanded at W0, or at its own models, with gamma in units of
    their ridge penalty."""
    ridge = None
    if not datafit.logistic:
        W0 = np.zeros(datafit.shape)  # of no use
    elif W0 is None:
        W0 = own_models(datafit).W
    rows = rows_at(datafit, W0)
    if datafit.logistic:
        ridge = ridge_of(rows, W0, datafit.intercept)
    return Own(None, None, W0, ridge, rows.error_weight)


def at_of(datafit, own, again):
    """Where a loss is expanded: anew, at the last models, if it is logistic and `again`."""
    return own.W if again and datafit.logistic else own.at


def paths_of(datafit, own, priors, grid, again=False, kind=PriorSystems):
    """Paths of gamma under each prior; `again` expands a logistic loss anew, at the last models.

    Returns
    -------
    paths : list of `kind`
    at : ndarray, shape (m, d)
        Where the loss is expanded.
    """
    at = at_of(datafit, own, again)
    rows = rows_at(datafit, at, own.weight)
    gamma = gamma_grid(rows, grid, own.ridge)
    return [kind(rows, prior, gamma) for prior in priors], at


def averaged(weigh, priors, grid, again, datafit, own, kept=None):
    """A chunk after a round: `weigh` gives weights and terms from the paths under the priors.

    `kept`, lists of paths, are those of an earlier step.
    """
    paths, at = paths_of(datafit, own, [] if kept else priors, grid, again)
    W, shown = averages(*weigh(kept or paths))
    return own._replace(W=W, shown=shown, at=at)


def weighted(weights, models):
    """Average of models (P, g, m, d) by weights (P, g, m or 1), and of less shrunk ones: the plain
    formula of `averages`."""
    less = models[:, np.maximum(np.arange(models.shape[1]) - LESS, 0)]
    return tuple((weights[..., None] * W).sum(axis=(0, 1)) for W in (models, less))


def less_shrunk(weights):
    """Weights, (g, ...), of gamma `LESS` steps of the grid smaller."""
    less = np.zeros(weights.shape)
    np.add.at(less, np.maximum(np.arange(len(weights)) - LESS, 0), weights)
    return less


def averages(weights, terms):
    """`weighted` of the models of terms, without working them out for every gamma.

    Parameters
    ----------
    weights : ndarray, shape (P, g, m)
    terms : list of (PriorPath, ndarray or None)
        A path, and the scale of its mean for each gamma (and task), see `PriorPath.weighed`.

    Returns
    -------
    W, less : ndarray, shape (m, d)
    """
    total = 0.0
    for omega, (path, a) in zip(weights, terms, strict=True):
        # every one of them: what has no weight in this chunk is no matter of its tasks' neighbours
        total = total + path.averages(np.stack([omega, less_shrunk(omega)]), a)
    return total[0], total[1]


def by_evidence(paths):
    """Every task's average over priors and gamma, weights proportional to its own evidence."""
    log_evidence, scales = zip(*(path.weighed() for path in paths), strict=True)
    weights = softmax(np.stack(log_evidence), axis=(0, 1))
    return weights, list(zip(paths, scales, strict=True))


def by_weights(weights, scales, paths):
    """The same average over priors and gamma for all tasks, (P, g), and scales of the means."""
    m = len(paths[0].rows.sizes)
    weights = np.repeat(weights[:, :, None], m, axis=2)
    scales = [a if a is None else a[:, None] for a in scales]
    return weights, list(zip(paths, scales, strict=True))


def shown_directions(once, datafit, own):
    """v_i, shape (m, d); with one round of the models themselves, without the part that each task
    knows best, its level."""
    if not once:
        return directions(own.shown)
    x = mean_samples(datafit)
    rest = own.W - (own.W * x).sum(axis=1)[:, None] * x
    size = np.abs(own.W).max(axis=1, keepdims=True)
    return directions(np.where(np.abs(rest) > ROUNDING * size, rest, 0.0))


def moment_vectors(moments, once, datafit, own):
    """u_i, what a round of second moments adds up."""
    return moments.vectors(shown_directions(once, datafit, own))


def ratio_preferences(prior, grid, datafit, own):
    """q_i, what the release of the noise-to-signal ratios adds up."""
    ((path,), _) = paths_of(datafit, own, [prior], grid)
    return preferences(path)


def refinement_parts(subspace, grid, belief, datafit, own):
    """a_i z_i', what a refinement adds up."""
    paths, _ = paths_of(datafit, own, [subspace.prior()], grid, again=True)
    W, _ = averages(*by_hierarchy(paths, (1.0,), belief))
    return contributions(W, subspace.U)

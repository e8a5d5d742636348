"""Separate tasks (STL): exact ridge paths."""

from dataclasses import replace
from functools import singledispatch

import numpy as np

from mpmtl.datafits import LogisticLoss, SquaredLoss
from mpmtl.solvers.logistic import SMALL, Curvature, newton, newton_batch

BARELY = 1e-5  # penalty of a free logistic level, relative to n: it stays finite for one class
TOGETHER = 4  # logistic problems of a task from which on a batch is faster, if no others follow


def ridge_path(datafit, lams, center=None):
    r"""argmin_w L_i(w) + (lambda/2) ||w - center||^2 for each task and each lambda.

    Without a center the intercept of a loss that has one (`Loss.intercept`) is not penalised; with
    lambda = inf the squared loss then gives each task's own mean.

    Squared loss: one eigendecomposition of each Gram matrix serves the whole path (lambda = 0
    gives the solution of least norm). Logistic loss: Newton's method, for few penalties warm
    started along the path from the largest lambda down.

    Parameters
    ----------
    datafit : SquaredLoss or LogisticLoss
    lams : array_like, shape (B,)
    center : ndarray, shape (B, d), optional
        Where the penalty pulls each candidate; default zero.

    Returns
    -------
    ndarray, shape (B, m, d)
    """
    if center is None and datafit.intercept:
        return free_intercept(datafit, np.asarray(lams, dtype=float))
    return ridge_solver(datafit)(lams, center)


@singledispatch
def free_intercept(datafit, lams):
    """`ridge_path` where the weight of the last feature is not penalised."""
    raise TypeError(f"no ridge path for {type(datafit).__name__}")


def about_means(datafit):
    r"""Squared loss of the slopes alone: features and targets about each task's means.

    Returns
    -------
    datafit : Loss
        Without the intercept's feature; the loss itself where it has none, or is logistic.
    restored : callable
        Puts the intercepts :math:`b = \bar y - \bar x'w` after slopes of shape (B, m, d - 1), if
        their feature was taken away.
    """
    if not (datafit.intercept and isinstance(datafit, SquaredLoss)):
        return datafit, lambda W: W
    means = [X[:, :-1].sum(axis=0) / max(len(X), 1) for X in datafit.X]
    levels = np.array([y.sum() / max(len(y), 1) for y in datafit.y])
    centred = replace(
        datafit,
        X=tuple(X[:, :-1] - mean for X, mean in zip(datafit.X, means, strict=True)),
        y=tuple(y - level for y, level in zip(datafit.y, levels, strict=True)),
        intercept=False,
        **dict.fromkeys(("gram", "xty", "yty")),
    )

    def restored(W):
        b = levels - np.einsum("bmd,md->bm", W, np.stack(means))
        return np.concatenate([W, b[..., None]], axis=-1)

    return centred, restored


@free_intercept.register
def _(datafit: SquaredLoss, lams):
    centred, restored = about_means(datafit)
    if centred.shape[1] == 0:
        return restored(np.zeros((len(lams), *centred.shape)))
    return restored(ridge_solver(centred)(lams))


@free_intercept.register
def _(datafit: LogisticLoss, lams):
    """With features about their means, so that where a feature is zero does not matter: neither to
    Newton's steps nor to what is barely penalised, the score of the task's mean sample."""
    means = [X.sum(axis=0) / max(len(X), 1) for X in datafit.X]
    means = np.stack([np.append(mean[:-1], 0.0) for mean in means])
    X = tuple(X - mean for X, mean in zip(datafit.X, means, strict=True))
    W = ridge_solver(replace(datafit, X=X))(lams, free=True)
    W[..., -1] -= np.einsum("bmd,md->bm", W, means)
    return W


@singledispatch
def ridge_solver(datafit):
    """`ridge_path` as a function of (lams, center, start); what depends on none is done once.

    `start`, models near the solution of shape (B, m, d), saves steps of Newton's method.
    """
    raise TypeError(f"no ridge path for {type(datafit).__name__}")


@ridge_solver.register
def _(datafit: SquaredLoss):
    values, Q = _spectrum(datafit.weight[:, None, None] * datafit.gram)

    def solve(lams, center=None, start=None):
        lams = np.asarray(lams, dtype=float)
        if center is None:
            right = datafit.weight[:, None] * datafit.xty
            rotated = np.einsum("mdk,md->mk", Q, right)
        else:  # the ridge solution for the targets that the center leaves over
            centers = np.repeat(center[:, None], datafit.shape[0], axis=1)
            rotated = np.einsum("mdk,bmd->bmk", Q, -datafit.gradient(centers), optimize=True)
        coefficients = _shrunk(rotated, values, lams[:, None, None])
        W = np.matmul(coefficients.swapaxes(0, 1), Q.swapaxes(1, 2)).swapaxes(0, 1)
        return W if center is None else W + center[:, None]

    return solve


def _spectrum(gram):
    """Eigenvalues, 0 for those that are rounding, and eigenvectors of (.., d, d) matrices."""
    values, Q = np.linalg.eigh(gram)
    floor = values[..., -1:] * values.shape[-1] * np.finfo(float).eps
    return np.where(values > floor, values, 0), Q


def _shrunk(rotated, values, lam):
    """rotated/(values + lam), 0 where that is no number."""
    denominator = values + lam
    inside = denominator > 0
    return np.where(inside, rotated / np.where(inside, denominator, 1), 0)


def ridge_of(gram, right, lam):
    """(gram + lam I)^-1 right for positive semi-definite matrices (.., k, k), right sides (.., k)
    and lam > 0; where that is less than 4 k roundings of a matrix's trace it is these, so that no
    task's can be singular."""
    k = gram.shape[-1]
    rounding = np.finfo(float).eps * np.trace(gram, axis1=-2, axis2=-1)
    ridge = np.maximum(lam, 4 * k * rounding)[..., None, None] * np.eye(k)
    return np.linalg.solve(gram + ridge, right[..., None])[..., 0]


@ridge_solver.register
def _(datafit: LogisticLoss):
    """Newton's method; several problems of a task at once, where passes over its rows serve all."""
    m, d = datafit.shape
    known = {}

    def solve(lams, center=None, start=None, free=False):
        lams = np.asarray(lams, dtype=float)
        centers = np.zeros((len(lams), d)) if center is None else center
        others_follow = start is not None and d > SMALL
        together = (others_follow or len(lams) >= TOGETHER) and not free and (lams > 0).all()
        W = np.zeros((len(lams), m, d))
        for i, (X, y, c) in enumerate(zip(datafit.X, datafit.y, datafit.weight, strict=True)):
            starts = centers if start is None else start[:, i]
            if together:
                if i in known:
                    known[i].own = True
                of_task = known.setdefault(i, Curvature(X))
                weights = np.full((len(lams), 1), c)
                W[:, i] = newton_batch(X, y, weights, lams, centers, starts, of_task)
                continue
            w = np.zeros(d)
            penalty = np.repeat(lams[:, None], d, axis=1)
            if free:
                penalty[:, -1] = BARELY * c * len(y)
            for k in np.argsort(-lams, kind="stable"):
                if not (center is None and start is None):
                    w = starts[k]
                W[k, i] = w = newton(X, y, c, penalty[k], centers[k], w)
        return W

    return solve


def fold_paths(parts, lams):
    """`ridge_path` on all folds but one, for each fold, from the losses of the folds' samples.

    Returns
    -------
    ndarray, shape (F, B, m, d)
    """
    lams, first = np.asarray(lams, dtype=float), parts[0]
    if isinstance(first, LogisticLoss) and not first.intercept and (lams > 0).all():
        return _logistic_fold_paths(parts, lams)
    rests = [first.merged(parts[:k] + parts[k + 1 :]) for k in range(len(parts))]
    return np.stack([ridge_path(rest, lams) for rest in rests])


def _logistic_fold_paths(parts, lams):
    """All folds and penalties of a task together: what a fold leaves out has no weight there."""
    F, B, (m, d) = len(parts), len(lams), parts[0].shape
    no_basis = np.zeros((1, d, 0))  # no features: enough to know the weights
    sizes = [p.projected(no_basis)[0] for p in parts]
    rests = [sizes[0].merged(sizes[:k] + sizes[k + 1 :]).weight for k in range(F)]
    W, zero = np.empty((F * B, m, d)), np.zeros((F * B, d))
    for i in range(m):
        X, y = (np.concatenate([getattr(p, key)[i] for p in parts]) for key in ("X", "y"))
        fold = np.repeat(np.arange(F), [len(p.y[i]) for p in parts])
        c = np.stack([rest[i] * (fold != k) for k, rest in enumerate(rests)])
        problem = np.repeat(c, B, axis=0), np.tile(lams, F), zero, zero
        W[:, i] = newton_batch(X, y, *problem, Curvature(X))
    return W.reshape(F, B, m, d)

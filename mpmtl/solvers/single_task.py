"""Separate tasks (STL): exact ridge paths."""

from dataclasses import replace
from functools import singledispatch

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from mpmtl.datafits import LogisticLoss, SquaredLoss

TOL = 1e-13  # of the objective
BARELY = 1e-5  # penalty of a free logistic level, relative to n: it stays finite for one class
MAX_STEPS = 100
FAST = 0.2  # an old Hessian serves while the decrement falls to this part of itself


def ridge_path(datafit, lams, center=None):
    r"""argmin_w L_i(w) + (lambda/2) ||w - center||^2 for each task and each lambda.

    Without a center the intercept of a loss that has one (`Loss.intercept`) is not penalised; with
    lambda = inf the squared loss then gives each task's own mean.

    Squared loss: one eigendecomposition of each Gram matrix serves the whole path (lambda = 0
    gives the solution of least norm). Logistic loss: Newton's method, warm started along the path
    from the largest lambda down.

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
    values, Q = np.linalg.eigh(datafit.weight[:, None, None] * datafit.gram)
    floor = values[:, -1:] * values.shape[1] * np.finfo(float).eps
    values = np.where(values > floor, values, 0)

    def solve(lams, center=None, start=None):
        lams = np.asarray(lams, dtype=float)
        if center is None:
            right = datafit.weight[:, None] * datafit.xty
            rotated = np.einsum("mdk,md->mk", Q, right)
        else:  # the ridge solution for the targets that the center leaves over
            centers = np.repeat(center[:, None], datafit.shape[0], axis=1)
            rotated = np.einsum("mdk,bmd->bmk", Q, -datafit.gradient(centers), optimize=True)
        denominator = values + lams[:, None, None]
        inside = denominator > 0
        coefficients = np.where(inside, rotated / np.where(inside, denominator, 1), 0)
        W = np.matmul(coefficients.swapaxes(0, 1), Q.swapaxes(1, 2)).swapaxes(0, 1)
        return W if center is None else W + center[:, None]

    return solve


@ridge_solver.register
def _(datafit: LogisticLoss):
    def solve(lams, center=None, start=None, free=False):
        lams = np.asarray(lams, dtype=float)
        m, d = datafit.shape
        W = np.zeros((len(lams), m, d))
        for i, (X, y, c) in enumerate(zip(datafit.X, datafit.y, datafit.weight, strict=True)):
            w = np.zeros(d)
            penalty = np.repeat(lams[:, None], d, axis=1)
            if free:
                penalty[:, -1] = BARELY * c * len(y)
            for k in np.argsort(-lams, kind="stable"):
                pull = np.zeros(d) if center is None else center[k]
                if start is not None:
                    w = start[k, i]
                elif center is not None:
                    w = pull
                W[k, i] = w = _newton(X, y, c, penalty[k], pull, w)
        return W

    return solve


def _newton(X, y, c, lam, center, w):
    """Damped Newton for c sum log(1 + exp(-y x'w)) + sum_j lam_j/2 (w_j - center_j)^2, from w.

    A Hessian is used for as long as half the squared Newton decrement, which estimates how far the
    objective is above its minimum, falls by `FAST` a step. The last step is taken from where that
    is below `TOL` of the objective, or `TOL` squared with an old Hessian.
    """

    def objective(margin, w):
        away = w - center
        return c * np.logaddexp(0, -margin).sum() + 0.5 * (lam * away) @ away

    def newton_step(factor, gradient):
        direction = cho_solve(factor, gradient, check_finite=False)
        return direction, gradient @ direction

    floor = max(1e-16 * c * np.vdot(X, X), 1e-300)  # far from the minimum a Hessian can vanish
    margin = y * (X @ w)
    value, factor, before = objective(margin, w), None, np.inf
    for _ in range(MAX_STEPS):
        p = expit(-margin)
        gradient = lam * (w - center) - c * (X.T @ (y * p))
        fresh = factor is None
        if not fresh:
            direction, decrement = newton_step(factor, gradient)
            fresh = decrement > FAST * before
        if fresh:
            root = X * np.sqrt(c * p * (1 - p))[:, None]
            hessian = root.T @ root
            least = 1e-12 * max(np.trace(hessian), floor)  # so that it can be factorised
            ridge = np.maximum(lam, least)
            hessian[np.diag_indices_from(hessian)] += ridge
            factor = cho_factor(hessian, overwrite_a=True, check_finite=False)
            direction, decrement = newton_step(factor, gradient)
        if decrement <= 2 * (TOL if fresh else TOL**2) * value:
            return w - direction  # this step is paid for, and gains more digits
        before, step = decrement, 1.0
        slack = TOL * value if decrement < TOL * value else 0.0  # the objective's own rounding
        while True:
            trial = w - step * direction
            trial_margin = y * (X @ trial)
            trial_value = objective(trial_margin, trial)
            if trial_value <= value - 0.25 * step * decrement + slack or step < 1e-8:
                break
            step /= 2
        if trial_value >= value + slack and step < 1e-8:
            break
        w, margin, value = trial, trial_margin, trial_value
    return w

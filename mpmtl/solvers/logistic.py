"""Ridge-penalised logistic regression of one task: Newton's method, plain, and for a batch at once.

A problem is given by rows X (n, d), labels y in {-1, 1}, weights c of the rows, penalties lambda of
the coordinates and a center:

.. math:: \\min_w \\sum_j c_j \\log(1 + e^{-y_j x_j'w})
    + \\sum_k \\frac{\\lambda_k}2 (w_k - \\text{center}_k)^2

`newton` solves one of them. `newton_batch` solves many that differ in everything but the rows, such
as all penalties and all folds of a task: each pass over the rows serves all of them.
"""

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.special import expit

from mpmtl.datafits import logistic_loss

TOL = 1e-13  # of the objective
MAX_STEPS = 100
FAST = 0.2  # an old Hessian serves while the decrement falls to this part of itself
SMALL = 50  # features up to which a new Hessian is cheaper than the steps that it saves

EXACT = 1e-22  # of the objective: decrement at which a batch ends, as estimated from its bound
NEAR = 1e-3  # of the objective: decrement from which on a Hessian serves to the end
MAX_OUTER, MAX_INNER = 30, 50  # steps of Newton's method, and conjugate gradients of each


def objective(margin, w, c, lam, center):
    """c sum log(1 + exp(-margin)) + sum lam/2 (w - center)^2, over the last axis."""
    away = w - center
    return (c * logistic_loss(margin)).sum(axis=-1) + 0.5 * (lam * away * away).sum(axis=-1)


def newton(X, y, c, lam, center, w):
    """Damped Newton for c sum log(1 + exp(-y x'w)) + sum_j lam_j/2 (w_j - center_j)^2, from w.

    A Hessian is used for as long as half the squared Newton decrement, which estimates how far the
    objective is above its minimum, falls by `FAST` a step. The last step is taken from where that
    is below `TOL` of the objective, or `TOL` squared with an old Hessian. With up to `SMALL`
    features every Hessian is new.

    Parameters
    ----------
    X : ndarray, shape (n, d)
    y : ndarray, shape (n,)
    c : float, or ndarray of shape (n,)
    lam, center, w : ndarray, shape (d,)
    """

    def newton_step(factor, gradient):
        direction, _ = dpotrs(factor, gradient)
        return direction, gradient @ direction

    floor = max(1e-16 * np.max(c, initial=0.0) * np.vdot(X, X), 1e-300)  # a Hessian can vanish
    margin = y * (X @ w)
    value, factor, before = objective(margin, w, c, lam, center), None, np.inf
    for _ in range(MAX_STEPS):
        p = expit(-margin)
        gradient = lam * (w - center) - X.T @ (c * y * p)
        fresh = factor is None or X.shape[1] <= SMALL
        if not fresh:
            direction, decrement = newton_step(factor, gradient)
            fresh = decrement > FAST * before
        if fresh:
            root = X * np.sqrt(c * p * (1 - p))[:, None]
            hessian = root.T @ root
            diagonal = np.einsum("kk->k", hessian)  # a view
            least = 1e-12 * max(diagonal.sum(), floor)  # so that it can be factorised
            diagonal += np.maximum(lam, least)
            # LAPACK itself: with few features scipy's checks take longer than the factorisation.
            factor, failed = dpotrf(hessian.T, overwrite_a=1, clean=0)  # its transpose is itself
            if failed:
                raise np.linalg.LinAlgError("the Hessian is not positive definite")
            direction, decrement = newton_step(factor, gradient)
        if decrement <= 2 * (TOL if fresh else TOL**2) * value:
            return w - direction  # this step is paid for, and gains more digits
        before, step = decrement, 1.0
        slack = TOL * value if decrement < TOL * value else 0.0  # the objective's own rounding
        while True:
            trial = w - step * direction
            trial_margin = y * (X @ trial)
            trial_value = objective(trial_margin, trial, c, lam, center)
            if trial_value <= value - 0.25 * step * decrement + slack or step < 1e-8:
                break
            step /= 2
        if trial_value >= value + slack and step < 1e-8:
            break
        w, margin, value = trial, trial_margin, trial_value
    return w


class Curvature:
    r"""Approximate inverse Hessians of a task's problems: preconditioners, kept from call to call.

    At first they come from the bound of all Hessians, :math:`c \tfrac14 X'X + \lambda I`, whose one
    eigendecomposition serves every weight and penalty. With `own`, which pays where more problems
    with the same penalties come, each penalty gets its own near the minima: the mean Hessian of its
    problems there.
    """

    def __init__(self, X):
        self.X = X
        self.own = False
        self.near = {}  # penalty -> inverse
        self.bound = None

    def learn(self, lam, curvature):
        """Take the Hessian with these row curvatures, shape (n,), for a penalty."""
        root = self.X * np.sqrt(curvature)[:, None]
        hessian = root.T @ root
        hessian[np.diag_indices_from(hessian)] += lam
        inverse, _ = dpotri(cholesky(hessian, lower=True, check_finite=False), lower=1)
        lower = np.tril(inverse, -1)
        self.near[lam] = lower + lower.T + np.diag(inverse.diagonal())

    def inverse(self, c, lam):
        """G -> about (Hessian)^-1 G for rows G of B problems; c and lam have shape (B,)."""
        groups = [(np.flatnonzero(lam == value), value) for value in np.unique(lam)]
        if any(value not in self.near for _, value in groups):
            if self.bound is None:
                values, Q = np.linalg.eigh(0.25 * (self.X.T @ self.X))
                self.bound = np.maximum(values, 0), Q
            values, Q = self.bound
            bent = np.multiply.outer(c, values) + lam[:, None]
            return lambda G: ((G @ Q) / bent) @ Q.T

        def apply(G):
            P = np.empty_like(G)
            for rows, value in groups:
                P[rows] = G[rows] @ self.near[value]
            return P

        return apply


def newton_batch(X, y, c, lam, center, W, known):
    """`newton` for B problems with the same rows; every penalty must be above zero.

    Newton's method with steps from conjugate gradients, preconditioned by `Curvature`; the accuracy
    of a step grows with that of its point, up to what the end of a batch asks for. A problem that
    is solved leaves the batch. What has not reached its minimum after `MAX_OUTER` steps goes to
    `newton`.

    Parameters
    ----------
    X : ndarray, shape (n, d)
    y : ndarray, shape (n,)
    c : ndarray, shape (B, 1) or (B, n)
        Weights of the rows; 0 leaves a row out.
    lam : ndarray, shape (B,)
    center, W : ndarray, shape (B, d)
        W is where each problem starts.
    known : Curvature
        Of X; what is learned here serves the next call.

    Returns
    -------
    ndarray, shape (B, d)
    """
    solved, live = np.array(W, dtype=float), np.arange(len(lam))
    W, margin = solved.copy(), y * (solved @ X.T)
    value = objective(margin, W, c, lam[:, None], center)
    for _ in range(MAX_OUTER):
        p = expit(-margin)
        curvature = c * p * (1 - p)
        G = lam[:, None] * (W - center) - (c * p * y) @ X
        inverse = known.inverse(c.mean(axis=1), lam)
        P = inverse(G)
        decrement = _dot(G, P)
        done = decrement <= 2 * EXACT * value
        solved[live] = W - np.where(done[:, None], P, 0)
        if done.any():
            left = ~done
            live, W, margin, value, c, lam, center, curvature, G, decrement = (
                A[left] for A in (live, W, margin, value, c, lam, center, curvature, G, decrement)
            )
        if len(live) == 0:
            return solved
        near = decrement <= NEAR * value
        for one in np.unique(lam) if known.own else ():
            if one not in known.near and near[lam == one].all():
                known.learn(one, curvature[lam == one].mean(axis=0))
        inverse = known.inverse(c.mean(axis=1), lam)
        left = decrement / value
        accuracy = np.minimum(np.maximum(left, EXACT / left), 0.01)  # of the squared length
        step, step_margin, gain = _newton_steps(X, curvature, lam, G, inverse, accuracy)
        step_margin *= y
        length, slack = np.ones(len(live)), TOL * value  # the objective's own rounding
        while True:
            trial, trial_margin = W - length[:, None] * step, margin - length[:, None] * step_margin
            trial_value = objective(trial_margin, trial, c, lam[:, None], center)
            worse = ~(trial_value <= value - 0.25 * length * gain + slack)
            if not worse.any() or length.min() < 1e-8:
                break
            length[worse] /= 2
        W, margin, value = trial, trial_margin, trial_value
    every_row = np.broadcast_to(c, (len(live), len(y)))
    for k, b in enumerate(live):
        rows = every_row[k] > 0
        solved[b] = newton(
            X[rows], y[rows], every_row[k, rows], np.full(X.shape[1], lam[k]), center[k], solved[b]
        )
    return solved


def _newton_steps(X, curvature, lam, G, inverse, accuracy):
    """H^-1 G of B problems, H = X' diag(curvature) X + lam I, by conjugate gradients.

    Returns
    -------
    steps : ndarray, shape (B, d)
    margins : ndarray, shape (B, n)
        X times the steps.
    gain : ndarray, shape (B,)
        G'H^-1 G.
    """
    steps, margins, R = np.zeros_like(G), np.zeros_like(curvature), G.copy()
    Q = inverse(R)
    size = _dot(R, Q)
    goal = accuracy * size
    for _ in range(MAX_INNER):
        XQ = Q @ X.T
        HQ = (curvature * XQ) @ X + lam[:, None] * Q
        bend = _dot(Q, HQ)
        length = np.where(bend > 0, size / np.where(bend > 0, bend, 1), 0)[:, None]
        steps += length * Q
        margins += length * XQ
        R -= length * HQ
        P = inverse(R)
        before, size = size, _dot(R, P)
        if (size <= goal).all():
            break
        Q = P + np.where(before > 0, size / np.where(before > 0, before, 1), 0)[:, None] * Q
    return steps, margins, _dot(G, steps)


def _dot(A, B):
    return np.einsum("bd,bd->b", A, B)

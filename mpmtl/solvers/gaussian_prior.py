r"""Posterior means of all tasks under a Gaussian prior, for a whole path of gamma.

A task is y = X w + noise of variance sigma^2 with w ~ N(a mu, tau^2 C), gamma = sigma^2/tau^2:

.. math:: w = \arg\min \tfrac12 \|X w - y\|^2 + \tfrac\gamma2 (w - a\mu)' C^{-1} (w - a\mu)

With C = R R' and the eigendecomposition R' X'X R = Q diag(s) Q', P = R Q, everything is diagonal:
w = P c/(s + gamma) + a (mu - P e/(s + gamma)), c = P'X'y, e = P'X'X mu. `PriorSystems` stops at a
tridiagonal form, which is enough for the evidence.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit

from mpmtl.datafits import logistic_loss
from mpmtl.privacy.clipping import directions
from mpmtl.solvers.tridiagonal import Tridiagonal, solved

TINY = np.finfo(float).tiny
SAME = 1e-12  # part of the squared rows that is rounding
FREE = 1e3  # variance of an intercept that is left free, in units of that of a feature's weight


@dataclass(frozen=True)
class Rows:
    """Weighted least squares that stands for the loss of each task; summed over samples.

    Attributes
    ----------
    X : tuple of ndarray, shape (n_i, d)
    y : tuple of ndarray, shape (n_i,)
    gram, xty, yty : ndarray
        X'X, X'y and y'y, shapes (m, d, d), (m, d), (m,).
    unit : ndarray, shape (m,)
        What gamma is relative to: the mean squared norm of a row; times n_i if the loss is
        averaged.
    loss : Loss
    given_weight : ndarray, shape (m,), or None
        `error_weight`, where it is known.
    labels, root : tuple of ndarray, or None
        Logistic loss: labels and square roots of the weights.
    """

    X: tuple
    y: tuple
    gram: np.ndarray
    xty: np.ndarray
    yty: np.ndarray
    unit: np.ndarray
    loss: object
    given_weight: np.ndarray | None
    labels: tuple | None = None
    root: tuple | None = None

    @cached_property
    def sizes(self):
        """n_i, shape (m,)."""
        return np.array([len(y) for y in self.y])

    @cached_property
    def direction(self):
        """Mean sample, scaled to unit length; zero where it is zero. Shape (m, d)."""
        return mean_samples(self.loss)

    @cached_property
    def error_weight(self):
        """`Loss.error_weights`, or 1/n_i for the logistic loss; shape (m,)."""
        if self.given_weight is not None:
            return self.given_weight
        return 1 / np.maximum(self.sizes, 1) if self.loss.logistic else self.loss.error_weights()

    def covariance(self, prior):
        """C of a prior with what it leaves free, shape (d, d), or (m, d, d) if that is a task's."""
        C = prior.C
        if prior.free:
            C = C + FREE * np.diag(np.arange(len(C)) == len(C) - 1)
        if prior.own:
            x = self.direction
            C = C + len(C) * x[:, :, None] * x[:, None, :]
        return C

    @cached_property
    def spread(self):
        """X'X; about the mean sample where there is an intercept, which makes its own part zero,
        and a task without two different rows all zero; shape (m, d, d)."""
        if not self.loss.intercept:
            return self.gram
        level, n = self.gram[:, :, -1], self.gram[:, -1, -1]
        about = (
            self.gram - level[:, :, None] * level[:, None, :] / np.maximum(n, TINY)[:, None, None]
        )
        seen = np.trace(about, axis1=1, axis2=2) > SAME * np.trace(self.gram, axis1=1, axis2=2)
        return np.where(seen[:, None, None], about, 0.0)

    def diagonalised(self, C):
        """s and P with P'X'X P = diag(s) and P P' = C, shapes (m, d) and (m, d, d)."""
        R = np.linalg.cholesky(C)
        s, Q = np.linalg.eigh(R.swapaxes(-1, -2) @ self.gram @ R)
        return np.maximum(s, 0), R @ Q

    @cached_property
    def plain(self):
        """The same for C = I."""
        return self.diagonalised(np.eye(self.gram.shape[1]))

    def reduced(self, C):
        """R and Q T Q' with C = R R' and R'X'X R = Q T Q', T tridiagonal."""
        R = np.linalg.cholesky(C)
        return R, Tridiagonal(R.swapaxes(-1, -2) @ self.gram @ R)

    @cached_property
    def plain_reduced(self):
        """The same for C = I."""
        return np.eye(self.gram.shape[1]), Tridiagonal(self.gram.copy())


def is_identity(C):
    """Whether C = I, as several priors have."""
    return C.ndim == 2 and np.array_equal(C, np.eye(len(C)))


def mean_samples(datafit):
    """Direction of each task's mean sample, shape (m, d); zero where it is zero."""
    n = np.maximum(datafit.n, 1)
    return directions(np.stack([X.sum(axis=0) for X in datafit.X]) / n[:, None])


def rows_at(datafit, W, weight=None):
    r"""The loss itself (squared), or its second-order expansion at W (logistic).

    log(1 + exp(-y x'w)) is p(1-p)/2 (x'w - z)^2 + constant to second order, with p = expit(x'w_0)
    and z = x'w_0 + ((1 + y)/2 - p)/(p(1-p)): one Newton step from W. `weight` is
    `Rows.error_weight` where it is known.
    """
    n = np.maximum(datafit.n, 1)
    if not datafit.logistic:
        X, y = datafit.X, datafit.y
        gram, xty, yty, root = datafit.gram, datafit.xty, datafit.yty, None
    else:
        scores = [X @ w for X, w in zip(datafit.X, W, strict=True)]
        root = tuple(np.sqrt(np.maximum(expit(f) * expit(-f), 1e-6)) for f in scores)
        X = tuple(r[:, None] * X for r, X in zip(root, datafit.X, strict=True))
        y = tuple(
            r * f + ((1 + y) / 2 - expit(f)) / r
            for r, f, y in zip(root, scores, datafit.y, strict=True)
        )
        gram = np.stack([A.T @ A for A in X])
        xty = np.stack([A.T @ b for A, b in zip(X, y, strict=True)])
        yty = np.array([b @ b for b in y])
    unit = np.trace(gram, axis1=1, axis2=2) / (n * datafit.weight)
    unit = np.where(unit > 0, unit, 1)
    labels = None if root is None else datafit.y
    return Rows(X, y, gram, xty, yty, unit, datafit, weight, labels, root)


class PriorPath:
    """Solutions of all tasks under one prior for a grid of gamma.

    Parameters
    ----------
    rows : Rows
    prior : Prior
    gamma : ndarray, shape (g, m)
        Absolute.

    Attributes
    ----------
    s : ndarray, shape (m, d)
    P : ndarray, shape (m, d, d)
    c, e : ndarray, shape (m, d)
        e is None without a mean.
    shrink : ndarray, shape (g, m, d)
        1/(s + gamma).
    W : ndarray, shape (g, m, d)
        Solutions for a = 0.
    pull : ndarray, shape (g, m, d), or None
        What a unit of a adds.
    """

    def __init__(self, rows, prior, gamma):
        self.rows, self.prior, self.gamma = rows, prior, gamma
        C = rows.covariance(prior)
        self.s, self.P = rows.plain if is_identity(C) else rows.diagonalised(C)
        self.shrink = 1 / (self.s + gamma[:, :, None])
        self.c = self._rotated(rows.xty)
        self.e = None if prior.mean is None else self._rotated(rows.gram @ prior.mean)

    @cached_property
    def W(self):
        """Solutions for a = 0, shape (g, m, d)."""
        return self._solution(self.c)

    @cached_property
    def pull(self):
        """What a unit of a adds, shape (g, m, d), or None."""
        return None if self.e is None else self.prior.mean - self._solution(self.e)

    def averages(self, weights, scale):
        r"""Averages over gamma of W + scale pull, without the models of every gamma.

        .. math:: P \Bigl(c \sum_g \frac{\omega_g}{s + \gamma_g}
            - e \sum_g \frac{\omega_g a_g}{s + \gamma_g}\Bigr) + \mu \sum_g \omega_g a_g

        Parameters
        ----------
        weights : ndarray, shape (k, g, m)
            omega: of k averages.
        scale : ndarray, shape (g, m) or (g, 1), or None
            a; None without a mean.

        Returns
        -------
        ndarray, shape (k, m, d)
        """
        shrink = self.shrink.transpose(1, 0, 2)  # so that a task's part is one product
        weights = weights.transpose(2, 0, 1)
        inside = self.c[:, None] * np.matmul(weights, shrink)
        if self.e is None:
            return np.matmul(inside, self.P.swapaxes(1, 2)).swapaxes(0, 1)
        weights = weights * np.broadcast_to(scale.T, self.gamma.T.shape)[:, None]
        inside -= self.e[:, None] * np.matmul(weights, shrink)
        models = np.matmul(inside, self.P.swapaxes(1, 2))
        return (models + weights.sum(axis=2)[..., None] * self.prior.mean).swapaxes(0, 1)

    def _rotated(self, b):
        return np.einsum("mdk,md->mk", self.P, b)

    def _solution(self, c):
        return np.matmul((c * self.shrink).swapaxes(0, 1), self.P.swapaxes(1, 2)).swapaxes(0, 1)

    def shared_scale(self):
        """Models with the mean's scale a shared by all tasks, and their leave-one-out error.

        The error on a left-out sample is r_j/(1 - h_jj), linear in a, so the best a of each gamma
        is known in closed form. The error is the mean over tasks of MSE_i/var(y_i), the squared
        error over all samples (`Loss.pooled`), or the mean over tasks of the logistic loss.

        Returns
        -------
        errors : ndarray, shape (g,)
        W : ndarray, shape (g, m, d)
        """
        W, a = self.W, None
        if self.pull is not None:
            a = best_scale(*self.scale_sums())
            W = W + a[:, None, None] * self.pull
        return self.left_out_errors(a).mean(axis=1), W

    def scale_sums(self):
        """Numerator and denominator of the best a, each a sum over the tasks of shape (g,)."""
        return self.square_sums()[1:]

    def square_sums(self, a=0.0):
        """Sums over the samples of e^2, e p and p^2, shape (3, g), for the error e at scales a of
        the mean, (g,), and p that a unit of a takes off; p = 0 without a mean."""
        weight = self._sample_weight
        return np.stack([weight @ part for part in self._squares(a)])

    def squares_by_task(self):
        """`square_sums` at a = 0 of every task, shape (3, g, m)."""
        return np.stack([self._by_task(part) for part in self._squares(0.0)])

    def _squares(self, a):
        e, p = self._left_out
        if p is None:
            return e**2, np.zeros(e.shape), np.zeros(e.shape)
        e = e - a * p
        return e**2, e * p, p**2

    def _by_task(self, losses):
        """Weighted sums over each task of what its samples have, (sum of n_i, g), shape (g, m)."""
        losses = np.append(losses * self._sample_weight[:, None], np.zeros((1, len(self.gamma))), 0)
        starts = np.cumsum(self.rows.sizes) - self.rows.sizes
        sums = np.add.reduceat(losses, starts, axis=0)
        sums[self.rows.sizes == 0] = 0
        return sums.T

    def left_out_errors(self, a=None):
        """Leave-one-out error of each gamma and task for scales a, (g,); shape (g, m)."""
        residual, pull = self._left_out
        return self._by_task(self._losses(residual if pull is None else residual - a * pull))

    @property
    def _sample_weight(self):
        return np.repeat(self.rows.error_weight, self.rows.sizes)

    @cached_property
    def _left_out(self):
        """Errors on left-out samples for a = 0, and what a unit of a takes off (None without a
        mean); each (sum of n_i, g), task after task. Tasks of one size are worked out together."""
        rows, g = self.rows, len(self.gamma)
        starts = np.cumsum(rows.sizes) - rows.sizes
        leverage, fitted, pull = (np.empty((rows.sizes.sum(), g)) for _ in range(3))
        for n in np.unique(rows.sizes):
            tasks = np.flatnonzero(rows.sizes == n)
            place = (starts[tasks, None] + np.arange(n)).ravel()
            X = np.stack([rows.X[i] for i in tasks])
            parts = self._fitted(tasks, X)
            leverage[place], fitted[place] = (part.reshape(-1, g) for part in parts[:2])
            if self.e is not None:
                off = (X @ self.prior.mean)[..., None] - parts[2]
                pull[place] = off.reshape(-1, g)
        free = 1 / np.maximum(1 - leverage, 1e-9)
        residual = (np.concatenate(rows.y)[:, None] - fitted) * free
        return residual, None if self.e is None else pull * free

    def _fitted(self, tasks, X):
        """Leverages of samples X, shape (k, n, d), of some tasks, and what c and e give there, each
        (k, n, g)."""
        Z, shrink = X @ self.P[tasks], self.shrink[:, tasks].transpose(1, 2, 0)
        fitted = Z @ (self.c[tasks, :, None] * shrink)
        off = None if self.e is None else Z @ (self.e[tasks, :, None] * shrink)
        return Z**2 @ shrink, fitted, off

    def _losses(self, residual):
        rows = self.rows
        if rows.root is None:
            return residual**2
        y, root, labels = (
            np.concatenate(parts)[:, None] for parts in (rows.y, rows.root, rows.labels)
        )
        return logistic_loss(labels * (y - residual) / root)

    def signal(self, scale=1.0):
        """Mean square of x'w over a task's rows under the prior for tau = 1 and a = `scale`, shape
        (m,); with an intercept, its variance over the rows, so that the level, which priors treat
        differently, is not counted. Neither is a direction that is left free."""
        rows, prior = self.rows, self.prior
        total = np.einsum("mde,de->m", rows.spread, prior.C)
        if prior.mean is not None:
            total = total + scale**2 * (rows.spread @ prior.mean @ prior.mean)
        return np.maximum(total / np.maximum(rows.sizes, 1), TINY)

    def evidence(self, scale=1.0):
        r"""Log marginal likelihood of each task and gamma, and the models that go with it.

        With M = I + X C X'/gamma, A = y'M^{-1}y, B = y'M^{-1}X mu/sqrt(gamma) and
        D = mu'X'M^{-1}X mu/gamma, up to a constant,

        .. math:: -n \log\sigma - \frac{A - 2 \sigma B + \sigma^2 D}{2\sigma^2}
            - \tfrac12 \log\det M, \quad \sigma = \frac{-B + \sqrt{B^2 + 4 n A}}{2n}

        The scale of the mean is a = `scale` tau, tau = sigma/sqrt(gamma), so mu stands for `scale`
        mu above: every task has its own. Logistic loss (Laplace's approximation): sigma = 1, as the
        rows are in units of their noise.

        Returns
        -------
        log_evidence : ndarray, shape (g, m)
        W : ndarray, shape (g, m, d)
        """
        log_evidence, a = self.weighed(scale)
        return log_evidence, self.W if a is None else self.W + a[:, :, None] * self.pull

    def weighed(self, scale=1.0):
        """`evidence`, with the scales a of the mean, (g, m) or None, in place of the models."""
        rows, root_gamma = self.rows, np.sqrt(self.gamma)
        n = np.maximum(rows.sizes, 1)
        forms = self._forms()
        A = np.maximum(rows.yty - forms[0], 1e-12 * rows.yty + TINY)
        B = D = np.zeros_like(A)
        if self.e is not None:
            mean = self.prior.mean
            B = scale * ((rows.xty @ mean - forms[1]) / root_gamma)
            D = scale**2 * ((rows.gram @ mean @ mean - forms[2]) / self.gamma)
        sigma = 1.0 if rows.root is not None else (-B + np.sqrt(B**2 + 4 * n * A)) / (2 * n)
        fit = (A - 2 * sigma * B + sigma**2 * D) / (2 * sigma**2)
        a = None if self.e is None else scale * (sigma / root_gamma)
        return -n * np.log(sigma) - fit - self.log_det / 2, a

    def _forms(self):
        """c'Hc, c'He and e'He with H = (R'X'X R + gamma I)^{-1} in the basis of c and e, each
        (g, m); the first alone without a mean."""
        c, e = self.c, self.e
        pairs = [(c, c)] if e is None else [(c, c), (c, e), (e, e)]
        return [(a * b * self.shrink).sum(axis=-1) for a, b in pairs]

    @cached_property
    def log_det(self):
        """log det M, shape (g, m)."""
        return np.log1p(self.s / self.gamma[:, :, None]).sum(axis=-1)


class PriorSystems(PriorPath):
    """`PriorPath` by R'X'X R = Q T Q' with a tridiagonal T in place of eigenvectors: its evidence,
    models and averages, but no errors on left-out samples.

    Attributes
    ----------
    c, e : ndarray, shape (d, m)
        Q'R'X'y and Q'R'X'X mu; e is None without a mean.
    Hc, He : ndarray, shape (d, g, m)
        (T + gamma I)^{-1} of them.
    log_det : ndarray, shape (g, m)
    """

    def __init__(self, rows, prior, gamma):
        self.rows, self.prior, self.gamma = rows, prior, gamma
        C = rows.covariance(prior)
        self.R, self.T = rows.plain_reduced if is_identity(C) else rows.reduced(C)
        pivots, lower = self.T.factorised(gamma)
        self.log_det = np.log(pivots / gamma).sum(axis=0)
        b = [rows.xty] if prior.mean is None else [rows.xty, rows.gram @ prior.mean]
        b = np.matmul(np.stack(b, axis=1), self.R)
        b = self.T.into(b.transpose(1, 2, 0))
        self.c, self.e = b[0], None if prior.mean is None else b[1]
        self.Hc = solved(pivots, lower, self.c)
        self.He = None if self.e is None else solved(pivots, lower, self.e)

    @cached_property
    def W(self):
        """See `PriorPath.W`."""
        return self._back(self.Hc.swapaxes(0, 1))

    @cached_property
    def pull(self):
        """See `PriorPath.pull`."""
        return None if self.e is None else self.prior.mean - self._back(self.He.swapaxes(0, 1))

    def averages(self, weights, scale):
        """See `PriorPath.averages`."""
        inside = np.einsum("kgm,dgm->kdm", weights, self.Hc)
        if self.e is None:
            return self._back(inside)
        weights = weights * scale
        inside -= np.einsum("kgm,dgm->kdm", weights, self.He)
        return self._back(inside) + weights.sum(axis=1)[..., None] * self.prior.mean

    def _back(self, x):
        """R Q x of x, shape (k, d, m); shape (k, m, d)."""
        x = self.T.back(x).transpose(2, 0, 1)
        return np.matmul(x, self.R.swapaxes(-1, -2)).swapaxes(0, 1)

    def _forms(self):
        c, e = self.c, self.e
        pairs = [(c, self.Hc)]
        if e is not None:
            pairs += [(c, self.He), (e, self.He)]
        return [np.einsum("dm,dgm->gm", *pair) for pair in pairs]


class PriorPoints(PriorPath):
    """`PriorPath` for few gamma: its errors and averages by solving R'X'X R + gamma I, C = R R'.

    Parameters and attributes as there, but s, P, shrink and what needs them; c = R'X'y and
    e = R'X'X mu.
    """

    def __init__(self, rows, prior, gamma):
        self.rows, self.prior, self.gamma = rows, prior, gamma
        self.R = np.linalg.cholesky(rows.covariance(prior))
        back = self.R.swapaxes(-1, -2)
        self.B = back @ rows.gram @ self.R
        self.c = np.matmul(back, rows.xty[..., None])[..., 0]
        self.e = None
        if prior.mean is not None:
            self.e = np.matmul(back, (rows.gram @ prior.mean)[..., None])[..., 0]

    def _solved(self, k, tasks, right):
        """(R'X'X R + gamma I)^{-1} of right sides (.., d, columns), for the k-th gamma."""
        A = self.B[tasks] + self.gamma[k, tasks, None, None] * np.eye(self.B.shape[-1])
        return np.linalg.solve(A, right)

    def _fitted(self, tasks, X):
        R = self.R if self.R.ndim == 2 else self.R[tasks]
        Z = X @ R
        leverage = np.empty((*X.shape[:2], len(self.gamma)))
        fitted, off = np.empty(leverage.shape), np.empty(leverage.shape)
        for k in range(len(self.gamma)):
            H = self._solved(k, tasks, Z.swapaxes(1, 2)).swapaxes(1, 2)
            leverage[..., k] = (Z * H).sum(axis=2)
            fitted[..., k] = np.matmul(H, self.c[tasks, :, None])[..., 0]
            if self.e is not None:
                off[..., k] = np.matmul(H, self.e[tasks, :, None])[..., 0]
        return leverage, fitted, None if self.e is None else off

    def averages(self, weights, scale):
        """See `PriorPath.averages`."""
        total = 0.0
        for k in range(len(self.gamma)):
            omega = weights[:, k, :, None]
            right = self.c if self.e is None else self.c - scale[k][:, None] * self.e
            w = np.matmul(self.R, self._solved(k, slice(None), right[..., None]))[..., 0]
            if self.e is not None:
                w = w + scale[k][:, None] * self.prior.mean
            total = total + omega * w
        return total


def best_scale(numerator, denominator):
    """The scale a of a mean with the least squared error, from `PriorPath.scale_sums`."""
    return numerator / np.maximum(denominator, TINY)

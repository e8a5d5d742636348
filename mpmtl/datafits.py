"""Losses of all tasks at once, for a batch of candidate models.

Models have shape (B, m, d): B candidates, m tasks as rows, d features. Results per task have shape
(B, m). Tasks are ragged: nothing assumes equal sample sizes.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import expit, xlogy

from mpmtl.chunks import Chunked, slices
from mpmtl.errors import require
from mpmtl.privacy.clipping import bounded

# Largest size of an entry, and the inverse of the smallest. A Gram matrix of such entries is at
# most n 1e60; a model is at most 1e30 1e30 / eps = 1e76, even without a penalty; so all products
# and squares of these, and squares of squares, are far from where floating point ends (1e308).
LIMIT = 1e30

ROUNDING = 1e-12  # targets whose spread is this part of their size or less are all equal


def usable(X, y):
    """Samples that no solver stumbles over, for each task by itself.

    A task with an entry that is not finite or larger than `LIMIT` has zeros instead, all of them;
    entries below 1/LIMIT are zero.

    Parameters
    ----------
    X : sequence of ndarray, shape (n_i, d)
    y : sequence of ndarray, shape (n_i,)

    Returns
    -------
    X, y : tuple of ndarray
        The arrays themselves where there is nothing to change.
    idle : ndarray of bool, shape (m,)
        Tasks with nothing to learn from: without samples, or with zeros instead.
    """
    size = [max(_largest(rows), _largest(t)) for rows, t in zip(X, y, strict=True)]
    bad = np.array(size) > LIMIT
    X, y = (
        tuple(
            np.zeros(A.shape) if b else _without_specks(A) for A, b in zip(parts, bad, strict=True)
        )
        for parts in (X, y)
    )
    return X, y, bad | np.array([len(t) == 0 for t in y])


def _largest(A):
    """Size of the largest entry; inf where one is not a number."""
    largest = np.abs(A).max(initial=0.0)
    return np.inf if np.isnan(largest) else largest


def _without_specks(A):
    specks = (A != 0) & (np.abs(A) < 1 / LIMIT)
    return np.where(specks, 0.0, A) if specks.any() else A


def variance_of(y, size=None):
    """Variance of targets; 0 where there are none or they differ by rounding only.

    Parameters
    ----------
    y : ndarray, shape (n,)
    size : float, optional
        Size of the numbers that rounding is relative to; default the largest target.
    """
    size = np.abs(y).max(initial=0.0) if size is None else size
    spread = y.max() - y.min() if len(y) else 0.0
    return y.var() if spread > ROUNDING * size else 0.0


@dataclass(frozen=True)
class Loss:
    """Samples of all tasks and how a task's loss is scaled; every task is usable (see `usable`).

    Attributes
    ----------
    X : tuple of ndarray, shape (n_i, d)
    y : tuple of ndarray, shape (n_i,)
    average : bool
        Average a task's loss over its samples instead of summing it.
    idle : ndarray of bool, shape (m,)
        Tasks with nothing to learn from. If it is given, the samples are taken as they are.
    public : float, optional
        Public bound R on the norm of every row: L is a constant.
    n_public : (int, int), optional
        Public least and largest number of samples of a task.
    intercept : bool
        The last feature is 1 in every sample; separate tasks do not penalise its weight.
    pooled : bool
        Errors count by sample over all tasks, instead of by task.
    whole : (int, int), optional
        Tasks and samples of the loss that this is a chunk of.
    n : ndarray, shape (m,)
        Samples of each task; a task may have none in a fold.
    weight : ndarray, shape (m,)
        c_i = 1/n_i or 1; with a public L, a task of more samples than n_public says has as much
        weight as that number.
    """

    X: tuple
    y: tuple
    average: bool
    idle: np.ndarray | None = field(default=None, repr=False, kw_only=True)
    public: float | None = field(default=None, kw_only=True)
    n_public: tuple | None = field(default=None, kw_only=True)
    intercept: bool = field(default=False, kw_only=True)
    pooled: bool = field(default=False, kw_only=True)
    whole: tuple | None = field(default=None, kw_only=True)
    n: np.ndarray = field(init=False, repr=False)
    weight: np.ndarray = field(init=False, repr=False)
    logistic: ClassVar[bool] = False
    bend: ClassVar[float]  # largest second derivative of a sample's loss

    def __post_init__(self):
        if self.idle is None:
            for key, value in zip(("X", "y", "idle"), usable(self.X, self.y), strict=True):
                object.__setattr__(self, key, value)
        n = np.array([len(y) for y in self.y])
        weight = 1 / np.maximum(n, 1) if self.average else np.ones(len(n))
        if self.public is not None and not self.average:
            require(
                self.n_public is not None,
                "a public step for a summed loss needs the largest public number of samples: give "
                "n_public, or average the loss",
            )
            weight = np.minimum(weight, self.n_public[1] / np.maximum(n, 1))
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "weight", weight)

    @property
    def shape(self):
        """(m, d)."""
        return len(self.X), self.X[0].shape[1]

    @property
    def common(self):
        """What does not depend on the samples, by name."""
        names = ("public", "n_public", "intercept", "pooled")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def merged(cls, parts):
        """Loss on the union of disjoint samples, such as all folds but one."""
        return cls(
            X=tuple(np.concatenate(rows) for rows in zip(*(p.X for p in parts), strict=True)),
            y=tuple(np.concatenate(rows) for rows in zip(*(p.y for p in parts), strict=True)),
            average=parts[0].average,
            idle=np.all([p.idle for p in parts], axis=0),
            **parts[0].common,
            **cls._merged_statistics(parts),
        )

    @classmethod
    def _merged_statistics(cls, parts):
        return {}

    def task(self, i):
        """Loss of task i alone."""
        one = slice(i, i + 1)
        return replace(
            self, X=self.X[one], y=self.y[one], idle=self.idle[one], **self._statistics(one)
        )

    def _statistics(self, tasks):
        return {}

    def chunks(self):
        """The loss in chunks of tasks (`Chunked`); the loss itself where one is enough."""
        parts = slices(len(self.n))
        return Chunked([self] if len(parts) == 1 else [self.chunk(tasks) for tasks in parts])

    def chunk(self, tasks):
        """Loss of a slice of the tasks."""
        return type(self)(
            X=self.X[tasks],
            y=self.y[tasks],
            average=self.average,
            idle=self.idle[tasks],
            whole=self.whole or (len(self.n), int(self.n.sum())),
            **self.common,
            **self._known(tasks),
        )

    def _known(self, tasks):
        """Statistics of a slice of the tasks, if they are there."""
        return self._statistics(tasks)

    def projected(self, U):
        """The same losses for models w_i = U_b v_i: features X_i U_b, shape (n_i, k); U_b'U_b = I.

        Parameters
        ----------
        U : ndarray, shape (B, d, k)

        Returns
        -------
        list of Loss, of length B
        """
        B, d, k = U.shape
        side_by_side = U.swapaxes(0, 1).reshape(d, B * k)  # one pass over the rows for all
        X = [(X @ side_by_side).reshape(len(X), B, k).swapaxes(0, 1).copy() for X in self.X]
        known = self.projected_statistics(U)
        return [
            replace(
                self, X=of_all, intercept=False, **{key: part[b] for key, part in known.items()}
            )
            for b, of_all in enumerate(zip(*X, strict=True))
        ]

    def projected_statistics(self, U):
        """Statistics of the losses `projected` on U, by name, without their features."""
        return {}

    def variance(self):
        """Variance of each task's targets, shape (m,), as `variance_of` has it."""
        return np.array([variance_of(y) for y in self.y])

    def error_weights(self):
        """What the squared error of each task counts for in the error over all tasks, shape (m,):
        1/(n_i var(y_i)), 0 where the targets are all equal; with `pooled` the same for all."""
        if self.pooled:
            m, N = self.whole or (len(self.n), self.n.sum())
            return np.full(len(self.n), m / max(N, 1))
        variance = self.variance()
        return (variance > 0) / (np.maximum(self.n, 1) * np.where(variance > 0, variance, 1))

    def loaded(self):
        """The loss itself; of a chunk a copy, so that statistics last as long as its step."""
        return self if self.whole is None else copy(self)

    def lipschitz(self):
        """Largest Lipschitz constant of a task's gradient, or its public bound."""
        if self.public is None:
            return self._largest_lipschitz()
        return self.bend * self.public**2 * (1 if self.average else self.n_public[1])

    def _largest_lipschitz(self):
        return float(self.task_lipschitz().max())


def largest_eigenvalue(A):
    r"""max_i lambda_max(A_i) of small positive semi-definite matrices, shape (m, d, d).

    Eigenvalues are computed only where the bound lambda_max <= ||A_i||_{S8} (Schatten norm, two
    squarings) is above the largest one so far.
    """
    scale = float(np.trace(A, axis1=1, axis2=2).max()) or 1.0
    power = A / scale
    for _ in range(2):
        power = np.matmul(power, power)
    bound = scale * (power**2).sum(axis=(1, 2)) ** (1 / 8) * (1 + 1e-9)
    largest, order = 0.0, np.argsort(-bound, kind="stable")
    for start in range(0, len(order), 8):
        block = order[start : start + 8]
        if bound[block[0]] <= largest:
            break
        largest = max(largest, float(np.linalg.eigvalsh(A[block])[:, -1].max()))
    return largest


STATISTICS = ("gram", "xty", "yty")


def _none():
    """A default that is no class attribute."""


@dataclass(frozen=True)
class SquaredLoss(Loss):
    r"""Squared loss of every task, from its sufficient statistics.

    .. math:: L_i(w) = c_i \tfrac12 \|X_i w - y_i\|^2, \quad
        \nabla L_i(w) = c_i (X_i'X_i w - X_i'y_i), \quad c_i = 1 \text{ or } 1/n_i

    Attributes
    ----------
    gram : ndarray, shape (m, d, d)
        X_i'X_i; computed unless given, when it is asked for.
    xty : ndarray, shape (m, d)
    yty : ndarray, shape (m,)
    """

    average: bool = False
    bend: ClassVar[float] = 1.0
    gram: np.ndarray | None = field(default_factory=_none, repr=False)
    xty: np.ndarray | None = field(default_factory=_none, repr=False)
    yty: np.ndarray | None = field(default_factory=_none, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.gram is None:  # then `__getattr__` is asked
            for name in STATISTICS:
                object.__delattr__(self, name)

    def __getattr__(self, name):
        if name not in STATISTICS:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        samples = list(zip(self.X, self.y, strict=True))
        object.__setattr__(self, "gram", np.stack([X.T @ X for X in self.X]))
        object.__setattr__(self, "xty", np.stack([X.T @ y for X, y in samples]))
        object.__setattr__(self, "yty", np.array([y @ y for y in self.y]))
        return vars(self)[name]

    def _known(self, tasks):
        return self._statistics(tasks) if "gram" in vars(self) else {}

    @classmethod
    def _merged_statistics(cls, parts):
        return {key: sum(getattr(p, key) for p in parts) for key in STATISTICS}

    def _statistics(self, tasks):
        return {key: getattr(self, key)[tasks] for key in STATISTICS}

    def projected_statistics(self, U):
        """Shapes (B, m, k, k) and (B, m, k)."""
        gram = U.swapaxes(1, 2)[:, None] @ self.gram @ U[:, None]
        return {"gram": gram, "xty": self.xty @ U}

    def product(self, W):
        """X_i'X_i w_i: one matrix product per task for the whole batch."""
        # Written in the order of W, which makes every step that follows contiguous.
        out = np.empty(W.shape, np.result_type(W, self.gram))
        np.matmul(W.swapaxes(0, 1), self.gram, out=out.swapaxes(0, 1))
        return out

    def gradient(self, W):
        """Shape (B, m, d)."""
        grad = self.product(W)
        grad -= self.xty
        if self.average or self.public is not None:
            grad *= self.weight[:, None]
        return grad

    def squared_error(self, W):
        """||X_i w_i - y_i||^2, shape (B, m), without predictions."""
        inner = np.einsum("bmd,bmd->bm", self.product(W) - 2 * self.xty, W)
        return np.maximum(self.yty + inner, 0)

    def value(self, W):
        """Shape (B, m)."""
        return 0.5 * self.weight * self.squared_error(W)

    def conjugate(self, W, scale):
        r"""sum_i L_i^*(scale * c_i r_i), r_i = X_i w_i - y_i, for the dual; shape (B,)."""
        residual_y = np.einsum("bmd,md->bm", W, self.xty) - self.yty
        scale = scale[:, None]
        terms = 0.5 * scale**2 * self.squared_error(W) + scale * residual_y
        return (self.weight * terms).sum(axis=1)

    def task_lipschitz(self):
        """Lipschitz constant of each task's gradient, shape (m,)."""
        values = np.linalg.eigvalsh(self.weight[:, None, None] * self.gram)
        return np.maximum(values[:, -1], 0)

    def _largest_lipschitz(self):
        return largest_eigenvalue(self.weight[:, None, None] * self.gram)


def logistic_loss(margin):
    """log(1 + e^-margin) = log(1 + e^-|margin|) + max(-margin, 0), in a fifth of `logaddexp`'s
    time."""
    return np.log1p(np.exp(-np.abs(margin))) + np.maximum(-margin, 0)


@dataclass(frozen=True)
class LogisticLoss(Loss):
    r"""Logistic loss of every task, labels in {-1, 1}.

    .. math:: L_i(w) = c_i \sum_j \log(1 + e^{-y_{ij} x_{ij}'w}), \quad c_i = 1 \text{ or } 1/n_i
    """

    average: bool = True
    logistic: ClassVar[bool] = True
    bend: ClassVar[float] = 0.25

    def margins(self, W):
        """y_ij x_ij'w_i for each task in turn, shape (B, n_i)."""
        # Candidates as rows: with few of them the product with X' is the faster one.
        for i, (X, y) in enumerate(zip(self.X, self.y, strict=True)):
            yield i, X, y, y * (W[:, i] @ X.T)

    def gradient(self, W):
        """Shape (B, m, d)."""
        grad = np.empty_like(W)
        for i, X, y, margin in self.margins(W):
            grad[:, i] = (-self.weight[i] * y * expit(-margin)) @ X
        return grad

    def value(self, W):
        """Shape (B, m)."""
        values = np.empty(W.shape[:2])
        for i, _, _, margin in self.margins(W):
            values[:, i] = self.weight[i] * logistic_loss(margin).sum(axis=1)
        return values

    def conjugate(self, W, scale):
        r"""sum_i L_i^*(scale * theta_i) with theta_ij = -c_i y_ij p_ij, p = expit(-margin)."""
        total = np.zeros(W.shape[0])
        for i, _, _, margin in self.margins(W):
            p = scale[:, None] * expit(-margin)
            total += self.weight[i] * (xlogy(p, p) + xlogy(1 - p, 1 - p)).sum(axis=1)
        return total

    def task_lipschitz(self):
        """Lipschitz constant of each task's gradient, c_i ||X_i||^2 / 4; shape (m,)."""
        return self.weight * self.squared_norms / 4

    def with_squared_norms(self, norms):
        """The loss with its `squared_norms`, known from elsewhere."""
        loss = copy(self)
        vars(loss)["squared_norms"] = norms
        return loss

    @cached_property
    def squared_norms(self):
        """||X_i||^2, largest singular values squared; shape (m,)."""
        norms = [
            np.linalg.eigvalsh(X.T @ X if X.shape[1] < X.shape[0] else X @ X.T)[-1]
            if len(X)
            else 0.0
            for X in self.X
        ]
        return np.maximum(norms, 0)


DATAFITS = {"regression": SquaredLoss, "binary": LogisticLoss}


def datafit_for(data, average=None, public=False, whole=None):
    """Squared loss for regression (summed), logistic for binary targets (averaged).

    Parameters
    ----------
    data : MultiTaskData
    average : bool, optional
        Overrides the default.
    public : bool
        L from ``data.row_norm`` instead of the rows themselves, which are held to it.
    whole : (int, int), optional
        See `Loss`.

    Raises
    ------
    InputError
        If `public` and there is no public bound on the rows, or, for a summed loss, none on sizes.
    """
    require(data.kind in DATAFITS, f"unknown kind of target {data.kind!r}")
    if average is None:
        average = data.kind == "binary"
    X, limit = data.X, None
    if public:
        limit = data.row_norm
        require(
            limit is not None,
            "a public step needs a public bound on rows: unit rows or clipped ones",
        )
        X = tuple(bounded(rows, limit) for rows in X)
    return DATAFITS[data.kind](
        X,
        data.y,
        average,
        public=limit,
        n_public=data.n_public,
        intercept=data.intercept,
        pooled=data.pooled,
        whole=whole,
    )


def squared_loss(datafit, average):
    """Squared loss of the same samples, for methods that have a closed form for it only."""
    if isinstance(datafit, SquaredLoss):
        return replace(datafit, average=average)
    return SquaredLoss(
        datafit.X,
        datafit.y,
        average,
        idle=datafit.idle,
        **datafit.common,
    )

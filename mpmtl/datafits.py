"""Losses of all tasks at once, for a batch of candidate models.

Models have shape (B, m, d): B candidates, m tasks as rows, d features. Results per task have shape
(B, m). Tasks are ragged: nothing assumes equal sample sizes.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit, xlogy

from mpmtl.errors import require


@dataclass(frozen=True)
class Loss:
    """Samples of all tasks and how a task's loss is scaled.

    Attributes
    ----------
    X : tuple of ndarray, shape (n_i, d)
    y : tuple of ndarray, shape (n_i,)
    average : bool
        Average a task's loss over its samples instead of summing it.
    n : ndarray, shape (m,)
        Samples of each task; a task may have none in a fold.
    weight : ndarray, shape (m,)
        c_i = 1/n_i or 1.
    """

    X: tuple
    y: tuple
    average: bool
    n: np.ndarray = field(init=False, repr=False)
    weight: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        n = np.array([len(y) for y in self.y])
        object.__setattr__(self, "n", n)
        object.__setattr__(
            self, "weight", 1 / np.maximum(n, 1) if self.average else np.ones(len(n))
        )

    @property
    def shape(self):
        """(m, d)."""
        return len(self.X), self.X[0].shape[1]

    @classmethod
    def merged(cls, parts):
        """Loss on the union of disjoint samples, such as all folds but one."""
        return cls(
            X=tuple(np.concatenate(rows) for rows in zip(*(p.X for p in parts), strict=True)),
            y=tuple(np.concatenate(rows) for rows in zip(*(p.y for p in parts), strict=True)),
            average=parts[0].average,
            **cls._merged_statistics(parts),
        )

    @classmethod
    def _merged_statistics(cls, parts):
        return {}

    def projected(self, U):
        """The same loss for models w_i = U v_i: features X_i U, shape (n_i, k)."""
        return type(self)(tuple(X @ U for X in self.X), self.y, self.average)


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


@dataclass(frozen=True)
class SquaredLoss(Loss):
    r"""Squared loss of every task, from its sufficient statistics.

    .. math:: L_i(w) = c_i \tfrac12 \|X_i w - y_i\|^2, \quad
        \nabla L_i(w) = c_i (X_i'X_i w - X_i'y_i), \quad c_i = 1 \text{ or } 1/n_i

    Attributes
    ----------
    gram : ndarray, shape (m, d, d)
        X_i'X_i; computed unless given.
    xty : ndarray, shape (m, d)
    yty : ndarray, shape (m,)
    """

    average: bool = False
    gram: np.ndarray | None = field(default=None, repr=False)
    xty: np.ndarray | None = field(default=None, repr=False)
    yty: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.gram is None:
            samples = list(zip(self.X, self.y, strict=True))
            object.__setattr__(self, "gram", np.stack([X.T @ X for X in self.X]))
            object.__setattr__(self, "xty", np.stack([X.T @ y for X, y in samples]))
            object.__setattr__(self, "yty", np.array([y @ y for y in self.y]))

    @classmethod
    def _merged_statistics(cls, parts):
        return {key: sum(getattr(p, key) for p in parts) for key in ("gram", "xty", "yty")}

    def projected(self, U):
        X = tuple(X @ U for X in self.X)
        return SquaredLoss(X, self.y, self.average, U.T @ self.gram @ U, self.xty @ U, self.yty)

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
        if self.average:
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

    def lipschitz(self):
        """Largest Lipschitz constant of a task's gradient."""
        return largest_eigenvalue(self.weight[:, None, None] * self.gram)


@dataclass(frozen=True)
class LogisticLoss(Loss):
    r"""Logistic loss of every task, labels in {-1, 1}.

    .. math:: L_i(w) = c_i \sum_j \log(1 + e^{-y_{ij} x_{ij}'w}), \quad c_i = 1 \text{ or } 1/n_i
    """

    average: bool = True

    def margins(self, W):
        """y_ij x_ij'w_i for each task in turn, shape (n_i, B)."""
        for i, (X, y) in enumerate(zip(self.X, self.y, strict=True)):
            yield i, X, y, y[:, None] * (X @ W[:, i].T)

    def gradient(self, W):
        """Shape (B, m, d)."""
        grad = np.empty_like(W)
        for i, X, y, margin in self.margins(W):
            grad[:, i] = (-self.weight[i] * y[:, None] * expit(-margin)).T @ X
        return grad

    def value(self, W):
        """Shape (B, m)."""
        values = np.empty(W.shape[:2])
        for i, _, _, margin in self.margins(W):
            values[:, i] = self.weight[i] * np.logaddexp(0, -margin).sum(axis=0)
        return values

    def conjugate(self, W, scale):
        r"""sum_i L_i^*(scale * theta_i) with theta_ij = -c_i y_ij p_ij, p = expit(-margin)."""
        total = np.zeros(W.shape[0])
        for i, _, _, margin in self.margins(W):
            p = scale * expit(-margin)
            total += self.weight[i] * (xlogy(p, p) + xlogy(1 - p, 1 - p)).sum(axis=0)
        return total

    def lipschitz(self):
        """Largest Lipschitz constant of a task's gradient: c_i ||X_i||^2 / 4."""
        norms = [
            np.linalg.eigvalsh(X.T @ X if X.shape[1] < X.shape[0] else X @ X.T)[-1]
            if len(X)
            else 0.0
            for X in self.X
        ]
        return float((self.weight * norms).max() / 4)


DATAFITS = {"regression": SquaredLoss, "binary": LogisticLoss}


def datafit_for(data, average=None):
    """Squared loss for regression (summed), logistic for binary targets (averaged).

    `average` overrides the default.
    """
    require(data.kind in DATAFITS, f"unknown kind of target {data.kind!r}")
    if average is None:
        average = data.kind == "binary"
    return DATAFITS[data.kind](data.X, data.y, average)


def squared_loss(datafit, average):
    """Squared loss of the same samples, for methods that have a closed form for it only."""
    if isinstance(datafit, SquaredLoss):
        return replace(datafit, average=average)
    return SquaredLoss(datafit.X, datafit.y, average)

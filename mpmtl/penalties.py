"""Penalties whose proximal operator is a function of the models' covariance alone.

Models are rows: W has shape (..., m, d), the transpose of the paper's d x m matrix, so that a batch
of candidates is one contiguous array. Sigma = sum_i w_i w_i' has shape (..., d, d).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpmtl.errors import require


def _shrinkage(sigma, threshold):
    """max(0, 1 - threshold/sigma) for sigma >= 0, with 0 for sigma = 0."""
    positive = np.where(sigma > 0, sigma, 1.0)
    return np.maximum(sigma - threshold, 0) / positive


def _root(eigenvalues, negative):
    """sqrt(|x|) or sqrt(max(x, 0)): noise can make a covariance indefinite."""
    if negative == "abs":
        return np.sqrt(np.abs(eigenvalues))
    return np.sqrt(np.maximum(eigenvalues, 0))


class Penalty(ABC):
    """A penalty of a batch of models.

    Attributes
    ----------
    name : str
    view : {"covariance", "diagonal"} or None
        What of the covariance the proximal operator needs; None: the models themselves.
    """

    name: ClassVar[str]
    view: ClassVar[str | None] = None

    @abstractmethod
    def value(self, W):
        """Omega(W), shape (B,)."""

    @abstractmethod
    def prox(self, W, threshold):
        """argmin_V 1/2 ||V - W||_F^2 + threshold Omega(V); threshold has shape (B,)."""

    def projected(self, W, Sigma, threshold, negative="abs"):
        """Models after the projection by a released covariance: M(Sigma) w_i for every task."""
        return self.apply(W, self.projection(Sigma, threshold, negative))

    def dual_norm(self, G):
        """max of <G, W> over Omega(W) <= 1, shape (B,), if Omega is a norm."""
        raise NotImplementedError(f"the penalty {self.name} is no norm")


@dataclass(frozen=True)
class TraceNorm(Penalty):
    r"""Trace norm :math:`\|W\|_* = \sum_j \sigma_j(W)`; needs the full covariance (`lr`)."""

    name: ClassVar[str] = "trace"
    view: ClassVar[str] = "covariance"

    def value(self, W):
        return np.linalg.svd(W, compute_uv=False).sum(axis=-1)

    def dual_norm(self, G):
        """Largest singular value."""
        return np.linalg.svd(G, compute_uv=False).max(axis=-1)

    def covariance(self, W):
        """Sigma = sum_i w_i w_i', shape (B, d, d)."""
        return np.matmul(W.swapaxes(-1, -2), W)

    def projection(self, Sigma, threshold, negative="abs"):
        r"""M = U S U', S = diag(max(0, 1 - eta lambda / sqrt(|Lambda_jj|))), for all d values.

        Steps 6 to 8 of Algorithm 2 (whose step 7 stops at min(d, m), which breaks Proposition 1).

        Parameters
        ----------
        Sigma : ndarray, shape (B, d, d)
        threshold : ndarray, shape (B,)
            eta lambda.
        negative : {"abs", "clip"}
            |Lambda| or max(Lambda, 0).
        """
        U, S = self._shrunk(Sigma, threshold, negative)
        return np.matmul(U * S[:, None, :], U.swapaxes(-1, -2))

    def _shrunk(self, Sigma, threshold, negative):
        eigenvalues, U = np.linalg.eigh(Sigma)
        return U, _shrinkage(_root(eigenvalues, negative), threshold[:, None])

    def projected(self, W, Sigma, threshold, negative="abs"):
        """`projection` applied; with fewer models than features M itself is not formed."""
        if W.shape[-2] >= W.shape[-1]:
            return super().projected(W, Sigma, threshold, negative)
        U, S = self._shrunk(Sigma, threshold, negative)
        return np.matmul(np.matmul(W, U) * S[:, None, :], U.swapaxes(-1, -2))

    def apply(self, W, M):
        """M w_i for every task: M is symmetric and models are rows."""
        return np.matmul(W, M)

    def prox(self, W, threshold):
        r"""argmin_V 1/2 ||V - W||_F^2 + threshold ||V||_* from the smaller Gram matrix of W."""
        if W.shape[-1] <= W.shape[-2]:
            return self.apply(W, self.projection(self.covariance(W), threshold))
        gram = np.matmul(W, W.swapaxes(-1, -2))
        return np.matmul(self.projection(gram, threshold), W)


@dataclass(frozen=True)
class SquaredTraceNorm(Penalty):
    r"""Half the squared trace norm, :math:`\tfrac12 \|W\|_*^2`: MTRL with the best Omega."""

    name: ClassVar[str] = "squared_trace"

    def value(self, W):
        return 0.5 * TraceNorm().value(W) ** 2

    def prox(self, W, threshold):
        r"""Soft-thresholding of the singular values at tau = threshold * sum_j (s_j - tau)_+.

        With the k largest values above tau, tau = threshold * sum_{j<=k} s_j / (1 + k threshold);
        it is the largest of these numbers over k.
        """
        wide = W.shape[-1] > W.shape[-2]
        gram = np.matmul(W, W.swapaxes(-1, -2)) if wide else TraceNorm().covariance(W)
        eigenvalues, U = np.linalg.eigh(gram)
        sigma = np.sqrt(np.maximum(eigenvalues, 0))
        k = np.arange(1, sigma.shape[-1] + 1)
        sums = np.cumsum(sigma[:, ::-1], axis=-1)
        tau = (threshold[:, None] * sums / (1 + k * threshold[:, None])).max(axis=-1)
        M = np.matmul(U * _shrinkage(sigma, tau[:, None])[:, None], U.swapaxes(-1, -2))
        return np.matmul(M, W) if wide else np.matmul(W, M)


@dataclass(frozen=True)
class GroupL1(Penalty):
    r"""l2,1 norm: sum over features of the norm over tasks; needs only the diagonal (`gs`)."""

    name: ClassVar[str] = "l21"
    view: ClassVar[str] = "diagonal"

    def value(self, W):
        return np.sqrt((W**2).sum(axis=-2)).sum(axis=-1)

    def dual_norm(self, G):
        return np.sqrt((G**2).sum(axis=-2)).max(axis=-1)

    def covariance(self, W):
        """Diagonal of the covariance, shape (B, d)."""
        return np.einsum("bmd,bmd->bd", W, W)

    def projection(self, Sigma, threshold, negative="abs"):
        r"""Diagonal of M = diag(max(0, 1 - eta lambda / sqrt(|Sigma_jj|))), steps 6 and 7 of
        Algorithm 3."""
        return _shrinkage(_root(Sigma, negative), threshold[:, None])

    def apply(self, W, M):
        """M w_i for every task, M given by its diagonal, shape (B, d)."""
        return W * M[:, None, :]

    def prox(self, W, threshold):
        return self.apply(W, self.projection(self.covariance(W), threshold))


@dataclass(frozen=True)
class L1(Penalty):
    """Entry-wise l1 norm: tasks stay separate (M = I), nothing is shared.

    Its proximal operator takes a threshold for each candidate, (B,), or for each task, (B, m).
    """

    name: ClassVar[str] = "l1"

    def value(self, W):
        return np.abs(W).sum(axis=(-2, -1))

    def dual_norm(self, G):
        return np.abs(G).max(axis=(-2, -1))

    def prox(self, W, threshold):
        threshold = threshold.reshape(len(threshold), -1, 1)
        return np.sign(W) * np.maximum(np.abs(W) - threshold, 0)


@dataclass(frozen=True)
class L12(Penalty):
    """Sum of the tasks' Euclidean norms, columnwise l2: a task's part is whole or zero."""

    name: ClassVar[str] = "l12"

    def value(self, W):
        return np.sqrt((W**2).sum(axis=-1)).sum(axis=-1)

    def dual_norm(self, G):
        return np.sqrt((G**2).sum(axis=-1)).max(axis=-1)

    def prox(self, W, threshold):
        norms = np.sqrt((W**2).sum(axis=-1, keepdims=True))
        return W * _shrinkage(norms, threshold[:, None, None])


@dataclass(frozen=True)
class SquaredFrobenius(Penalty):
    """Squared Frobenius norm: a task's own part is shrunk and never zero."""

    name: ClassVar[str] = "frobenius"

    def value(self, W):
        return (W**2).sum(axis=(-2, -1))

    def prox(self, W, threshold):
        return W / (1 + 2 * threshold[:, None, None])


ALL = (TraceNorm(), SquaredTraceNorm(), GroupL1(), L1(), L12(), SquaredFrobenius())
PENALTIES = {penalty.name: penalty for penalty in ALL}


def penalty_named(name):
    """The penalty of this name, a key of `PENALTIES`."""
    require(name in PENALTIES, f"unknown penalty {name!r}: choose one of {sorted(PENALTIES)}")
    return PENALTIES[name]

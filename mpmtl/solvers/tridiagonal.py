r"""Systems (B + gamma I) x = b of many positive semidefinite matrices B, for many gamma each.

B = Q T Q' with a tridiagonal T and a product Q of Householder reflections costs a fraction of B's
eigenvectors, and T + gamma I = L diag(p) L' is O(d) for each gamma. Tasks are the last axis here,
as every step is the same for all of them.
"""

import numpy as np
from scipy.linalg.lapack import dsytrd, dsytrd_lwork


class Tridiagonal:
    """T and Q of a batch of matrices, B = Q T Q'.

    Parameters
    ----------
    B : ndarray, shape (m, d, d)
        Overwritten.

    Attributes
    ----------
    diagonal, off : ndarray, shape (d, m) and (d - 1, m)
        Of T.
    """

    def __init__(self, B):
        m, d = B.shape[:2]
        diagonal, off, factors = (np.empty((m, k)) for k in (d, d - 1, d - 1))
        size = int(dsytrd_lwork(d, lower=1)[0])
        for i, matrix in enumerate(B):  # its transpose is the same, in the order of LAPACK: no copy
            below, diagonal[i], off[i], factors[i], _ = dsytrd(
                matrix.T, lower=1, lwork=size, overwrite_a=1
            )
            B[i] = below.T
        self.diagonal, self.off, self.factors = (part.T.copy() for part in (diagonal, off, factors))
        # reflection k is I - factor v v', v = (0, .., 0, 1, what LAPACK leaves below in column k)
        self.v = np.ascontiguousarray(B.transpose(1, 2, 0))
        for k in range(d - 1):
            self.v[k, k + 1] = 1

    def into(self, x):
        """Q'x for x of shape (columns, d, m)."""
        return self._reflected(x, range(len(self.off)))

    def back(self, x):
        """Q x for x of shape (columns, d, m)."""
        return self._reflected(x, reversed(range(len(self.off))))

    def _reflected(self, x, order):
        x = x.copy()
        for k in order:
            v, rest = self.v[k, k + 1 :], x[:, k + 1 :]
            along = self.factors[k] * np.einsum("cdm,dm->cm", rest, v)
            rest -= along[:, None] * v
        return x

    def factorised(self, gamma):
        """L and p of T + gamma I = L diag(p) L'.

        Parameters
        ----------
        gamma : ndarray, shape (g, m)

        Returns
        -------
        pivots : ndarray, shape (d, g, m)
            p, at least gamma, as T has no negative eigenvalue but by rounding.
        lower : ndarray, shape (d - 1, g, m)
            Below the diagonal of L.
        """
        pivots = self.diagonal[:, None] + gamma
        lower = np.empty((len(self.off), *gamma.shape))
        np.maximum(pivots[0], gamma, out=pivots[0])
        for j, off in enumerate(self.off):
            np.divide(off, pivots[j], out=lower[j])
            pivots[j + 1] -= off * lower[j]
            np.maximum(pivots[j + 1], gamma, out=pivots[j + 1])
        return pivots, lower


def solved(pivots, lower, b):
    """(L diag(p) L')^{-1} b for b of shape (d, m); shape (d, g, m)."""
    x = np.empty(pivots.shape)
    x[0] = b[0]
    for j, factor in enumerate(lower):
        np.subtract(b[j + 1], factor * x[j], out=x[j + 1])
    x /= pivots
    for j in reversed(range(len(lower))):
        x[j] -= lower[j] * x[j + 1]
    return x

"""The linear algebra of task relations Omega: its inverse, and the tasks' solutions given it."""

from dataclasses import dataclass

import numpy as np

JITTER = 1e-6  # added to Omega before it is inverted


@dataclass
class Relation:
    r"""Inverse of Omega + 1e-6 I for a batch, never formed: (I - V diag(D) V')/c.

    With the thin singular value decomposition W' = V diag(s) U' and s scaled to sum 1,
    Omega = V diag(s) V', D = s/(s + c), c = 1e-6. The start is Omega = I/m: D = 0, c = 1/m.

    Attributes
    ----------
    V : ndarray, shape (B, m, k)
    D : ndarray, shape (B, k)
    c : float
    """

    V: np.ndarray
    D: np.ndarray
    c: float

    @classmethod
    def start(cls, B, m):
        """Omega = I/m for a batch of B."""
        return cls(np.zeros((B, m, 1)), np.zeros((B, 1)), 1 / m)

    @classmethod
    def of_models(cls, W):
        """Omega = (W'W)^(1/2) / tr of models with shape (B, m, d)."""
        V, s, _ = np.linalg.svd(W, full_matrices=False)
        total = s.sum(axis=1, keepdims=True)
        s = s / np.where(total > 0, total, 1)
        return cls(V, s / (s + JITTER), JITTER)

    @property
    def diagonal(self):
        """(Omega^-1)_ii, shape (B, m)."""
        return (1 - np.einsum("bmk,bk->bm", self.V**2, self.D)) / self.c

    def omega(self):
        """Omega itself, shape (B, m, m)."""
        if not self.D.any():
            m = self.V.shape[1]
            return np.broadcast_to(np.eye(m) / m, (len(self.V), m, m))
        s = self.c * self.D / (1 - self.D)
        return np.matmul(self.V * s[:, None, :], self.V.swapaxes(1, 2))


class TaskSolver:
    """Closed-form solutions of the tasks, from eigendecompositions made once."""

    def __init__(self, datafit):
        twice = 2 / np.maximum(datafit.n, 1)
        values, self.Q = np.linalg.eigh(twice[:, None, None] * datafit.gram)
        self.values = np.maximum(values, 0)
        self.b = twice[:, None] * datafit.xty

    def solve_all(self, shift):
        """[(2/n_i) X_i'X_i + shift_i I]^-1 (2/n_i) X_i'y_i of every task, shape (m, d)."""
        rotated = np.einsum("mdk,md->mk", self.Q, self.b)
        return np.einsum("mdk,mk->md", self.Q, _quotient(rotated, self.values + shift[:, None]))

    def solve(self, i, shift, right):
        """[(2/n_i) X_i'X_i + shift I]^-1 right for a batch: shift (B,), right (B, d)."""
        rotated = right @ self.Q[i]
        return _quotient(rotated, self.values[i] + shift[:, None]) @ self.Q[i].T


def _quotient(a, b):
    """a/b where b > 0, and 0 elsewhere: what has neither data nor a penalty stays zero."""
    return np.where(b > 0, a / np.where(b > 0, b, 1), 0)


def sweep(solver, W, relation, lam1, lam2, perturb):
    r"""One Gauss-Seidel pass over the tasks; W is changed.

    .. math:: w_i = \Bigl[\frac2{n_i} X_i'X_i + (\lambda_1 + \lambda_2 \Omega^{-1}_{ii}) I
        \Bigr]^{-1} \Bigl[\frac2{n_i} X_i'y_i - \lambda_2 \sum_{j \ne i} \Omega^{-1}_{ij} w_j
        \Bigr]

    Parameters
    ----------
    W : ndarray, shape (B, m, d)
    lam1, lam2 : ndarray, shape (B,)
    perturb : callable
        ``perturb(i, w, kappa)`` returns what task i releases instead of w, kappa = lambda_1 +
        lambda_2 Omega^-1_ii.
    """
    diagonal = relation.diagonal
    H = np.matmul(relation.V.swapaxes(1, 2), W)  # V'W, updated below
    for i in range(W.shape[1]):
        v, old = relation.V[:, i], W[:, i]
        whole = (old - np.matmul((relation.D * v)[:, None], H)[:, 0]) / relation.c
        others = whole - diagonal[:, i, None] * old
        kappa = lam1 + lam2 * diagonal[:, i]
        new = solver.solve(i, kappa, solver.b[i] - lam2[:, None] * others)
        new = perturb(i, new, kappa)
        H += v[:, :, None] * (new - old)[:, None]
        W[:, i] = new

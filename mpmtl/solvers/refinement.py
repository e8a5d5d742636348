r"""Refinement of a subspace that many models share: a step of alternating minimisation.

After releases of second moments the top eigenvectors U (d x r) of S are known up to an angle whose
size follows from the noise's spectrum. A task's solution under C = U diag(levels) U' + f (I - UU')
is w = U b + a with U'a = 0; a z' with z = b/||b|| and a/||b|| clipped to c is its part of

.. math:: G = \sum_i a_i z_i' + \text{noise}

which says where U should turn. Its noise is proportional to c, which is the size of the angle that
is left, so it is far smaller than that of a new second moment. Everything but `contributions` uses
releases and public constants only.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import expm

from mpmtl.solvers.noisy_covariance import Prior, spike, strength

MOST = 6  # columns of U at most
CLIP = 0.25  # c in units of the angle that is left ...
LEAST_CLIP = 0.03  # ... and its least value
STEEP = 5.0  # tangent of an angle of which nothing is known
FLOORS = (1.0, 0.1, 0.01)  # variance off the subspace, in units of that of the angle


@dataclass(frozen=True)
class Subspace:
    """Directions that the models share, and how well they are known.

    Attributes
    ----------
    U : ndarray, shape (d, r)
        Orthonormal.
    levels : ndarray, shape (r,)
        Second moments of the v_i along the columns.
    tangent : ndarray, shape (r,)
        Tangents of the angles between the columns and what they stand for.
    turn : ndarray, shape (d, d)
        Rotation from the eigenvectors to U.
    """

    U: np.ndarray
    levels: np.ndarray
    tangent: np.ndarray
    turn: np.ndarray

    @property
    def angle2(self):
        """Mean squared tangent, weighted by levels."""
        return float(self.tangent**2 @ self.levels / self.levels.sum())

    @property
    def clip(self):
        """c: a public bound of what is released."""
        return max(CLIP * np.sqrt(self.angle2), LEAST_CLIP)

    def prior(self, floor=1.0):
        """C = U diag(levels) U' + f (I - UU') of trace d, f the variance of the angle a coordinate,
        times `floor`."""
        d = len(self.U)
        f = max(self.angle2 / d, 1e-6) * floor
        levels = self.levels / self.levels.sum()
        C = (self.U * (levels - f)) @ self.U.T + f * np.eye(d)
        return Prior("subspace", C * d / np.trace(C))

    def turned(self, prior):
        """The prior after the rotation."""
        mean = None if prior.mean is None else self.turn @ prior.mean
        return replace(prior, C=self.turn @ prior.C @ self.turn.T, mean=mean)

    def refined(self, G, sd):
        r"""The subspace after a release G with noise of standard deviation sd in each entry.

        A column g of (I - UU') G has the squared cosine
        :math:`c^2 = (1 - (d - r)\,\text{sd}^2/\|g\|^2)_+` with what it shows; the step is
        tangent c^2 g/||g||, the posterior mean of a vector of that length, and c^2 of the squared
        tangent is taken away. The column then has the second moment strength/(1 + tangent^2).
        """
        U = self.U
        d, r = U.shape
        G = G - U @ (U.T @ G)
        length = np.maximum(np.linalg.norm(G, axis=0), 1e-300)
        cosine2 = np.clip(1 - (d - r) * (sd / length) ** 2, 0, 1)
        step = self.tangent * cosine2 / length * G
        turn = expm(step @ U.T - U @ step.T)
        tangent = self.tangent * np.sqrt(1 - cosine2)
        levels = self.levels * (1 + self.tangent**2) / (1 + tangent**2)
        return Subspace(turn @ U, levels, tangent, turn @ self.turn)


def rank(d):
    """Columns of U in dimension d, which is public; 0 where nothing is left beside them."""
    return min(MOST, d // 2)


def subspace_of(S, noise):
    """The top eigenvectors of a noisy second moment (noise centred)."""
    d = len(S)
    values, vectors = np.linalg.eigh(S)
    values, U = values[-rank(d) :], vectors[:, -rank(d) :]
    seen = values > 1.02 * noise.radius
    inside = np.where(seen, values, 1.02 * noise.radius)
    levels = np.where(seen, spike(inside, noise), 0.3 * noise.radius)
    theta = np.where(seen, strength(inside, noise), noise.radius / 2)
    tangent = np.sqrt(np.clip(theta / levels - 1, 0, STEEP**2))
    levels = np.maximum(levels, 0.05 * levels.max())
    return Subspace(U, levels, tangent, np.eye(d))


def contributions(W, U):
    """a_i z_i' of models W, shape (m, d, r), z_i of unit length; the gate clips them to c."""
    inside = W @ U
    size = np.linalg.norm(inside, axis=1)[:, None]
    size = np.where(size > 0, size, 1)
    outside = (W - inside @ U.T) / size
    return outside[:, :, None] * (inside / size)[:, None, :]

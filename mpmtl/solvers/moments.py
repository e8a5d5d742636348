"""Second moment and mean of the tasks' normalised models from noisy releases: post-processing."""

import numpy as np

from mpmtl.privacy.clipping import bounded
from mpmtl.solvers.noisy_covariance import noise_spectrum, priors, shrunk_mean

HOPELESS = 3.0  # noise to the largest signal above which tasks stay separate


class Moments:
    """Second moment and mean of the normalised models v_i, pooled over the releases so far.

    Uses releases and public constants only.
    """

    def __init__(self, affine, m, d, mechanism):
        self.affine, self.m, self.d = affine, m, d
        self.noise = noise_spectrum(mechanism, d)
        self.mean, self.radius, self.precision = np.zeros(d), 1.0, 0.0
        self.S, self.total = np.zeros((d, d)), np.zeros(d)
        self.scale = self.sd = 0.0  # of the pooled noise on S and on the sum
        self.rounds, self.ahead = 0, None

    @property
    def K2(self):
        """Bound of the squared norm of the vectors of the next release."""
        return self.radius**2 * (1 + self.affine)

    def vectors(self, V):
        """u_i = (clipped v_i - mean, radius sqrt(beta)), shape (m, d + 1); (m, d) if beta = 0."""
        U = bounded(V - self.mean, self.radius)
        if self.affine == 0:
            return U
        return np.column_stack([U, np.full(len(U), self.radius * np.sqrt(self.affine))])

    def add(self, release, scale):
        """Take in the noisy sum of u_i u_i', whose noise is K2 times `scale` times standard."""
        d, mean = self.d, self.mean
        self.scale = self.K2 * scale
        S = release[:d, :d] - self.scale * self.noise.center * np.eye(d)
        total = np.zeros(d)
        if self.affine > 0:
            total = release[:d, d] / (self.radius * np.sqrt(self.affine))
            self.sd = self.scale * self.noise.sd / (self.radius * np.sqrt(self.affine))
        cross = np.outer(total, mean)
        S = S + cross + cross.T + self.m * np.outer(mean, mean)
        precision = 1 / self.scale**2 if self.scale > 0 else 1.0
        self.precision += precision
        share = precision / self.precision
        step = total / self.m  # where this release moves the mean of the ones before
        self.ahead = mean + 2 * step if self.rounds > 0 and self.affine > 0 else None
        self.rounds += 1
        self.S = (1 - share) * self.S + share * S
        self.total = (1 - share) * self.total + share * (total + self.m * mean)
        if self.scale > 0:
            pooled = 1 / np.sqrt(self.precision)
            self.sd, self.scale = self.sd * pooled / self.scale, pooled
        if self.affine > 0:
            self.mean = shrunk_mean(self.total, self.sd, self.m)
            self.radius = np.sqrt(1 - self.mean @ self.mean)

    def priors(self, own, ahead=True, logistic=False):
        """The candidate priors; `own` leaves every task's own direction free. With `ahead` the mean
        is also tried where the rounds seem to go, which tasks cannot tell from their own rows.
        `logistic`: see `noisy_covariance.priors`."""
        total = self.total if self.affine > 0 else None
        ahead = self.ahead if ahead else None
        noise = self.noise.scaled(self.scale)
        return priors(self.S, total, noise, self.sd, self.m, own, ahead, logistic)

    @property
    def hopeless(self):
        """Whether noise hides every eigenvalue of S (at most m) and the sum of the v_i."""
        hidden = self.noise.radius * self.scale > self.m
        return hidden and hopeless(self.sd, self.d, self.m)


def hopeless(sd, d, m):
    """Whether noise on a sum of m unit vectors is some times the largest norm of the sum, m."""
    return sd * np.sqrt(d) > HOPELESS * m

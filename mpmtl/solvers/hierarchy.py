r"""A hyper-prior for the tasks' noise-to-signal ratios, and averages over priors that use it.

The ratio of a task under a prior is :math:`\rho = \gamma / \text{signal}`, where signal is the mean
square of x'w for tau = 1 (with an intercept, the variance): the variance of the noise over that of
what the prior explains, whatever the prior. Tasks know little about their own; a Cauchy prior on
log(rho), whose tails leave it to a task to be unlike the others, lends them what is known of all.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax

from mpmtl.solvers.gaussian_prior import TINY

REACH = 3.0  # a task's log ratio is clipped this far from the center of BELIEF
SPREAD = 0.5  # scale of the log ratio over tasks
GRID = np.logspace(-6, 2, 17)  # of gamma, in units of a task's mean squared row norm
HOT = 2.0  # temperature of a task's evidence for a prior: that of few samples is overconfident


@dataclass(frozen=True)
class Belief:
    """Mean and variance of the mean over tasks of log(rho)."""

    center: float
    variance: float

    def updated(self, released, noise_variance):
        """The belief after a release of that mean with noise of this variance (normal-normal)."""
        weight = self.variance / (self.variance + noise_variance)
        return Belief(self.center + weight * (released - self.center), weight * noise_variance)


BELIEF = Belief(-2.3, 4.0)  # before anything is seen: public


def log_ratio(path, scale=1.0):
    """log(gamma/signal) of each gamma and task, shape (g, m)."""
    return np.log(np.maximum(path.gamma, TINY)) - np.log(path.signal(scale))


def preferences(path):
    r"""q_i in [-1, 1]: a task's posterior mean of log(rho) under a flat prior on the grid, clipped
    to the center of `BELIEF` +- `REACH` and scaled; shape (m, 1). A task whose rows show nothing
    (none, or all zero) has no preference: q_i = 0."""
    log_evidence, _ = path.weighed()
    mean = (softmax(log_evidence, axis=0) * log_ratio(path)).sum(axis=0)
    q = np.clip((mean - BELIEF.center) / REACH, -1, 1)
    return np.where(path.signal() > TINY, q, 0.0)[:, None]


def by_hierarchy(paths, scales, belief):
    r"""Weights of every task's average over priors, scales of their mean, and gamma.

    Within a prior (and a scale of its mean) gamma has its posterior weights under the density

    .. math:: p(\log\rho) \propto \frac{1}{1 + (\log\rho - \text{center})^2/s^2}, \quad
        s^2 = \text{variance} + \text{SPREAD}^2

    and priors have weights proportional to (their evidence)^(1/HOT).

    Parameters
    ----------
    paths : list of PriorPath
    scales : tuple of float
        a/tau to average over for priors with a mean.
    belief : Belief

    Returns
    -------
    weights : ndarray, shape (P, g, m)
    terms : list of (PriorPath, ndarray or None)
        What is averaged (`gaussian_prior.averages`).
    """
    variance = belief.variance + SPREAD**2
    log_evidence, terms = [], []
    for path in paths:
        for scale in scales if path.e is not None else (1.0,):
            evidence, a = path.weighed(scale)
            log_prior = -np.log1p((log_ratio(path, scale) - belief.center) ** 2 / variance)
            log_evidence.append(evidence + log_prior - logsumexp(log_prior, axis=0))
            terms.append((path, a))
    log_evidence = np.stack(log_evidence)
    within = softmax(log_evidence, axis=1)
    among = softmax(logsumexp(log_evidence, axis=1) / HOT, axis=0)
    return among[:, None] * within, terms

"""One choice of prior, gamma and scale of the mean for all tasks, by the leave-one-out error.

It is made from all tasks' data, outside every budget.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import softmax

from mpmtl.chunks import CHUNK, Chunked
from mpmtl.methods.prior_steps import GAMMA, Own, averaged, by_weights, paths_of
from mpmtl.solvers.gaussian_prior import TINY, best_scale

AROUND = np.array([0.5, 1.0, 2.0])  # gamma for the logistic loss, in units of the ridge of W0
FAR = np.array([0.1, 0.5, 2.0, 8.0, 32.0, 128.0])  # the same with an intercept
WIDEST = (1e-10, 1e6)  # how far the grid goes on where the best gamma is at an end
TEMPER = 16  # a Gaussian likelihood would have 2
HEAT = 60  # a weight of e^-60 of the best one is nothing
RUNNERS = CHUNK  # with more chunks than one, priors are first tried on so many tasks ...
MARGIN = 8  # ... and left out if they are worse by so many standard errors and have no weight


@dataclass(frozen=True)
class Judged:
    """A prior with its errors over all tasks together.

    Attributes
    ----------
    prior : Prior
    errors : ndarray, shape (g,)
    scale : ndarray, shape (g,), or None
        The best a.
    path : PriorPath or None
        Where there is one chunk only.
    """

    prior: object
    errors: np.ndarray
    scale: np.ndarray | None
    path: object = None


@dataclass(frozen=True)
class SharedChoice:
    """The errors of priors over all tasks, and averages by them.

    With one chunk every prior is judged and its path is kept for the average. With more, those that
    a sample of tasks shows to have no weight are left out, and what is left is worked out once for
    the errors and once for the average, so that memory is that of a chunk.

    Attributes
    ----------
    tasks : Chunked
        Of losses.
    m, N : int
        Tasks and samples.
    logistic : bool
    """

    tasks: Chunked
    m: int
    N: int
    logistic: bool

    def judge(self, own, priors, grid, again=False, rivals=()):
        """`Judged` priors, those that cannot have weight left out; `rivals` were judged before."""
        if len(self.tasks) == 1:
            (loss,), (state,) = self.tasks.each(), own.each()
            paths, _ = paths_of(loss, state, priors, grid, again)
            scales = [best_of(path) for path in paths]
            errors = [p.left_out_errors(a).mean(axis=1) for p, a in zip(paths, scales, strict=True)]
            return list(map(Judged, priors, errors, scales, paths))
        priors, guesses = self._tried(own, priors, grid, again, rivals)
        sums = self.tasks.total(partial(_sums, priors, grid, again, guesses), own)
        scales = [
            None if a is None else a + best_scale(s[1], s[2])
            for a, s in zip(guesses, sums, strict=True)
        ]
        if self.logistic:
            errors = self.tasks.total(partial(_errors, priors, grid, again, scales), own)
        else:  # the square about the guess, completed
            errors = [s[0] - s[1] ** 2 / np.maximum(s[2], TINY) for s in sums]
        return [Judged(p, e / self.m, a) for p, e, a in zip(priors, errors, scales, strict=True)]

    def alone(self, own, separate, intercept):
        """Grid of gamma, and the priors of tasks on their own, judged."""
        if self.logistic:
            grid = FAR if intercept else AROUND
            return grid, self.judge(own, separate, grid)
        judged = []

        def errors_of(grid):
            judged[:] = self.judge(own, separate, grid)
            return np.min([j.errors for j in judged], axis=0)

        grid = widened(errors_of, GAMMA)
        return grid, judged

    def average(self, own, judged, grid, again=False):
        """Chunks after a round: weights of priors and gamma by their errors, the same for all."""
        weights = left_out_weights(np.stack([j.errors for j in judged]), self.N)
        some = [k for k in range(len(judged)) if weights[k].max() > np.exp(-HEAT)]
        weigh = partial(by_weights, weights[some], [judged[k].scale for k in some])
        step = partial(averaged, weigh, [judged[k].prior for k in some], grid, again)
        if all(judged[k].path is not None for k in some):
            return self.tasks.map(step, own, Chunked([[judged[k].path for k in some]]))
        return self.tasks.map(step, own)

    def _tried(self, own, priors, grid, again, rivals):
        """The priors that a sample does not show to have no weight, and their scales there."""
        stride = math.ceil(self.m / RUNNERS)
        some = self.tasks.map(partial(_thinned, stride), own)
        errors, scales = [], []
        for prior in (*(j.prior for j in rivals), *priors):
            runs = []
            for loss, state in some.each():
                (path,), _ = paths_of(loss, state, [prior], grid, again)
                runs.append(path)
            sums = [path.scale_sums() for path in runs] if prior.mean is not None else []
            a = best_scale(*map(sum, zip(*sums, strict=True))) if sums else None
            scales.append(a)
            errors.append(np.concatenate([path.left_out_errors(a) for path in runs], axis=1))
        alive = in_the_race(np.stack(errors), self.N)[len(rivals) :]
        scales = scales[len(rivals) :]
        if not alive.any() and not rivals:
            alive[:] = True
        kept = np.flatnonzero(alive)
        return [priors[k] for k in kept], [scales[k] for k in kept]


def in_the_race(errors, N):
    """Which priors may have weight, from the errors of some tasks, shape (P, g, tasks)."""
    mean = errors.mean(axis=2)
    best = np.unravel_index(mean.argmin(), mean.shape)
    behind = errors - errors[best]
    sd = behind.std(axis=2, ddof=1) / np.sqrt(errors.shape[2])
    least = behind.mean(axis=2) - MARGIN * sd
    lost = N / TEMPER * np.log1p(np.maximum(least, 0) / max(mean[best], TINY)) > HEAT
    return ~lost.all(axis=1)


def left_out_weights(errors, N):
    """Weights of priors and gamma, proportional to e^(-N/16) for an error e over N samples."""
    return softmax(-N / TEMPER * np.log(np.maximum(errors, TINY)))


def best_of(path):
    """The best scale of a path's mean by its own tasks, shape (g,), or None."""
    return None if path.e is None else best_scale(*path.scale_sums())


def widened(errors_of, grid):
    """The grid, longer at an end while the best gamma of separate tasks is there: so a task's own
    mean and its least squares are among the candidates.

    Parameters
    ----------
    errors_of : callable
        ``errors_of(grid)`` gives the least error of each gamma.
    grid : ndarray, shape (g,)
    """
    step = grid[1] / grid[0]
    while True:
        best = np.argmin(errors_of(grid))
        if best == 0 and grid[0] > WIDEST[0]:
            grid = np.append(grid[0] / step ** np.array([2, 1]), grid)
        elif best == len(grid) - 1 and grid[-1] < WIDEST[1]:
            grid = np.append(grid, grid[-1] * step ** np.array([1, 2]))
        else:
            return grid


def _sums(priors, grid, again, guesses, loss, own):
    """Of each prior the sums over a chunk of e^2, e p and p^2 with e = r - guess p, (P, 3, g)."""
    sums = []
    for prior, a in zip(priors, guesses, strict=True):
        (path,), _ = paths_of(loss, own, [prior], grid, again)
        sums.append(path.square_sums(a))
    return np.stack(sums)


def _errors(priors, grid, again, scales, loss, own):
    """Of each prior the sum over a chunk of the errors, (P, g)."""
    paths, _ = paths_of(loss, own, priors, grid, again)
    return np.stack([p.left_out_errors(a).sum(axis=1) for p, a in zip(paths, scales, strict=True)])


def _thinned(stride, loss, own):
    """Every so manieth task of a chunk."""
    tasks = slice(None, None, stride)
    return loss.chunk(tasks), Own(*(None if part is None else part[tasks] for part in own))

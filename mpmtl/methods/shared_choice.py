"""One choice of prior, gamma and scale of the mean for all tasks, by the leave-one-out error.

It is made from all tasks' data, outside every budget.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import softmax

from mpmtl.chunks import CHUNK, Chunked
from mpmtl.methods.prior_steps import (
    GAMMA,
    Own,
    at_of,
    averaged,
    by_weights,
    gamma_grid,
    less_shrunk,
    paths_of,
)
from mpmtl.solvers.gaussian_prior import TINY, PriorPath, PriorPoints, best_scale, rows_at

AROUND = np.array([0.5, 1.0, 2.0])  # gamma for the logistic loss, in units of the ridge of W0
FAR = np.array([0.1, 0.5, 2.0, 8.0, 32.0, 128.0])  # the same with an intercept
WIDEST = (1e-10, 1e6)  # how far the grid goes on where the best gamma is at an end
TEMPER = 16  # a Gaussian likelihood would have 2
HEAT = 60  # a weight of e^-60 of the best one is nothing
RUNNERS = CHUNK  # with more chunks than one, priors are first tried on so many tasks ...
SPARSEST = 64  # ... or on one of so many, if that is more ...
LARGER = 8  # ... and those left again on so many times the tasks ...
MARGIN = 6  # ... and left out if they are worse by so many standard errors and have no weight
FEW = 3  # gamma up to which equations are solved instead of an eigendecomposition


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
            paths, _ = paths_of(loss, state, priors, grid, again, PriorPath)
            scales = [best_of(path) for path in paths]
            errors = [p.left_out_errors(a).mean(axis=1) for p, a in zip(paths, scales, strict=True)]
            return list(map(Judged, priors, errors, scales, paths))
        guesses, alive = self._tried(own, priors, grid, again, rivals)
        left = np.flatnonzero(alive.any(axis=1))
        priors, guesses, alive = [priors[k] for k in left], [guesses[k] for k in left], alive[left]
        if not priors:
            return []
        sums = self.tasks.total(partial(_sums, priors, grid, again, guesses, alive), own)
        scales = [
            None if a is None else a + best_scale(s[1], s[2])
            for a, s in zip(guesses, sums, strict=True)
        ]
        if self.logistic:
            errors = self.tasks.total(partial(_errors, priors, grid, again, scales, alive), own)
        else:  # the square about the guess, completed
            errors = [s[0] - s[1] ** 2 / np.maximum(s[2], TINY) for s in sums]
        errors = np.where(alive, errors, np.inf) / self.m
        return [Judged(p, e, a) for p, e, a in zip(priors, errors, scales, strict=True)]

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
        chosen = [judged[k] for k in some]
        priors, scales = [j.prior for j in chosen], [j.scale for j in chosen]
        if all(j.path is not None for j in chosen):
            weigh = partial(by_weights, weights[some], scales)
            step = partial(averaged, weigh, priors, grid, again)
            return self.tasks.map(step, own, Chunked([[j.path for j in chosen]]))
        return self.tasks.map(partial(_average, weights[some], scales, priors, grid, again), own)

    def _tried(self, own, priors, grid, again, rivals):
        """Scales of the means by a sample of the tasks, and which gamma it leaves in the race."""
        every = [*(j.prior for j in rivals), *priors]
        alive = np.ones((len(every), len(grid)), dtype=bool)
        scales = np.zeros(alive.shape)
        for stride in strides(self.m):
            left = np.flatnonzero(alive.any(axis=1))
            runners = [every[k] for k in left]
            some = partial(_of_some, stride, _squares, runners, grid, again, alive[left])
            e2, ep, p2 = np.concatenate(list(self.tasks.map(some, own).each()), axis=2)
            best = best_scale(ep.sum(axis=1), p2.sum(axis=1))
            scales[alive] = best
            if self.logistic:
                settings = (runners, grid, again, scales[left], alive[left])
                some = partial(_of_some, stride, _errors_by_task, *settings)
                errors = np.concatenate(list(self.tasks.map(some, own).each()), axis=1)
            else:
                errors = e2 - 2 * best[:, None] * ep + best[:, None] ** 2 * p2
            alive[alive] = in_the_race(errors, self.N)
        for k, prior in enumerate(every):
            if prior.mean is not None:  # models that are shown need its scale as well
                alive[k] |= less_shrunk(alive[k].astype(float)) > 0
        scales = [None if p.mean is None else a for p, a in zip(every, scales, strict=True)]
        return scales[len(rivals) :], alive[len(rivals) :]


def strides(m):
    """Steps from task to task of the samples of a race, each larger than the one before."""
    first = min(math.ceil(m / RUNNERS), SPARSEST)
    return [first // LARGER**k for k in range(3) if k == 0 or first // LARGER**k > 1]


def in_the_race(errors, N):
    """Which pairs of prior and gamma may have weight, by their errors of some tasks, (K, tasks)."""
    mean = errors.mean(axis=1)
    best = mean.argmin()
    behind = errors - errors[best]
    sd = behind.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
    least = behind.mean(axis=1) - MARGIN * sd
    return N / TEMPER * np.log1p(np.maximum(least, 0) / max(mean[best], TINY)) <= HEAT


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


def _paths(priors, grid, again, alive, loss, own):
    """Paths under each prior at the gamma alive, shape (P, g), one after another."""
    rows = rows_at(loss, at_of(loss, own, again), own.weight)
    for prior, some in zip(priors, alive, strict=True):
        kind = PriorPath if some.sum() > FEW else PriorPoints
        yield kind(rows, prior, gamma_grid(rows, grid[some], own.ridge)), some


def _sums(priors, grid, again, guesses, alive, loss, own):
    """Of each prior the sums over a chunk of e^2, e p and p^2 with e = r - guess p, (P, 3, g)."""
    sums = np.zeros((len(priors), 3, len(grid)))
    runs = _paths(priors, grid, again, alive, loss, own)
    for k, (a, (path, some)) in enumerate(zip(guesses, runs, strict=True)):
        sums[k][:, some] = path.square_sums(a if np.ndim(a) == 0 else a[some])
    return sums


def _errors(priors, grid, again, scales, alive, loss, own):
    """Of each prior the sum over a chunk of the errors, (P, g)."""
    errors = np.zeros((len(priors), len(grid)))
    runs = _paths(priors, grid, again, alive, loss, own)
    for k, (a, (path, some)) in enumerate(zip(scales, runs, strict=True)):
        errors[k, some] = path.left_out_errors(None if a is None else a[some]).sum(axis=1)
    return errors


def _squares(priors, grid, again, alive, loss, own):
    """`PriorPath.squares_by_task` of the K pairs alive, shape (3, K, m)."""
    runs = _paths(priors, grid, again, alive, loss, own)
    return np.concatenate([path.squares_by_task() for path, _ in runs], axis=1)


def _errors_by_task(priors, grid, again, scales, alive, loss, own):
    """The errors of every task of the K pairs alive, (K, m)."""
    runs = _paths(priors, grid, again, alive, loss, own)
    errors = [
        path.left_out_errors(None if prior.mean is None else a[some])
        for prior, a, (path, some) in zip(priors, scales, runs, strict=True)
    ]
    return np.concatenate(errors)


def _average(weights, scales, priors, grid, again, loss, own):
    """A chunk after a round: `averages` with the same weights, (P, g), for all tasks."""
    total, m = 0.0, loss.shape[0]
    both = np.stack([weights, less_shrunk(weights.T).T], axis=1)
    alive = both.max(axis=1) > np.exp(-HEAT)
    runs = _paths(priors, grid, again, alive, loss, own)
    for omega, a, (path, some) in zip(both, scales, runs, strict=True):
        omega = np.repeat(omega[:, some, None], m, axis=2)
        total = total + path.averages(omega, None if a is None else a[some, None])
    return own._replace(W=total[0], shown=total[1], at=at_of(loss, own, again))


def _of_some(stride, step, *arguments):
    """A step of every so manieth task of a chunk."""
    *settings, loss, own = arguments
    tasks = slice(None, None, stride)
    some = Own(*(None if part is None else part[tasks] for part in own))
    return step(*settings, loss.chunk(tasks), some)

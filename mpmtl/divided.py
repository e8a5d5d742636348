"""A loss whose chunks are worked on by an engine, or loaded only when their turn has come."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mpmtl.chunks import Chunked
from mpmtl.solvers.single_task import free_intercept, ridge_path, ridge_solver


@dataclass(frozen=True)
class DividedLoss:
    """Stands for the `Loss` of all tasks in a fit by chunks, see `mpmtl.chunks`.

    Attributes
    ----------
    parts : Chunked
        Losses of the chunks, or what has them when it is ``loaded()``.
    n : ndarray of int, shape (m,)
        Samples of each task.
    n_features : int
    logistic, average, intercept, pooled : bool
        As in `Loss`.
    public : float, optional
    n_public : (int, int), optional
    """

    parts: Chunked = field(repr=False)
    n: np.ndarray = field(repr=False)
    n_features: int
    logistic: bool
    average: bool
    intercept: bool = False
    pooled: bool = False
    public: float | None = None
    n_public: tuple | None = None

    @classmethod
    def of(cls, loss, engine):
        """A loss in this process, whose chunks go to the engine."""
        return cls(
            Chunked(loss.chunks().items, engine),
            loss.n,
            loss.shape[1],
            loss.logistic,
            loss.average,
            **loss.common,
        )

    @property
    def shape(self):
        """(m, d)."""
        return len(self.n), self.n_features

    def chunks(self):
        """The chunks (`Chunked`)."""
        return self.parts

    def variance(self):
        """Variance of each task's targets, shape (m,), as `variance_of` has it."""
        return self.parts.map(_variance).whole()

    def gradient(self, W):
        """Shape (B, m, d)."""
        return self.by_task(_gradient, W)

    def by_task(self, function, *models):
        """Models, shape (B, m, d), that a function gives from the loss of a chunk and other models
        of its tasks."""
        columns = [self.parts.beside(W, axis=1) for W in models]
        return np.concatenate(list(self.parts.map(function, *columns).each()), axis=1)

    def lipschitz(self):
        """Largest Lipschitz constant of a task's gradient, or its public bound."""
        return max(self.parts.map(_lipschitz).each())


def _variance(loss):
    return loss.variance()


def _gradient(loss, W):
    return loss.gradient(W)


def _ridge(lams, center, loss, start=None):
    return ridge_solver(loss)(lams, center, start)


@ridge_solver.register
def _(datafit: DividedLoss):
    def solve(lams, center=None, start=None):
        return datafit.by_task(partial(_ridge, lams, center), *([] if start is None else [start]))

    return solve


def _free_path(lams, loss):
    return ridge_path(loss, lams)


@free_intercept.register
def _(datafit: DividedLoss, lams):
    return datafit.by_task(partial(_free_path, lams))


def _lipschitz(loss):
    return loss.lipschitz()


def divided(datafit, engine):
    """The loss with its chunks on the engine, if it has more chunks than one."""
    if engine is None or len(datafit.chunks()) == 1:
        return datafit
    return DividedLoss.of(datafit, engine)

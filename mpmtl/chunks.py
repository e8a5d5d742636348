"""Tasks in chunks: a fit needs the memory of its data and of one chunk, here or elsewhere.

A chunk is `CHUNK` tasks that follow one another (fewer at the end of the data, or of a partition).
Where it starts depends on the data alone, and sums over tasks go chunk by chunk, in order: so the
numbers of a fit are the same bits on one process and on many.

An *engine* does the work. It has ``run(function, *columns)``, which returns an item for each row of
the columns, and ``results(items)``, which yields what the items stand for. What a function gets as
an item of data may be a loss, or something smaller whose ``loaded()`` is one.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce

import numpy as np

CHUNK = 512


@dataclass(frozen=True)
class Serial:
    """One chunk after another in this process."""

    def run(self, function, *columns):
        """Results of the function for each row of the columns."""
        return [function(*row) for row in zip(*columns, strict=True)]

    def results(self, items):
        """The items: they are results."""
        return iter(items)


def slices(m):
    """The chunks of m tasks."""
    return [slice(start, min(start + CHUNK, m)) for start in range(0, m, CHUNK)]


@dataclass(frozen=True)
class Chunked:
    """Something of all tasks, an item for each chunk.

    Attributes
    ----------
    items : list
        What the engine made of each chunk.
    engine : object
    """

    items: list
    engine: object = Serial()

    def __len__(self):
        return len(self.items)

    def map(self, function, *others):
        """The function of each chunk and of the same chunk of others; what they hold is loaded."""
        columns = [self.items, *(other.items for other in others)]
        return Chunked(self.engine.run(partial(on_loaded, function), *columns), self.engine)

    def each(self):
        """Yield what every chunk holds, in order."""
        return self.engine.results(self.items)

    def total(self, function, *others):
        """Sum over the chunks, in order, of the arrays that the function gives."""
        return reduce(operator.add, self.map(function, *others).each())

    def whole(self):
        """Arrays of all tasks together, shape (m, ...)."""
        return np.concatenate([np.asarray(part) for part in self.each()])

    @cached_property
    def _ends(self):
        """Where the losses of all chunks but the last end."""
        return np.cumsum(list(self.map(_size).each()))[:-1]

    def beside(self, array, axis=0):
        """An array of all tasks, m along this axis, in the same chunks as their losses."""
        if len(self.items) == 1:
            return Chunked([array], self.engine)
        return Chunked(np.split(array, self._ends, axis), self.engine)


def _size(loss):
    return loss.shape[0]


def on_loaded(function, *items):
    """The function of items, those loaded that are to be."""
    return function(*(item.loaded() if hasattr(item, "loaded") else item for item in items))


@dataclass(frozen=True)
class Contributions:
    """What all tasks contribute to a release, worked out chunk by chunk where it is added up.

    Attributes
    ----------
    chunks : Chunked
    contribute : callable
        What a chunk contributes: an array of shape (tasks, *contribution).
    m : int
        Tasks.
    others : tuple of Chunked
        Further arguments of `contribute`.
    """

    chunks: Chunked
    contribute: Callable
    m: int
    others: tuple = ()

    def sum(self, function):
        """Sum over the chunks of the function of their contributions."""
        return self.chunks.total(partial(_then, function, self.contribute), *self.others)

    def __array__(self, dtype=None, copy=None):
        """All contributions together, shape (m, *contribution)."""
        whole = self.chunks.map(self.contribute, *self.others).whole()
        return whole if dtype is None else whole.astype(dtype, copy=False)


def _then(function, contribute, *items):
    return function(contribute(*items))


def summed(V, axes, function):
    """Sum over chunks of a function of contributions.

    Parameters
    ----------
    V : Contributions, or ndarray of shape (m, *contribution) or (B, m, *contribution)
    axes : int
        Number of axes of a contribution.
    function : callable
    """
    if isinstance(V, Contributions):
        return V.sum(function)
    own = (slice(None),) * axes
    parts = (V[(..., tasks, *own)] for tasks in slices(V.shape[-1 - axes]))
    return reduce(operator.add, map(function, parts))

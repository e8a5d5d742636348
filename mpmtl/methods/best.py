"""`mtl`: the best of several methods, chosen by cross-validation."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.base import Candidate, Method


@dataclass(frozen=True)
class Variant(Candidate):
    """A candidate of one of the methods."""

    variant: str
    candidate: Candidate

    def as_row(self):
        return {"variant": self.variant, **self.candidate.as_row()}


@dataclass(frozen=True)
class BestOf(Method):
    """All candidates of several non-private methods; the paper's MTL line.

    Parameters
    ----------
    methods : dict of str to Method
    """

    name: str
    methods: dict
    loss_average: bool | None = None
    private: ClassVar[bool] = False
    view: ClassVar[None] = None

    def __post_init__(self):
        for name, method in self.methods.items():
            require(not method.private, f"methods.{name} is private: only others can be")

    def candidates(self, scales):
        return [
            Variant(name, candidate)
            for name, method in self.methods.items()
            for candidate in method.candidates(scales)
        ]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        for name, method in self.methods.items():
            mine = [i for i, c in enumerate(candidates) if c.variant == name]
            if mine:
                chosen = [candidates[i].candidate for i in mine]
                for indices, W in method.fit(datafit, W0, chosen, budget, rng, log):
                    yield np.array(mine)[indices], W

    def limits(self):
        return {k: v for method in self.methods.values() for k, v in method.limits().items()}

    def statement(self, candidate, budget, datafit):
        method = self.methods[candidate.variant]
        return method.statement(candidate.candidate, budget, datafit)

"""`mtl`: the best of several methods, chosen by cross-validation."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.base import Method


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
            require(not method.private, f"method.methods.{name} is private: only others can be")

    def candidates(self, tuning, scales):
        return [
            replace(c, variant=name)
            for name, method in self.methods.items()
            for c in method.candidates(tuning, scales)
        ]

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        for name, method in self.methods.items():
            mine = [i for i, c in enumerate(candidates) if c.variant == name]
            if mine:
                chosen = [candidates[i] for i in mine]
                for indices, W in method.fit(datafit, W0, chosen, budget, rng, log):
                    yield np.array(mine)[indices], W

    def state(self, candidate, budget, datafit):
        return self.methods[candidate.variant].state(candidate, budget, datafit)

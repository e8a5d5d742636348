"""STL: every task on its own."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mpmtl.methods.base import (
    LAM_UNITS,
    Candidate,
    Method,
    at_least_zero,
    count,
    one_of,
)
from mpmtl.methods.proximal import PathCandidate, Proximal
from mpmtl.penalties import L1
from mpmtl.privacy.releases import NO_BUDGET
from mpmtl.privacy.statements import SEPARATE
from mpmtl.solvers.single_task import about_means, ridge_path


@dataclass(frozen=True)
class SingleTaskCandidate(Candidate):
    """Penalty l2 or l1 with its weight lam; rounds of the l1 solver."""

    penalty: str
    lam: float
    n_rounds: int | None = None

    @property
    def separate_ridge(self):
        """The l2 penalty; None for l1."""
        return self.lam if self.penalty == "l2" else None


class Lasso(Proximal):
    """The l1 rounds of separate tasks: every task has a step of its own, 1/L_i."""

    def lipschitz(self, datafit):
        L = datafit.task_lipschitz()
        return np.where(L > 0, L, 1.0)


@dataclass(frozen=True)
class SingleTask(Method):
    """STL: every task on its own, with an l2 or l1 penalty, or the better of both.

    Intercepts are not penalised, but for the l1 penalty with the logistic loss.

    Parameters
    ----------
    penalty : {"l2", "l1", "best"}
    grid : dict
        l2: ridge penalties in units of L, if several, together with `Scales.wider`; l1: penalties
        in ``lam_unit`` ("max": of the smallest one with W = 0, or "absolute"); n_rounds: of the l1
        solver, the largest counts.
    loss_average : bool or None
        Average a task's loss over its samples; None: no for squared, yes for logistic.
    """

    name: str = "stl"
    penalty: str = "l2"
    lam_unit: str = "max"
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "l2": at_least_zero(0.1),
        "l1": at_least_zero(0.1),
        "n_rounds": count(200),
    }
    private: ClassVar[bool] = False
    separate: ClassVar[bool] = True
    view: ClassVar[None] = None

    def __post_init__(self):
        super().__post_init__()
        one_of("penalty", self.penalty, ("l2", "l1", "best"))
        one_of("lam_unit", self.lam_unit, LAM_UNITS)

    def candidates(self, scales):
        candidates = []
        if self.penalty in ("l2", "best"):
            lams = [scales.lipschitz * lam for lam in self.grid["l2"]]
            if len(lams) > 1:
                lams = sorted({*lams, *scales.wider})
            candidates += [SingleTaskCandidate("l2", lam) for lam in lams]
        if self.penalty in ("l1", "best"):
            lams = [scales.lam_unit(L1(), self.lam_unit) * lam for lam in self.grid["l1"]]
            T = max(self.grid["n_rounds"])
            candidates += [SingleTaskCandidate("l1", lam, T) for lam in lams]
        return candidates

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; nothing of `budget` is used."""
        ridge = [i for i, c in enumerate(candidates) if c.penalty == "l2"]
        lasso = [i for i, c in enumerate(candidates) if c.penalty == "l1"]
        if ridge:
            yield np.array(ridge), ridge_path(datafit, [candidates[i].lam for i in ridge])
        if lasso:
            solver = Lasso("l1", "l1", private=False, init="zero")
            chosen = [PathCandidate(candidates[i].lam, candidates[i].n_rounds) for i in lasso]
            slopes, restored = about_means(datafit)
            start = np.zeros(slopes.shape)  # without the intercept, which has no rounds
            for indices, W in solver.fit(slopes, start, chosen, NO_BUDGET, rng):
                yield np.array(lasso)[indices], restored(W)

    @property
    def caveats(self):
        """What a task chooses for itself is its own affair."""
        return ()

    def statement(self, candidate, budget, datafit):
        return SEPARATE

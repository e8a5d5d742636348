"""STL: every task on its own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.base import NO_BUDGET, Candidate, Method
from mpmtl.methods.proximal import Proximal
from mpmtl.penalties import L1
from mpmtl.privacy.statements import SEPARATE, PrivacyStatement
from mpmtl.solvers.single_task import ridge_path


@dataclass(frozen=True)
class SingleTask(Method):
    """STL: every task on its own, with an l2 or l1 penalty, or the better of both.

    Parameters
    ----------
    penalty : {"l2", "l1", "best"}
    loss_average : bool or None
        Average a task's loss over its samples; None: no for squared, yes for logistic.
    """

    name: str = "stl"
    penalty: str = "l2"
    loss_average: bool | None = None
    private: ClassVar[bool] = False
    separate: ClassVar[bool] = True
    view: ClassVar[None] = None

    def __post_init__(self):
        require(
            self.penalty in ("l2", "l1", "best"),
            f"method.penalty = {self.penalty}: use l2, l1 or best",
        )

    def candidates(self, tuning, scales):
        found = []
        if self.penalty in ("l2", "best"):
            found += [Candidate("l2", scales.lipschitz * lam) for lam in tuning.ridge]
        if self.penalty in ("l1", "best"):
            unit = scales.lam_unit(L1(), tuning.lam_unit)
            rounds = max(tuning.path_rounds)
            found += [Candidate("l1", unit * lam, rounds, True, False) for lam in tuning.lam]
        return found

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; nothing of `budget` is used."""
        ridge = [i for i, c in enumerate(candidates) if c.penalty == "l2"]
        lasso = [i for i, c in enumerate(candidates) if c.penalty == "l1"]
        if ridge:
            yield np.array(ridge), ridge_path(datafit, [candidates[i].lam for i in ridge])
        if lasso:
            solver = Proximal("l1", "l1", private=False, init="zero")
            chosen = [candidates[i] for i in lasso]
            for indices, W in solver.fit(datafit, W0, chosen, NO_BUDGET, rng):
                yield np.array(lasso)[indices], W

    def state(self, candidate, budget, datafit):
        return PrivacyStatement(
            "separate tasks", claimed=SEPARATE, proved=SEPARATE, caveats=("tuning-not-charged",)
        )

"""`lr_sp`: Algorithm 4, W = P + Q with P shared and protected, Q local."""

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.proximal import Proximal
from mpmtl.penalties import penalty_named
from mpmtl.solvers.proximal import proximal_rounds

LOCAL = ("l1", "l12", "frobenius")


@dataclass(frozen=True)
class Decomposed(Proximal):
    r"""Algorithm 4 of the paper: entry-wise outliers, anomalous tasks or plain local parts.

    .. math:: \min_{P, Q} \sum_i L_i(p_i + q_i) + \lambda_1 \|P\| + \lambda_2 \Omega(Q)

    P goes through the rounds of Algorithm 2 or 3; Q takes the same gradient step and its own
    proximal step, on its task alone, which costs no budget. Both parts move, so the step is
    1/(2L). In a `Candidate`, lam is lambda_1 and lam2 is lambda_2.

    Parameters
    ----------
    local : {"l1", "l12", "frobenius"}
        Omega: entries, whole tasks (columnwise l2), or the squared Frobenius norm.
    init : {"split", "paper"}
        P = W^(0) and Q = 0, or P = Q = W^(0) as printed, which doubles the model.
    """

    local: str = "l1"
    init: str = "split"
    starts: ClassVar[tuple] = ("split", "paper")
    parts: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        require(self.local in LOCAL, f"method.local = {self.local}: use {' or '.join(LOCAL)}")

    def candidates(self, tuning, scales):
        own = penalty_named(self.local)
        if self.local == "frobenius":
            unit = scales.lipschitz
        else:
            unit = scales.lam_unit(own, tuning.lam_unit)
        return [
            replace(candidate, lam2=unit * lam2)
            for candidate, lam2 in product(super().candidates(tuning, scales), tuning.lam2)
        ]

    def _steps(self, datafit, W0, heads, rounds, release, perturb, log):
        own_start = W0 if self.init == "paper" else np.zeros_like(W0)
        local = penalty_named(self.local), np.array([c.lam2 for c in heads]), own_start
        for P, Q in proximal_rounds(
            datafit,
            penalty_named(self.penalty),
            W0,
            rounds,
            release,
            perturb,
            local,
            clip=self.clip,
            negative=self.negative,
        ):
            if log is not None:
                log.arrays["local"] = Q[0]
            yield P + Q

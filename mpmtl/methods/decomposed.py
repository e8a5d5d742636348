"""`lr_sp`: Algorithm 4, W = P + Q with P shared and protected, Q local."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.methods.base import at_least_zero, one_of
from mpmtl.methods.proximal import ROUNDS_SETTINGS, Proximal, ProximalCandidate
from mpmtl.penalties import penalty_named
from mpmtl.solvers.proximal import proximal_rounds

LOCAL = ("l1", "l12", "frobenius")


@dataclass(frozen=True)
class DecomposedCandidate(ProximalCandidate):
    """lambda_1 is lam, the weight of the shared part; lambda_2 is lam_local."""

    lam_local: float = 0.0


@dataclass(frozen=True)
class Decomposed(Proximal):
    r"""Algorithm 4 of the paper: entry-wise outliers, anomalous tasks or plain local parts.

    .. math:: \min_{P, Q} \sum_i L_i(p_i + q_i) + \lambda_1 \|P\| + \lambda_2 \Omega(Q)

    P goes through the rounds of Algorithm 2 or 3; Q takes the same gradient step and its own
    proximal step, on its task alone, which costs no budget. Both parts move, so the step is
    1/(2L).

    Parameters
    ----------
    local : {"l1", "l12", "frobenius"}
        Omega: entries, whole tasks (columnwise l2), or the squared Frobenius norm.
    init : {"split", "paper"}
        P = W^(0) and Q = 0, or P = Q = W^(0) as printed, which doubles the model.
    grid : dict
        Those of `Proximal` with lam for lambda_1, and lam_local for lambda_2 in the same unit (of L
        for "frobenius").
    """

    local: str = "l1"
    init: str = "split"
    settings: ClassVar[dict] = ROUNDS_SETTINGS | {"lam_local": at_least_zero(0.1)}
    starts: ClassVar[tuple] = ("split", "paper")
    parts: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        one_of("local", self.local, LOCAL)

    def candidates(self, scales):
        own = penalty_named(self.local)
        if self.local == "frobenius":
            unit = scales.lipschitz
        else:
            unit = scales.lam_unit(own, self.lam_unit)
        return [
            DecomposedCandidate(**c.as_row(), lam_local=unit * lam)
            for c, lam in product(super().candidates(scales), self.grid["lam_local"])
        ]

    def _steps(self, datafit, W0, heads, rounds, release, perturb, log):
        own_start = W0 if self.init == "paper" else np.zeros_like(W0)
        local = penalty_named(self.local), np.array([c.lam_local for c in heads]), own_start
        project = self._projection(datafit, release)
        for P, Q in proximal_rounds(datafit, project, W0, rounds, perturb, local):
            if log is not None:
                log.arrays["local"] = Q[0]
            yield P + Q

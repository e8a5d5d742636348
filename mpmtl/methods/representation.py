"""`fedrep`: a shared low-rank representation with task-level privacy (Snedeker, Zhou, Bassily)."""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.errors import require
from mpmtl.methods.base import (
    Candidate,
    Method,
    above_zero,
    at_least_zero,
    count,
    one_of,
    public_or_data,
)
from mpmtl.privacy.clipping import directions
from mpmtl.privacy.releases import covariance, vector_sum
from mpmtl.solvers.single_task import ridge_of, ridge_path, ridge_solver

LEAST_RIDGE = 1e-8  # keeps the local least squares of a round defined


@dataclass(frozen=True)
class RepresentationCandidate(Candidate):
    """Ridge penalty of the last fits, clipping norm psi, rank k, step and rounds T."""

    lam: float
    psi: float
    rank: int
    step: float
    n_rounds: int


@dataclass(frozen=True)
class SharedRepresentation(Method):
    r"""w_i = U v_i with an orthonormal U (d x k) that is learned privately.

    Round: v_i solves the task on X_i U; the gradient of the averaged loss in U,
    g_i = grad L_i(U v_i) v_i', is scaled to ||g_i||_F <= psi; U <- qr(U - step/m (noisy sum of the
    g_i)), sigma_t = 2 psi/mu_t. Last, each task fits a ridge on X_i U.

    Parameters
    ----------
    start : {"private", "random"}
        Top-k eigenvectors of sum_i b_i b_i'/||b_i||^2 (b_i the gradient at zero) plus symmetric
        Gaussian noise of off-diagonal sd 1/mu_0, mu_0^2 + sum mu_t^2 = mu^2; or random.
    start_share : float
        mu_0^2/mu^2.
    eta : "public" or None
        L from a public bound on the rows, and psi as it is, instead of all tasks' data.
    grid : dict
        lam in units of the averaged loss's L; psi in units of a typical gradient; rank; step, the
        furthest that the representation moves in a round without noise; n_rounds.

    References
    ----------
    Snedeker, Zhou, Bassily (ICML 2025); own implementation from its description.
    """

    name: str
    start: str = "private"
    start_share: float = 0.3
    eta: str | None = None
    grid: dict = field(default_factory=dict)
    loss_average: bool | None = None
    settings: ClassVar[dict] = {
        "lam": at_least_zero(0.1),
        "psi": above_zero(1.0),
        "rank": count(5),
        "step": above_zero(1.0),
        "n_rounds": count(1),
    }
    private: ClassVar[bool] = True
    view: ClassVar[str] = "sum"

    def __post_init__(self):
        super().__post_init__()
        one_of("start", self.start, ("private", "random"))
        public_or_data(self.eta)
        require(
            0 < self.start_share < 1, f"start_share = {self.start_share} must be between 0 and 1"
        )

    @property
    def kinds(self):
        """The rounds, and the start if it is private."""
        return ("sum", "covariance") if self.start == "private" else ("sum",)

    def candidates(self, scales):
        ranks = sorted({min(rank, scales.gradient.shape[1]) for rank in self.grid["rank"]})
        typical = scales.averaged_lipschitz * (scales.median_norm or 1.0) ** 2
        psis = [typical * psi for psi in self.grid["psi"]]
        lams = [scales.averaged_lipschitz * lam for lam in self.grid["lam"]]
        return [
            RepresentationCandidate(lam, psi, rank, step / psi, T)
            for T, psi, rank, step, lam in product(
                self.grid["n_rounds"], psis, ranks, self.grid["step"], lams
            )
        ]

    def budgets(self, candidate, budget):
        """Budget of the start (inf without noise, None if random) and of each round."""
        T = candidate.n_rounds
        if self.start == "random":
            return None, budget.of_rounds(candidate)
        whole = budget.split(1)[0]
        start, rounds = whole * np.sqrt(self.start_share), whole * np.sqrt(1 - self.start_share)
        return start, np.full(T, rounds / np.sqrt(T))

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; candidates that differ in the last ridge share their rounds, and
        those of one T and rank run side by side."""
        averaged = replace(datafit, average=True)
        m, d = datafit.shape
        largest = max(c.rank for c in candidates)
        start = budget.open(covariance(d), 1, rng) if self.start == "private" else None
        random_U = rng.standard_normal((d, d))
        T = max(c.n_rounds for c in candidates)
        gate = budget.open(vector_sum(d, largest), T, rng, log=log)
        groups = {}
        for index, c in enumerate(candidates):
            of_shape = groups.setdefault((c.n_rounds, c.rank), {})
            of_shape.setdefault((c.psi, c.step), []).append(index)
        for (n_rounds, rank), together in groups.items():
            psi, step = np.array(list(together)).T
            (head, *_), *_ = together.values()
            of_start, of_rounds = self.budgets(candidates[head], budget)
            if self.start == "random":
                U = np.linalg.qr(random_U[:, :rank])[0]
            else:
                U = start_space(averaged, rank, start.with_budgets([of_start]))
            rounds = gate.of_columns(rank).with_budgets(np.tile(of_rounds, (len(psi), 1)))
            U, W = np.repeat(U[None], len(psi), axis=0), np.zeros((len(psi), m, d))
            for t in range(1, n_rounds + 1):
                V = least_squares(averaged, U, W)
                W = V @ U.swapaxes(1, 2)  # where the next local solutions start
                mean = rounds(t, representation_gradients(averaged, U, V), psi) / m
                U = np.linalg.qr(U - step[:, None, None] * mean)[0]
            for space, part, group in zip(U, averaged.projected(U), together.values(), strict=True):
                lams = [candidates[i].lam for i in group]
                yield np.array(group), ridge_path(part, lams) @ space.T

    def round_budgets(self, candidate, budget, datafit):
        return self.budgets(candidate, budget)[1]

    def gates(self, candidate, budget, datafit):
        d = datafit.shape[1]
        of_start, of_rounds = self.budgets(candidate, budget)
        rounds = budget.planned(vector_sum(d, candidate.rank), of_rounds)
        if of_start is None:
            return (rounds,)
        return rounds, budget.planned(covariance(d), [of_start])


def start_space(datafit, rank, gate):
    """Top eigenvectors of the noisy sum_i b_i b_i'/||b_i||^2, b_i task i's gradient at zero."""
    b = datafit.gradient(np.zeros((1, *datafit.shape)))[0]
    return np.linalg.eigh(gate(1, directions(b), 1.0))[1][:, -rank:]


def least_squares(datafit, U, W):
    """v_i, the solution of every task on X_i U, barely penalised, shape (B, m, k), for bases U of
    shape (B, d, k); its search starts at the models W, shape (B, m, d)."""
    if not datafit.logistic:
        known, weight = datafit.projected_statistics(U), datafit.weight[:, None]
        return ridge_of(weight[..., None] * known["gram"], weight * known["xty"], LEAST_RIDGE)
    parts = zip(datafit.projected(U), W @ U, strict=True)
    return np.stack(
        [ridge_solver(part)([LEAST_RIDGE], start=start[None])[0] for part, start in parts]
    )


def representation_gradients(datafit, U, V):
    """grad L_i(U v_i) v_i' of every task, shape (B, m, d, k)."""
    G = datafit.gradient(V @ U.swapaxes(1, 2))
    return G[..., :, None] * V[..., None, :]

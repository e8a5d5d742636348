"""`fedrep`: a shared low-rank representation with task-level privacy (Snedeker, Zhou, Bassily)."""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar

import numpy as np

from mpmtl.data.tasks import unit_rows
from mpmtl.errors import require
from mpmtl.methods.base import Candidate, Method, above_zero, at_least_zero, count, one_of
from mpmtl.privacy.mechanisms import Gaussian, NoNoise
from mpmtl.solvers.single_task import ridge_path

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
    g_i = grad L_i(U v_i) v_i', is scaled to ||g_i||_F <= psi;
    U <- qr(U - step (mean_i g_i + N(0, sigma_t^2))), sigma_t = 2 psi/(m mu_t). Last, each task
    fits a ridge on X_i U. Replacing a task moves the mean by at most 2 psi/m.

    Parameters
    ----------
    start : {"private", "random"}
        Top-k eigenvectors of sum_i b_i b_i'/||b_i||^2 (b_i the gradient at zero) plus symmetric
        Gaussian noise of off-diagonal sd 1/mu_0, mu_0^2 + sum mu_t^2 = mu^2; or random.
    start_share : float
        mu_0^2/mu^2.
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
    view: ClassVar[str] = "vector"

    def __post_init__(self):
        super().__post_init__()
        one_of("start", self.start, ("private", "random"))
        require(
            0 < self.start_share < 1, f"start_share = {self.start_share} must be between 0 and 1"
        )

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
        """Budget of the start (None if random) and of each round."""
        T = candidate.n_rounds
        if isinstance(budget.mechanism, NoNoise) or self.start == "random":
            return None, budget.of_rounds(candidate)
        whole = budget.mechanism.budgets(budget.epsilon, budget.delta, 1)[0]
        return (
            whole * np.sqrt(self.start_share),
            np.full(T, whole * np.sqrt((1 - self.start_share) / T)),
        )

    def fit(self, datafit, W0, candidates, budget, rng, log=None):
        """Yield ``(indices, W)``; candidates that differ in the last ridge share their rounds."""
        averaged = replace(datafit, average=True)
        m, d = datafit.shape
        largest = max(c.rank for c in candidates)
        T = max(c.n_rounds for c in candidates)
        E0, random_U = Gaussian().draw(rng, d, "full"), rng.standard_normal((d, d))
        draws = [budget.mechanism.draw(rng, largest, self.view, (d,)) for _ in range(T)]
        groups = {}
        for index, c in enumerate(candidates):
            groups.setdefault((c.n_rounds, c.psi, c.rank, c.step), []).append(index)
        for (n_rounds, psi, rank, step), group in groups.items():
            mu0, mu_t = self.budgets(candidates[group[0]], budget)
            sigma = 2 * psi / m * budget.mechanism.scale(mu_t)
            if self.start == "random":
                U = np.linalg.qr(random_U[:, :rank])[0]
            else:
                U = start_space(averaged, rank, E0 / mu0 if mu0 else 0.0)
            for t in range(n_rounds):
                mean = representation_gradient(averaged, U, psi)
                noise = sigma[t] * draws[t][:, :rank]
                if log is not None:
                    log.add_round(noise, mean)
                U = np.linalg.qr(U - step * (mean + noise))[0]
            lams = [candidates[i].lam for i in group]
            yield np.array(group), ridge_path(averaged.projected(U), lams) @ U.T

    def round_budgets(self, candidate, budget, datafit):
        return self.budgets(candidate, budget)[1]

    def statement(self, candidate, budget, datafit):
        rounds = budget.of_rounds(candidate)
        return budget.mechanism.statement(budget.epsilon, budget.delta, rounds, None, self.view)


def start_space(datafit, rank, noise):
    """Top eigenvectors of sum_i b_i b_i'/||b_i||^2 + noise, b_i the gradient of task i at zero."""
    b = datafit.gradient(np.zeros((1, *datafit.shape)))[0]
    b = unit_rows(b)
    return np.linalg.eigh(b.T @ b + noise)[1][:, -rank:]


def representation_gradient(datafit, U, psi):
    """Mean over tasks of grad L_i(U v_i) v_i' scaled to a Frobenius norm of at most psi."""
    V = ridge_path(datafit.projected(U), [LEAST_RIDGE])[0]
    G = datafit.gradient((V @ U.T)[None])[0]
    size = np.sqrt((G**2).sum(axis=1) * (V**2).sum(axis=1))
    shrink = psi / np.maximum(size, psi)
    return (G * shrink[:, None]).T @ V / len(V)

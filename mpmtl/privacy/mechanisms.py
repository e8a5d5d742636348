"""Noise for the released covariance, and what each kind of noise gives.

A mechanism sees only standard quantities: it allocates a budget over rounds, turns a round's budget
into a noise scale for clipping norm K = 1 (the caller multiplies by K^2) and draws standard noise.
`view` is what the other tasks get to see, a key of `VIEWS`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
from scipy.integrate import quad
from scipy.special import gammainc, gammainccinv, gammaincinv, kve

from mpmtl.errors import require
from mpmtl.privacy.budget import (
    ACCOUNTING,
    allocate,
    gaussian_mu,
    round_weights,
    wishart_delta,
)
from mpmtl.privacy.statements import (
    NO_PROTECTION,
    NOISE_CAVEATS,
    Guarantee,
    PrivacyStatement,
)

#: What the other tasks may see, in words.
VIEWS = {
    "full": "the whole covariance",
    "diagonal": "the diagonal of the covariance",
    "relation": "the task relation matrix W'W",
    "vector": "a sum of clipped vectors or matrices",
    "output": "the models themselves",
}
MATRICES = ("full", "relation")  # views with symmetric noise; the others' entries are one by one


def check_view(mechanism, view):
    """Refuse a mechanism that does not perturb what a method releases, its `view`."""
    allowed = [m.name for m in MECHANISMS if view in m.views]
    require(
        view in mechanism.views,
        f"mechanism {mechanism.name} does not fit a method that releases {VIEWS[view]}: use "
        f"{' or '.join(allowed)}",
    )


@dataclass(frozen=True)
class Mechanism:
    """Additive noise on Sigma~ = W~ W~'.

    Parameters
    ----------
    shift : float
        Multiple of the identity added after the noise, in units of the noise's spectral norm. A
        public constant: free post-processing, which makes M tend to I as the noise grows.
    """

    shift: float = 0.0
    name: ClassVar[str]
    status: ClassVar[str] = "claimed"  # what (epsilon, delta) is, unless a method says otherwise
    budget_name: ClassVar[str] = "eps_t"
    views: ClassVar[tuple] = ("full", "diagonal")

    def __post_init__(self):
        require(
            self.shift >= 0 and np.isfinite(self.shift),
            f"shift = {self.shift} must be finite and at least 0",
        )

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        """Budget of each round, shape (T,)."""
        raise NotImplementedError

    def scale(self, budgets):
        """Noise scale of each round for K = 1."""
        raise NotImplementedError

    def draw(self, rng, d, view, size=()):
        """Standard noise: (d, d) for the views in `MATRICES`, else (d,).

        `size` is the shape of a batch of independent draws, which comes first.
        """
        raise NotImplementedError

    def log_density(self, E, d, view):
        """Log density of standard noise E (a batch) up to a constant; -inf where it cannot be."""
        raise NotImplementedError

    def spectral_norm(self, d, view):
        """Typical spectral norm of the standard noise, the unit of `shift`."""
        raise NotImplementedError

    def statement(self, epsilon, delta, budgets, d, view):
        """The `PrivacyStatement` of a fit whose rounds used `budgets`."""
        raise NotImplementedError


@dataclass(frozen=True)
class PureMechanism(Mechanism):
    """A mechanism whose rounds are pure eps_t-DP (or are claimed to be).

    Parameters
    ----------
    accounting : {"bound", "optimal"}
        How rounds compose: by the paper's bound CB, or exactly (`budget.optimal_delta`), which
        leaves less noise for the same (epsilon, delta).
    """

    accounting: str = "bound"

    def __post_init__(self):
        super().__post_init__()
        require(
            self.accounting in ACCOUNTING,
            f"accounting = {self.accounting}: use {' or '.join(ACCOUNTING)}",
        )

    @property
    def composition(self):
        """How the rounds compose, in words."""
        return "composition bound CB" if self.accounting == "bound" else "exact pure composition"

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        """Budget of each round, shape (T,): the largest pure eps_t within (epsilon, delta)."""
        return allocate(epsilon, delta, n_rounds, alpha, Q, self.accounting)


def outside_cone(E):
    """Which matrices of a batch are not positive semi-definite, beyond rounding."""
    values = np.linalg.eigvalsh(E)
    return values[..., 0] < -1e-9 * np.abs(values[..., -1])


def _log_gamma_difference(x, shape):
    r"""Log density, up to a constant, of A - B, both Gamma(shape) of scale 2.

    .. math:: f(x) \propto |x|^{k - 1/2} K_{k-1/2}(|x|/2), \quad k = \text{shape}
    """
    half = np.maximum(np.abs(x), 1e-8) / 2  # f is flat at 0
    with np.errstate(over="ignore"):
        log_bessel = np.log(kve(shape - 0.5, half))
    return (shape - 0.5) * np.log(half) + log_bessel - half


def _proved(mechanism, epsilon, delta, basis):
    """Statement of a mechanism whose (epsilon, delta) is proved as asked for."""
    return PrivacyStatement(
        mechanism.name, None, Guarantee(epsilon, delta, basis), caveats=NOISE_CAVEATS
    )


@dataclass(frozen=True)
class Wishart(PureMechanism):
    r"""The paper's noise :math:`E \sim W_d(d+1, \frac{K^2}{2\epsilon_t} I)`: claimed (eps_t, 0).

    Algorithms 1 to 3, Theorem 1. The theorem is false; one release of the full covariance is
    exactly (eps_t, 1 - e^-eps_t)-DP.
    """

    name: ClassVar[str] = "wishart"
    views: ClassVar[tuple] = ("full", "diagonal", "relation")

    def scale(self, budgets):
        return 1 / (2 * budgets)

    def draw(self, rng, d, view, size=()):
        if view == "diagonal":
            return rng.chisquare(d + 1, (*size, d))
        Z = rng.standard_normal((*size, d, d + 1))
        return Z @ Z.swapaxes(-1, -2)

    def log_density(self, E, d, view):
        if view == "diagonal":
            inside = (E > 0).all(axis=-1)
            n = np.where(inside[..., None], E, 1.0)
            return np.where(inside, ((d - 1) / 2 * np.log(n) - n / 2).sum(axis=-1), -np.inf)
        trace = np.trace(E, axis1=-2, axis2=-1)
        return np.where(outside_cone(E), -np.inf, -trace / 2)

    def spectral_norm(self, d, view):
        return 4.0 * d if view in MATRICES else d + 1.0

    @property
    def claim(self):
        """Where the claimed guarantee comes from."""
        source = "Theorem 1 of the paper, which is false"
        return source if self.accounting == "bound" else f"{source}; {self.composition}"

    def statement(self, epsilon, delta, budgets, d, view):
        total = float(budgets.sum())
        proved = Guarantee(total, wishart_delta(budgets), "support of the Wishart noise, exact")
        if view == "relation":  # a replaced task changes a whole row and column of W'W
            proved = None
        if view == "diagonal" and d > 1:
            spent = delta if total > epsilon else 0.0  # the plain sum needs no delta
            intact = np.prod([1 - wishart_diagonal_delta(eps, d) for eps in budgets])
            basis = "chi-square noise on the diagonal, exact for the worst pair K e_1 and K e_2"
            proved = Guarantee(epsilon, float(1 - (1 - spent) * intact), basis)
        return PrivacyStatement(
            self.name,
            claimed=Guarantee(epsilon, delta, self.claim),
            proved=proved,
            caveats=("wishart-support", *NOISE_CAVEATS),
        )


@lru_cache(maxsize=1024)
def wishart_diagonal_delta(eps_t, d, at=None):
    r"""Exact delta of one release of diag(Sigma) with Wishart noise.

    No pair of models is worse than K e_1 against K e_2 (docs/privacy.md). The noise on each
    diagonal entry is :math:`\frac{K^2}{2\epsilon_t}\chi^2_{d+1}`. With g and G its density and
    distribution function for K = 1, and n* = 1/(1 - e^{-v}), v = log(1 + 1/n) + at/((d-1)/2),

    .. math:: \delta = \int_0^\infty g(n) G(n^*) - e^{at} g(n + 1) G(n^* - 1) \, dn

    Parameters
    ----------
    eps_t : float
        Budget of the round.
    d : int
        Features, at least 2.
    at : float, optional
        Epsilon at which delta is asked; default eps_t.
    """
    require(d >= 2, f"d = {d}: the pair needs two features")
    at = eps_t if at is None else at
    k, shape = (d + 1) / 2, (d - 1) / 2  # the noise is gamma distributed: shape k, rate eps_t

    def log_density(n):
        return shape * math.log(n) - eps_t * n + k * math.log(eps_t) - math.lgamma(k)

    def below(n):
        return gammainc(k, eps_t * n)

    def integrand(n):
        bound = -1 / math.expm1(-math.log1p(1 / n) - at / shape)
        under = below(bound - 1) if bound > 1 else 0.0
        lost = np.exp(at + log_density(n + 1) + math.log(under)) if under > 0 else 0.0
        return np.exp(log_density(n)) * below(bound) - lost

    spread = gammaincinv(k, [1e-12, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-4]) / eps_t
    edges = [0.0, *spread, gammainccinv(k, 1e-14) / eps_t]
    parts = [quad(integrand, a, b, limit=200, epsabs=1e-13) for a, b in pairwise(edges)]
    above = sum(value + error for value, error in parts) + 1e-14  # never below the true delta
    return float(min(1.0, max(0.0, above)))


@dataclass(frozen=True)
class TwoSidedWishart(PureMechanism):
    r"""Proved pure noise E = A - B with A, B iid :math:`W_d(d+1, s I)`, s = K^2/eps_t.

    The ratio of densities under neighbours is at most exp((tr ww' + tr vv')/2s) <= e^eps_t. In
    d = 1 it is the Laplace mechanism.
    """

    name: ClassVar[str] = "two_sided_wishart"
    status: ClassVar[str] = "proved"

    def scale(self, budgets):
        return 1 / budgets

    def draw(self, rng, d, view, size=()):
        one_sided = Wishart()
        return one_sided.draw(rng, d, view, size) - one_sided.draw(rng, d, view, size)

    def log_density(self, E, d, view):
        """Exact for the diagonal; the full matrix has no closed form but for d = 1."""
        require(view == "diagonal" or d == 1, "the two-sided Wishart density has no closed form")
        entries = E if view == "diagonal" else E[..., 0]
        return _log_gamma_difference(entries, (d + 1) / 2).sum(axis=-1)

    def spectral_norm(self, d, view):
        return 3.33 * d if view == "full" else np.sqrt(8 * (d + 1) * np.log(d + 1))

    def statement(self, epsilon, delta, budgets, d, view):
        return _proved(self, epsilon, delta, f"two-sided Wishart density, {self.composition}")


@dataclass(frozen=True)
class Gaussian(Mechanism):
    r"""Proved symmetric Gaussian noise: E_ij ~ N(0, s^2), E_ii ~ N(0, 2 s^2), s_t = K^2/mu_t.

    The Frobenius sensitivity is sqrt(2) K^2, so a round is mu_t-GDP and the rounds compose
    exactly to mu = sqrt(sum mu_t^2) = gaussian_mu(epsilon, delta), mu_t ~ t^alpha or Q^-t. The
    noise on a vector of sensitivity K^2 is N(0, s^2) in each entry.
    """

    name: ClassVar[str] = "gaussian"
    status: ClassVar[str] = "proved"
    budget_name: ClassVar[str] = "mu_t"
    views: ClassVar[tuple] = ("full", "diagonal", "relation", "vector")

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        weights = round_weights(n_rounds, alpha, Q)
        mu = gaussian_mu(epsilon, delta) * (1 - 8 * np.finfo(float).eps)
        return mu * (weights / np.sqrt((weights**2).sum()))

    def scale(self, budgets):
        return 1 / budgets

    def draw(self, rng, d, view, size=()):
        if view not in MATRICES:
            return (np.sqrt(2) if view == "diagonal" else 1.0) * rng.standard_normal((*size, d))
        Z = rng.standard_normal((*size, d, d))
        return (Z + Z.swapaxes(-1, -2)) / np.sqrt(2)

    def log_density(self, E, d, view):
        squares = (E**2).sum(axis=(-2, -1) if view in MATRICES else -1)
        return -squares / (2 if view == "vector" else 4)

    def spectral_norm(self, d, view):
        return 2 * np.sqrt(d) if view in MATRICES else 2 * np.sqrt(np.log(2 * d))

    def statement(self, epsilon, delta, budgets, d, view):
        return _proved(self, epsilon, delta, "Gaussian mechanism, exact composition")


@dataclass(frozen=True)
class Laplace(PureMechanism):
    """Proved pure noise for the diagonal alone: Laplace(2 K^2/eps_t) on each Sigma_jj.

    The l1 sensitivity of the diagonal is 2 K^2. Only for methods that release just the diagonal.
    """

    name: ClassVar[str] = "laplace"
    status: ClassVar[str] = "proved"
    views: ClassVar[tuple] = ("diagonal",)

    def scale(self, budgets):
        return 2 / budgets

    def draw(self, rng, d, view, size=()):
        check_view(self, view)
        return rng.laplace(size=(*size, d))

    def log_density(self, E, d, view):
        return -np.abs(E).sum(axis=-1)

    def spectral_norm(self, d, view):
        return float((1 / np.arange(1, d + 1)).sum())  # mean of the largest of d exponentials

    def statement(self, epsilon, delta, budgets, d, view):
        check_view(self, view)
        return _proved(self, epsilon, delta, f"Laplace mechanism, {self.composition}")


def sphere_noise(rng, shape):
    """Vectors along the last axis of density ~ exp(-||b||_2): uniform direction, norm Gamma(d)."""
    direction = rng.standard_normal(shape)
    norms = np.sqrt((direction**2).sum(axis=-1, keepdims=True))
    return direction * (rng.gamma(shape[-1], size=norms.shape) / norms)


@dataclass(frozen=True)
class OutputPerturbation(PureMechanism):
    r"""Noise on the models themselves with density ~ exp(-eps_t ||b|| / sensitivity).

    A method turns the budget into one for a single sample by group privacy (Proposition 3) and
    states what that gives.
    """

    name: ClassVar[str] = "output_perturbation"
    views: ClassVar[tuple] = ("output",)

    def scale(self, budgets):
        return 1 / budgets

    def draw(self, rng, d, view, size=()):
        """Standard noise of density ~ exp(-||b||_2), shape (d,)."""
        return sphere_noise(rng, (*size, d))

    def log_density(self, E, d, view):
        return -np.sqrt((E**2).sum(axis=-1))


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """The covariance as it is: no protection, claimed or proved."""

    name: ClassVar[str] = "none"
    views: ClassVar[tuple] = tuple(VIEWS)

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        return np.full(n_rounds, np.inf)

    def scale(self, budgets):
        return np.zeros_like(budgets)

    def draw(self, rng, d, view, size=()):
        return np.zeros((*size, d, d) if view in MATRICES else (*size, d))

    def spectral_norm(self, d, view):
        return 0.0

    def statement(self, epsilon, delta, budgets, d, view):
        return NO_PROTECTION


MECHANISMS = (
    Wishart,
    TwoSidedWishart,
    Gaussian,
    Laplace,
    OutputPerturbation,
    NoNoise,
)

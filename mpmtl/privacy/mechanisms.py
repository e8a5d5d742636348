"""Kinds of noise: what each is calibrated for, how it is drawn and what it costs.

A mechanism sees only standard quantities: it allocates a budget over rounds, turns a round's budget
and a sensitivity into a noise scale, and draws standard noise of the shape of a release. Bounds,
sums and scaling are the gate's (`privacy.releases`).
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
from scipy.integrate import quad
from scipy.special import gammainc, gammainccinv, gammaincinv, kve

from mpmtl.errors import require
from mpmtl.privacy.budget import (
    ACCOUNTING,
    Cost,
    allocate,
    gaussian_mu,
    round_weights,
    wishart_delta,
)
from mpmtl.privacy.exact import STEPS, rounded_laplace, rounded_normal
from mpmtl.privacy.statements import Guarantee

#: What crosses from a task to the others, in words.
KINDS = {
    "covariance": "the whole covariance",
    "diagonal": "the diagonal of the covariance",
    "relation": "the task relation matrix W'W",
    "sum": "a sum of bounded vectors or matrices",
    "parts": "sums of positive and of negative parts",
    "sizes": "a sum of absolute entries",
    "output": "the models themselves",
    "sample": "every task's own model",
}


def check_kind(mechanism, kind):
    """Refuse a mechanism that cannot perturb what a method releases, a key of `KINDS`."""
    allowed = [m.name for m in MECHANISMS if kind in m.kinds]
    require(
        kind in mechanism.kinds,
        f"mechanism {mechanism.name} does not fit a method that releases {KINDS[kind]}: use "
        f"{' or '.join(allowed)}",
    )
    exact = "".join(f", or {m.name}" for m in MECHANISMS if m.exact and kind in m.kinds)
    require(
        mechanism.exact or not mechanism.secure,
        f"mechanism {mechanism.name} cannot be sampled exactly, so it has no noise=secure: use "
        f"noise=seeded{exact}",
    )


NOISE = ("seeded", "secure")


@dataclass(frozen=True)
class Mechanism:
    """Additive noise on a release.

    Parameters
    ----------
    shift : float
        Multiple of the identity added after the noise, in units of the noise's spectral norm. A
        public constant: free post-processing, which makes M tend to I as the noise grows.
    noise : {"seeded", "secure"}
        Drawn in floating point from the generator that a fit is given, which can be repeated; or
        exactly on an integer grid from the operating system's randomness, never from a seed, for
        a deployment (`exact`).

    Attributes
    ----------
    name : str
    norm : {"l1", "l2", "trace"}
        The sensitivity that the noise is calibrated for, an attribute of `releases.Release`.
    kinds : tuple of str
        What it can perturb, keys of `KINDS`.
    status : {"claimed", "proved"}
        What (epsilon, delta) is, unless a method says otherwise.
    budget_name : str
        Of a round's budget, for tables.
    exact : bool
        Whether its noise can be sampled exactly.
    """

    shift: float = 0.0
    noise: str = field(default="seeded", kw_only=True)
    name: ClassVar[str]
    norm: ClassVar[str]
    status: ClassVar[str] = "claimed"
    budget_name: ClassVar[str] = "eps_t"
    kinds: ClassVar[tuple] = ("covariance", "diagonal")
    caveats: ClassVar[tuple] = ()  # of its own
    exact: ClassVar[bool] = False

    def __post_init__(self):
        require(self.noise in NOISE, f"noise = {self.noise}: use {' or '.join(NOISE)}")
        require(
            self.shift >= 0 and np.isfinite(self.shift),
            f"shift = {self.shift} must be finite and at least 0",
        )

    @property
    def secure(self):
        """Whether noise is sampled exactly, from the operating system's randomness."""
        return self.noise == "secure"

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        """Budget of each round, shape (T,)."""
        raise NotImplementedError

    def scale(self, budgets, sensitivity):
        """Noise scale of rounds with these budgets."""
        raise NotImplementedError

    def draw(self, rng, release, size=()):
        """Standard noise of the release's shape; `size`, a batch of independent draws, first."""
        raise NotImplementedError

    def log_density(self, E, release):
        """Log density of standard noise E (a batch) up to a constant; -inf where it cannot be."""
        raise NotImplementedError

    def has_density(self, release):
        """Whether `log_density` has a closed form."""
        return True

    def spectral_norm(self, release):
        """Typical spectral norm of the standard noise, the unit of `shift`."""
        raise NotImplementedError

    def cost(self, budgets):
        """The `Cost` of releases with these budgets, calibrated to `norm`; None: none is proved."""
        raise NotImplementedError

    def guarantees(self, release, budgets, epsilon, delta):
        """Claimed and proved `Guarantee` of rounds that have no `Cost`."""
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

    @property
    def basis(self):
        """Why the guarantee holds, in words."""
        return f"{self.proof}, {self.composition}"

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        """Budget of each round, shape (T,): the largest pure eps_t within (epsilon, delta)."""
        return allocate(epsilon, delta, n_rounds, alpha, Q, self.accounting)

    def scale(self, budgets, sensitivity):
        return sensitivity / budgets

    def cost(self, budgets):
        return Cost(pure=tuple(float(eps) for eps in budgets))


def on_grid(sample, shape):
    """Exact standard noise in units of 1/STEPS, as floats that hold it without rounding."""
    return sample(math.prod(shape)).reshape(shape) / STEPS


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


@dataclass(frozen=True)
class Wishart(PureMechanism):
    r"""The paper's noise :math:`E \sim W_d(d+1, \frac{K^2}{2\epsilon_t} I)`: claimed (eps_t, 0).

    Algorithms 1 to 3, Theorem 1. The theorem is false; one release of the full covariance is
    exactly (eps_t, 1 - e^-eps_t)-DP.
    """

    name: ClassVar[str] = "wishart"
    norm: ClassVar[str] = "trace"
    kinds: ClassVar[tuple] = ("covariance", "diagonal", "relation")
    caveats: ClassVar[tuple] = ("wishart-support",)

    def scale(self, budgets, sensitivity):
        """1/(2 eps_t), as the paper has it, whatever the release."""
        return 1 / (2 * budgets)

    def draw(self, rng, release, size=()):
        d = release.shape[0]
        if len(release.shape) == 1:
            return rng.chisquare(d + 1, (*size, d))
        Z = rng.standard_normal((*size, d, d + 1))
        return Z @ Z.swapaxes(-1, -2)

    def log_density(self, E, release):
        d = release.shape[0]
        if len(release.shape) == 1:
            inside = (E > 0).all(axis=-1)
            n = np.where(inside[..., None], E, 1.0)
            return np.where(inside, ((d - 1) / 2 * np.log(n) - n / 2).sum(axis=-1), -np.inf)
        trace = np.trace(E, axis1=-2, axis2=-1)
        return np.where(outside_cone(E), -np.inf, -trace / 2)

    def spectral_norm(self, release):
        d = release.shape[0]
        return 4.0 * d if len(release.shape) == 2 else d + 1.0

    @property
    def claim(self):
        """Where the claimed guarantee comes from."""
        source = "Theorem 1 of the paper, which is false"
        return source if self.accounting == "bound" else f"{source}; {self.composition}"

    def cost(self, budgets):
        return None

    def guarantees(self, release, budgets, epsilon, delta):
        claimed, total = Guarantee(epsilon, delta, self.claim), float(np.sum(budgets))
        if release.trace is None:  # a whole row and column of W'W changes
            return claimed, None
        d = release.shape[0]
        if len(release.shape) == 2 or d == 1:
            basis = "support of the Wishart noise, exact"
            return claimed, Guarantee(total, wishart_delta(budgets), basis)
        spent = delta if total > epsilon else 0.0  # the plain sum needs no delta
        intact = np.prod([1 - wishart_diagonal_delta(eps, d) for eps in budgets])
        basis = "chi-square noise on the diagonal, exact for the worst pair K e_1 and K e_2"
        return claimed, Guarantee(epsilon, float(1 - (1 - spent) * intact), basis)


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
    norm: ClassVar[str] = "trace"
    status: ClassVar[str] = "proved"
    proof: ClassVar[str] = "two-sided Wishart density"

    def scale(self, budgets, sensitivity):
        return sensitivity / (2 * budgets)

    def draw(self, rng, release, size=()):
        one_sided = Wishart()
        return one_sided.draw(rng, release, size) - one_sided.draw(rng, release, size)

    def has_density(self, release):
        return len(release.shape) == 1 or release.shape[0] == 1

    def log_density(self, E, release):
        """Exact for the diagonal; the full matrix has no closed form but for d = 1."""
        require(self.has_density(release), "the two-sided Wishart density has no closed form")
        entries = E if len(release.shape) == 1 else E[..., 0]
        return _log_gamma_difference(entries, (release.shape[0] + 1) / 2).sum(axis=-1)

    def spectral_norm(self, release):
        d = release.shape[0]
        return 3.33 * d if len(release.shape) == 2 else np.sqrt(8 * (d + 1) * np.log(d + 1))


@dataclass(frozen=True)
class Gaussian(Mechanism):
    r"""Proved Gaussian noise of variance (sensitivity/mu_t)^2 in every orthonormal coordinate.

    A symmetric matrix has the coordinates a_ii and sqrt(2) a_ij, so E_ii ~ N(0, 2 s^2) and
    E_ij ~ N(0, s^2) with s = K^2/mu_t for a covariance. A round is mu_t-GDP and the rounds compose
    exactly to mu = sqrt(sum mu_t^2), mu_t ~ t^alpha or Q^-t.
    """

    name: ClassVar[str] = "gaussian"
    norm: ClassVar[str] = "l2"
    status: ClassVar[str] = "proved"
    budget_name: ClassVar[str] = "mu_t"
    kinds: ClassVar[tuple] = ("covariance", "diagonal", "relation", "sum", "parts", "sizes")
    exact: ClassVar[bool] = True
    basis: ClassVar[str] = "Gaussian mechanism, exact composition"

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        weights = round_weights(n_rounds, alpha, Q)
        mu = gaussian_mu(float(epsilon), float(delta)) * (1 - 8 * np.finfo(float).eps)
        return mu * (weights / np.sqrt((weights**2).sum()))

    def scale(self, budgets, sensitivity):
        return sensitivity / budgets

    def draw(self, rng, release, size=()):
        shape = (*size, *release.shape)
        Z = on_grid(rounded_normal, shape) if self.secure else rng.standard_normal(shape)
        return (Z + Z.swapaxes(-1, -2)) / 2 if release.symmetric else Z

    def log_density(self, E, release):
        return -(E**2).sum(axis=tuple(range(-len(release.shape), 0))) / 2

    def spectral_norm(self, release):
        d = release.shape[0]
        return np.sqrt(2 * d) if release.symmetric else np.sqrt(2 * np.log(2 * d))

    def cost(self, budgets):
        return Cost(mu=float(np.sqrt(np.sum(np.square(budgets)))))


@dataclass(frozen=True)
class Laplace(PureMechanism):
    """Proved pure noise: Laplace(l1 sensitivity/eps_t) on each entry.

    For the diagonal the l1 sensitivity is 2 K^2, for a sum of vectors 2 sqrt(d) K.
    """

    name: ClassVar[str] = "laplace"
    norm: ClassVar[str] = "l1"
    status: ClassVar[str] = "proved"
    kinds: ClassVar[tuple] = ("diagonal", "sum")
    exact: ClassVar[bool] = True
    proof: ClassVar[str] = "Laplace mechanism"

    def draw(self, rng, release, size=()):
        check_kind(self, release.kind)
        shape = (*size, *release.shape)
        return on_grid(rounded_laplace, shape) if self.secure else rng.laplace(size=shape)

    def log_density(self, E, release):
        return -np.abs(E).sum(axis=tuple(range(-len(release.shape), 0)))

    def spectral_norm(self, release):
        d = release.shape[0]
        return float((1 / np.arange(1, d + 1)).sum())  # mean of the largest of d exponentials


def sphere_noise(rng, shape):
    """Vectors along the last axis of density ~ exp(-||b||_2): uniform direction, norm Gamma(d)."""
    direction = rng.standard_normal(shape)
    norms = np.sqrt((direction**2).sum(axis=-1, keepdims=True))
    return direction * (rng.gamma(shape[-1], size=norms.shape) / norms)


@dataclass(frozen=True)
class OutputPerturbation(PureMechanism):
    r"""Noise on models themselves, of density ~ exp(-eps_t ||b||_2 / sensitivity).

    `dp_mtrl` and `dp_aggr` turn the budget into one for a single sample by group privacy
    (Proposition 3) and state what that gives; Algorithm 5 protects a sample with it.
    """

    name: ClassVar[str] = "output_perturbation"
    norm: ClassVar[str] = "l2"
    kinds: ClassVar[tuple] = ("output", "sample", "sum")
    proof: ClassVar[str] = "output perturbation"

    def draw(self, rng, release, size=()):
        """Standard noise of density ~ exp(-||b||_2), for every task's own model by itself."""
        if release.kind == "sample":
            return sphere_noise(rng, (*size, *release.shape))
        return sphere_noise(rng, (*size, math.prod(release.shape))).reshape(*size, *release.shape)

    def log_density(self, E, release):
        if release.kind == "sample":
            return -np.sqrt((E**2).sum(axis=-1)).sum(axis=-1)
        return -np.sqrt((E**2).sum(axis=tuple(range(-len(release.shape), 0))))


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Releases as they are: no protection, claimed or proved."""

    name: ClassVar[str] = "none"
    norm: ClassVar[str] = "l2"
    kinds: ClassVar[tuple] = tuple(KINDS)

    def budgets(self, epsilon, delta, n_rounds, alpha=0.0, Q=None):
        return np.full(n_rounds, np.inf)

    def scale(self, budgets, sensitivity):
        return np.zeros_like(budgets)

    def draw(self, rng, release, size=()):
        return np.zeros((*size, *release.shape))

    def spectral_norm(self, release):
        return 0.0

    def guarantees(self, release, budgets, epsilon, delta):
        return None, None

    def cost(self, budgets):
        return None


MECHANISMS = (
    Wishart,
    TwoSidedWishart,
    Gaussian,
    Laplace,
    OutputPerturbation,
    NoNoise,
)

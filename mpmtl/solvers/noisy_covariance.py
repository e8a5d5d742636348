"""Priors for the tasks' models from a noisy sum of outer products: pure post-processing.

S = sum_i v_i v_i' + c E holds the released second moment of the normalised models, with symmetric
noise E of off-diagonal variance sd^2 and diagonal variance 2 sd^2 (all mechanisms here have that
form). Every function uses S and public constants only, so nothing here costs budget.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from mpmtl.privacy.releases import covariance
from mpmtl.streams import stream

LEAST_LEVEL = 1e-4  # smallest eigenvalue of a prior, relative to their mean
SPECTRUM_DRAWS = 20
LARGEST_MEAN = 0.98  # norm of the mean of unit vectors that are not all the same


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of centred noise.

    Attributes
    ----------
    values : ndarray
        Eigenvalues of some draws; their mean is zero.
    center : float
        Mean eigenvalue before centring; not zero for one-sided noise.
    sd : float
        Standard deviation of an off-diagonal entry.
    radius : float
        Mean of the largest absolute eigenvalue of a draw.
    """

    values: np.ndarray
    center: float
    sd: float
    radius: float

    def scaled(self, c):
        """Spectrum of c E."""
        return Spectrum(c * self.values, c * self.center, c * self.sd, c * self.radius)


@lru_cache(maxsize=64)
def noise_spectrum(mechanism, d):
    """Spectrum of a mechanism's standard noise in dimension d, simulated once (a public fact).

    E ||E||_F^2 = d (d + 1) sd^2 gives the standard deviation.
    """
    mechanism = replace(mechanism, noise="seeded")
    rng = stream(0, "noise spectrum", mechanism.name, d)
    draws = [mechanism.draw(rng, covariance(d)) for _ in range(SPECTRUM_DRAWS)]
    values = np.linalg.eigvalsh(np.stack(draws))
    center = values.mean()
    values = values - center
    sd = np.sqrt((values**2).mean() / (d + 1))
    radius = float(np.abs(values).max(axis=1).mean())
    return Spectrum(np.clip(values.ravel(), -radius, radius), float(center), float(sd), radius)


def spike(x, noise):
    r"""What lies behind eigenvalues x above the noise's spectrum.

    With the Stieltjes transform :math:`G(x) = \frac1d \sum_k 1/(x - \lambda_k)` of the noise, a
    direction of strength theta appears as an eigenvalue x with :math:`\theta G(x) = 1`, whose
    eigenvector has the squared cosine :math:`-1/(\theta^2 G'(x))` with it. Returned is strength
    times squared cosine, :math:`-G(x)/G'(x)`. For a semicircle of radius 2r that is
    theta (1 - r^2/theta^2), theta = (x + sqrt(x^2 - 4 r^2))/2.

    References
    ----------
    Benaych-Georges and Nadakuditi (Advances in Mathematics 2011), Theorems 2.1 and 2.2.
    """
    inverse = 1 / (np.asarray(x)[:, None] - noise.values)
    return inverse.mean(axis=1) / (inverse**2).mean(axis=1)


def strength(x, noise):
    """theta = 1/G(x): how strong a direction is that appears as an eigenvalue x (see `spike`)."""
    return 1 / (1 / (np.asarray(x)[:, None] - noise.values)).mean(axis=1)


def soft_levels(x, width, total):
    r"""Positive levels :math:`c_j = \frac12 (x_j - \tau + \sqrt{(x_j - \tau)^2 + \text{width}^2})`
    with tau such that they add up to `total`.

    c_j minimises (c - x_j)^2/2 - (width^2/4) log c + tau c: a logarithmic barrier keeps noisy
    values above zero.
    """

    def levels(tau):
        shifted = x - tau
        root = np.sqrt(shifted**2 + width**2)
        tail = width**2 / np.maximum(root - shifted, 1e-300)  # no cancellation below tau
        return np.where(shifted > 0, shifted + root, tail) / 2

    low, high = x.min() - total - 1, x.max() + 1 + len(x) * width**2 / total
    return levels(brentq(lambda tau: levels(tau).sum() - total, low, high))


def _prior(levels, U, power=1.0):
    """U diag(levels^power) U' with trace d."""
    levels = (levels / levels.mean()) ** power
    levels = np.maximum(levels / levels.mean(), LEAST_LEVEL)
    return (U * (levels / levels.mean())) @ U.T


def spectral_prior(S, noise, total, kappa, power=1.0):
    """Prior from the spectrum: spikes are shrunk (`spike`), the rest of the trace `total` goes to
    the other directions by `soft_levels` of width 2 sd sqrt(kappa), evenly for kappa = inf."""
    x, U = np.linalg.eigh(S)
    if noise.radius == 0:
        return _prior(np.maximum(x, 0) + 1e-3 * total / len(x), U, power)
    top = (x > noise.radius) & (noise.radius < total)  # else no spike could stand out
    levels = np.zeros_like(x)
    levels[top] = spike(x[top], noise)
    levels[top] *= min(1.0, 0.999 * total / max(levels[top].sum(), 1e-300))
    rest, others = total - levels.sum(), ~top
    if others.any():
        even = np.isinf(kappa)
        width = 2 * noise.sd * np.sqrt(1.0 if even else kappa)
        levels[others] = rest / others.sum() if even else soft_levels(x[others], width, rest)
        levels[top] = np.maximum(levels[top], levels[others].max())  # monotone in x
    return _prior(levels, U, power)


def diagonal_prior(S, noise, total, kappa, power=1.0):
    """Prior from the diagonal, whose noise has the standard deviation sqrt(2) sd."""
    width = 2 * noise.sd * np.sqrt(2 * kappa)
    return _prior(soft_levels(np.diag(S), width, total), np.eye(len(S)), power)


def shrunk_mean(total, sd, m):
    """Mean of m unit vectors from their noisy sum: positive-part James-Stein, norm at most .98."""
    norm = max(np.sqrt(total @ total), 1e-300)
    shrunk = max(0.0, norm - len(total) * sd**2 / norm)
    return total / norm * min(shrunk / m, LARGEST_MEAN)


def mean_directions(S, total, noise, sd, m):
    r"""Two estimates of the mean of m unit vectors: from their noisy sum t, and with the help of S.

    With the sum phi u and its part (phi^2/m) u u' of S, the log likelihood of the direction u is
    :math:`\phi\, u't/\text{sd}^2 + \tfrac{\phi^2}{2m} u'Su/\text{noise.sd}^2`; the second
    estimate is one step of its fixed point from t.
    """
    u, phi = noisy_direction(total, sd, m)
    refined = u
    if sd > 0:
        step = phi * total / sd**2 + phi**2 / m * (S @ u) / noise.sd**2
        refined = step / max(np.sqrt(step @ step), 1e-300)
    return [min(phi / m, LARGEST_MEAN) * v for v in (u, refined)]


def noisy_direction(total, sd, m):
    """Direction u of a noisy sum t, and the norm phi of the sum: phi^2 = ||t||^2 - d sd^2, at least
    (m/5)^2, as the tasks choose the scale of the mean later."""
    norm = max(np.sqrt(total @ total), 1e-300)
    return total / norm, np.sqrt(max(norm**2 - len(total) * sd**2, (m / 5) ** 2))


@dataclass(frozen=True)
class Prior:
    """w_i ~ N(a mean, tau^2 (C + t x_i x_i')) with tr C = d and a scale a that is chosen later.

    Attributes
    ----------
    name : str
    C : ndarray, shape (d, d)
    mean : ndarray, shape (d,), or None
    own : bool
        Whether a task's own direction x_i, its mean sample, is left free (t = d).
    free : bool
        Whether the last weight, an intercept, is left free of C.
    """

    name: str
    C: np.ndarray
    mean: np.ndarray | None = None
    own: bool = False
    free: bool = False


def parts_priors(parts, sd, m, logistic=False):
    r"""Priors from the noisy sums of positive and of negative parts alone (`signed_parts`).

    Their difference, the sum of the v_i, gives a mean; their sum, that of the |v_i|, diagonal
    priors (`sizes_priors`).

    Parameters
    ----------
    parts : ndarray, shape (2 d,)
    sd : float
        Standard deviation of the noise on the sum and on the difference of the halves.
    m : int
    logistic : bool
        Whether priors are `cautious`; if not, that with a mean leaves each task's own direction
        free.
    """
    positive, negative = np.split(parts, 2)
    total, d = positive - negative, len(positive)
    u, phi = noisy_direction(total, sd, m)
    mean = Prior("mean", np.eye(d), scaled_mean(min(phi / m, LARGEST_MEAN) * u), not logistic)
    if logistic:
        mean = cautious(mean, total, sd, m)
    return [*sizes_priors(positive + negative, sd, m, logistic), mean]


def sizes_priors(sizes, sd, m, logistic=False):
    """Diagonal priors from the noisy sum of the |v_i|: its entries above their median, made
    positive by `soft_levels`, to powers 1, 3 and 6, as few features stand out of many.

    Parameters
    ----------
    sizes : ndarray, shape (d,)
    sd : float
        Standard deviation of the noise on it.
    m : int
    logistic : bool
        Whether priors are `cautious`, and their part for I is at least that of the noise in the
        variance of the entries.
    """
    d = len(sizes)
    above = sizes - np.median(sizes)
    amount = max(np.maximum(above, 0).sum(), sd, 1e-300)
    levels = {kappa: soft_levels(above, 2 * sd * np.sqrt(kappa), amount) for kappa in (1 / 8, 2)}
    candidates = [
        Prior(f"sizes^{power}", _prior(levels[kappa], np.eye(d), power))
        for kappa, power in ((1 / 8, 1), (1 / 8, 3), (2, 3), (2, 6))
    ]
    if not logistic:
        return candidates
    noise = min(1.0, sd**2 / max(np.var(sizes, ddof=1), 1e-300))
    return [cautious(prior, None, sd, m, noise) for prior in candidates]


def scaled_mean(mean):
    """Mean of unit vectors, in units of a covariance of trace d about it."""
    return mean * np.sqrt(len(mean) / (1 - mean @ mean))


def cautious(prior, total, sd, m, least=0.0):
    r"""A prior without what noise and few tasks may have made by chance.

    The covariance goes to (1 - rho) C + rho I: m unit vectors that have nothing in common make a
    spread of eigenvalues, which (Ledoit and Wolf, 2004) asks for

    .. math:: \rho = \min\Big(1, \frac{(1 - q)/m}{q - 1/d}\Big), \quad
        q = \|C/d\|_F^2

    The mean gets the James-Stein norm, for noise of squared norm d sd^2 on the sum `total` of the
    vectors, and m by chance.

    Parameters
    ----------
    prior : Prior
    total : ndarray, shape (d,), or None
        None without a mean.
    sd : float
        Of the noise on `total`.
    m : int
    least : float
        Least part rho.
    """
    d = len(prior.C)
    q = (prior.C**2).sum() / d**2
    rho = min(1.0, max(least, (1 - q) / max(m * (q - 1 / d), 1e-300)))
    prior = replace(prior, C=(1 - rho) * prior.C + rho * np.eye(d))
    if prior.mean is None:
        return prior
    mean = shrunk_mean(total, np.sqrt(sd**2 + m / d), m)
    direction = prior.mean / max(np.sqrt(prior.mean @ prior.mean), 1e-300)
    return replace(prior, mean=scaled_mean(np.sqrt(mean @ mean) * direction))


def priors(S, total, noise, sd, m, own=False, ahead=None, logistic=False):
    """The candidate priors of the releases so far.

    Parameters
    ----------
    S : ndarray, shape (d, d)
        Noisy sum of v_i v_i', noise centred.
    total : ndarray, shape (d,), or None
        Noisy sum of v_i.
    noise : Spectrum
        Of the noise on S.
    sd : float
        Standard deviation of the noise on `total`.
    m : int
        Tasks; the trace of S without noise.
    own : bool
        Whether priors with a mean leave every task's own direction free.
    ahead : ndarray, shape (d,), or None
        Mean to which the rounds seem to go, instead of the refined one.
    logistic : bool
        Whether priors are `cautious`: labels say too little for a task to tell by its evidence
        what was made by chance.
    """
    d = len(S)
    candidates = [
        Prior("diagonal", diagonal_prior(S, noise, m, 1 / 8)),
        Prior("sparse", diagonal_prior(S, noise, m, 1 / 8, power=3)),
        Prior("spectral", spectral_prior(S, noise, m, 4)),
        Prior("steep", spectral_prior(S, noise, m, 16, power=2)),
        Prior("spiked", spectral_prior(S, noise, m, np.inf, power=2)),
    ]
    means = {}
    if total is not None:
        words = ("mean", "refined mean")
        means = dict(zip(words, mean_directions(S, total, noise, sd, m), strict=True))
    if means and ahead is not None:
        del means["refined mean"]
        norm = max(np.sqrt(ahead @ ahead), 1e-300)
        means["mean ahead"] = ahead * min(1.0, LARGEST_MEAN / norm)
    for word, mean in means.items():
        left = m * (1 - mean @ mean)  # trace of the covariance about the mean
        about = S - m * np.outer(mean, mean)
        covariances = {
            word: np.eye(d),
            f"{word}, spectral": spectral_prior(about, noise, left, 4),
            f"{word}, spiked": spectral_prior(about, noise, left, np.inf),
        }
        candidates += [Prior(k, C, scaled_mean(mean), own) for k, C in covariances.items()]
    if not logistic:
        return candidates
    return [cautious(prior, total, sd, m) for prior in candidates]

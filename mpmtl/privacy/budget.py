"""Composition of budgets over rounds, and what a noise level proves at a given epsilon."""

from dataclasses import dataclass
from functools import cache, lru_cache
from math import fsum

import numpy as np
from numpy.polynomial.polynomial import polyval
from scipy.optimize import bisect, brentq
from scipy.special import erfcx, expit, gammaln, ndtr, zeta

from mpmtl.errors import require


def composition_bound(eps_t, delta):
    r"""Composition bound CB({eps_t}, delta) of a series of pure budgets.

    .. math:: \min\Bigl\{\sum_t \epsilon_t,\;
        A + \sqrt{2 S \log(1/\delta)},\;
        A + \sqrt{2 S \log(e + \sqrt{S}/\delta)}\Bigr\},
        \quad A = \sum_t \epsilon_t \tanh(\epsilon_t/2),\; S = \sum_t \epsilon_t^2

    Rounds that are (eps_t, 0)-DP each compose adaptively to (CB, delta)-DP.

    Parameters
    ----------
    eps_t : array_like, shape (T,)
        Budgets of the rounds, at least 0.
    delta : float
        In [0, 1); 0 leaves the plain sum.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If a budget is negative or delta is outside [0, 1).

    References
    ----------
    Definition 4 of the paper; Theorem 3.5 of Kairouz, Oh, Viswanath (2017).
    """
    eps_t = np.asarray(eps_t, dtype=float)
    require(eps_t.size > 0 and (eps_t >= 0).all(), "eps_t must hold at least one budget, all >= 0")
    require(0 <= delta < 1, f"delta = {delta} is outside [0, 1)")
    total = float(eps_t.sum())
    if delta == 0:
        return total
    drift = float((eps_t * np.tanh(eps_t / 2)).sum())  # (e^x - 1)/(e^x + 1) = tanh(x/2)
    squares = float((eps_t**2).sum())
    log_term = min(np.log(1 / delta), np.log(np.e + np.sqrt(squares) / delta))
    return min(total, drift + float(np.sqrt(2 * squares * log_term)))


ULP = np.finfo(float).eps
TINY = np.finfo(float).tiny  # what is reported for a delta that is above 0 but below any double


def optimal_delta(eps_t, epsilon):
    r"""Smallest delta at epsilon of any adaptive composition of pure eps_t-DP rounds.

    .. math:: \delta = E\bigl[(1 - e^{\epsilon - L})_+\bigr], \quad
        L = \sum_t \pm\epsilon_t, \; P(+\epsilon_t) = \frac{e^{\epsilon_t}}{1 + e^{\epsilon_t}}

    Every pure eps_t-DP release is a randomised response that was processed further, so nothing is
    worse than the composed responses and those are attained. The sum is over all values of L (for
    equal budgets: the binomial's T + 1) where these are at most 32,768. Else it is an inverse
    Laplace transform whose errors all point upward; against enumeration it is about .02 % above
    the true delta, up to .2 % where few budgets outweigh all others. What is lost to rounding is
    added: the answer is never below the true delta.

    Parameters
    ----------
    eps_t : array_like, shape (T,)
        Budgets of the rounds, at least 0.
    epsilon : float

    Returns
    -------
    float

    References
    ----------
    Kairouz, Oh, Viswanath (2017), Theorem 3.3; Murtagh and Vadhan (2016), Theorem 1.5.
    """
    eps_t = np.asarray(eps_t, dtype=float)
    require(eps_t.size > 0 and (eps_t >= 0).all(), "eps_t must hold at least one budget, all >= 0")
    return _composed_delta(0.0, eps_t[eps_t > 0], epsilon)


def _composed_delta(mu, eps_t, epsilon):
    """Delta at epsilon of a mu-GDP release with pure eps_t-DP ones (all above 0), rounded up."""
    eps_t = np.sort(eps_t)[::-1]  # the same rounding in any order
    total = fsum(eps_t)
    if mu == 0 and epsilon >= total:
        return 0.0
    values, counts = np.unique(eps_t, return_counts=True)
    if len(values) > 15 or np.prod(counts + 1.0) > max(2**15, len(eps_t) + 1):
        return _transformed_delta(mu, eps_t, epsilon)
    losses, log_mass = np.zeros(1), np.zeros(1)
    for eps, n in zip(values, counts, strict=True):
        up = np.arange(n + 1.0)
        log_binomial = gammaln(n + 1) - gammaln(up + 1) - gammaln(n - up + 1)
        log_chance = log_binomial - (n - up) * eps - n * np.log1p(np.exp(-eps))
        losses = np.add.outer(losses, (2 * up - n) * eps).ravel()
        log_mass = np.add.outer(log_mass, log_chance).ravel()
    room = epsilon - losses
    if len(values):  # what the difference can lose
        room -= ULP * (epsilon + 2 * len(values) * total)
    lost = _gaussian_curve(mu, room) if mu > 0 else -np.expm1(np.minimum(room, 0.0))
    rounding = 8 * ULP * (gammaln(counts + 1.0).sum() + 750 * len(values))
    delta = (np.exp(log_mass) * lost).sum() * (1 + rounding)
    return float(np.clip(delta, TINY, 1.0))


EXCESS = 2e-4  # relative, of the smoothing below


def _transformed_delta(mu, eps_t, epsilon):
    r"""As `_composed_delta`, for budgets whose loss has too many values to list.

    .. math:: \delta = \frac{1}{2\pi i} \int_{\theta - i\infty}^{\theta + i\infty}
        \frac{M(s) e^{-s\epsilon}}{s (1 + s)} ds, \quad M(s) = E[e^{sL}] = e^{g s(1+s)/2}
        \prod_t \frac{\cosh(\epsilon_t (s + 1/2))}{\cosh(\epsilon_t / 2)}, \quad g = \mu^2

    for any theta > 0 (here the saddle point), by the trapezoidal rule with step 2 pi/R:

    - Poisson's summation: the rule's sum is sum_m e^(theta m R) delta(epsilon + m R), every term
      at least 0, and m = 0 is wanted. The rule errs upward only.
    - The part beyond frequency W is at most e^(K(theta) - theta epsilon - g W^2/2)/(pi W), as each
      factor has its largest modulus at frequency 0; it is added.
    - So that it is small, g is not less than 2 EXCESS/(theta (1 + theta)): one Gaussian release
      more, which can only add to delta; e^(theta (1 + theta) g/2) is what it adds near theta.
    - Rounding errors of the product (all factors have moduli at most 1) are added.
    """
    total = fsum(eps_t)

    def slope(theta, g):  # of the logarithm of the integrand, increasing
        short = 2 * eps_t * expit(-eps_t * (2 * theta + 1))  # eps_t (1 - tanh)
        return total - epsilon - short.sum() + g * (theta + 0.5) - 1 / theta - 1 / (1 + theta)

    def spread(theta, g):  # standard deviation of the tilted loss
        tilt = np.tanh(eps_t * (theta + 0.5))
        return np.sqrt(g + (eps_t**2 * (1 - tilt) * (1 + tilt)).sum())

    g = mu * mu
    low = high = 1.0
    while slope(low, g) > 0:
        low, high = low / 2, low
    while slope(high, g) < 0:
        low, high = high, 2 * high
    theta = low if low == high else brentq(slope, low, high, args=(g,), rtol=1e-3, xtol=TINY)
    theta = max(theta, 1 / max(spread(0.0, g), 1.0))  # no lower: the rule's step is of that size
    g = max(g, 2 * EXCESS / (theta * (1 + theta)))

    factors = np.log1p(np.exp(-eps_t * (2 * theta + 1))) - np.log1p(np.exp(-eps_t))
    exponents = theta * (total - epsilon), factors.sum(), g / 2 * theta * (1 + theta)
    log_scale = sum(exponents)
    log_scale += ULP * (theta * total + 8 * len(eps_t) + 8 * np.abs(exponents).sum())
    if log_scale < np.log(TINY):
        return float(TINY)

    reach = max(8 * spread(theta, g), 20 / theta)
    last = 6.5 / np.sqrt(g)
    w = 2 * np.pi / reach * np.arange(np.ceil(last * reach / (2 * np.pi)) + 1)
    s = theta + 1j * w
    weights = np.exp(-g * w**2 / 2) * np.where(w > 0, 2, 1) / reach
    phases = np.exp(1j * w * (g * (theta + 0.5) - epsilon)) / (s * (1 + s))
    angles = w * (total + epsilon + g * (theta + 0.5))
    rounding = 16 * ULP * (weights * np.abs(phases) * (len(eps_t) + 8 + angles)).sum()
    if log_scale + np.log(rounding) >= 0:
        return 1.0
    whole = (weights * (phases * _tilted_product(eps_t, theta, w)).real).sum()
    whole += rounding + np.exp(-g * last**2 / 2) / (np.pi * last)
    return float(np.exp(np.clip(log_scale + np.log(whole), np.log(TINY), 0.0)))


def _tilted_product(eps_t, theta, w):
    r"""prod_t cosh(eps_t (theta + i w + 1/2))/cosh(eps_t (theta + 1/2)) for each w.

    The largest budgets come first; a product below 1e-18 stays what it is, as no factor is above 1.
    Once all arguments left are at most 1, their series serves, which needs sums of powers only:

    .. math:: \log\cosh x = -\sum_{p \ge 1} \frac{(1 - 4^{-p}) \zeta(2p)}{p}
        \Bigl(-\frac{4 x^2}{\pi^2}\Bigr)^p, \quad |x| < \pi/2
    """
    parts = np.split(eps_t, np.arange(64, len(eps_t), 64))
    p = np.arange(1, 41)
    terms = -((-4 / np.pi**2) ** p) * (1 - 0.25**p) * zeta(2 * p) / p
    sums, later = [], np.zeros(len(p))  # of powers of the budgets from a part on, over its largest
    for part, following in zip(parts[::-1], [parts[-1], *parts[:0:-1]], strict=True):
        later = later * (following[0] / part[0]) ** (2 * p)
        later = later + ((part / part[0])[:, None] ** (2 * p)).sum(axis=0)
        sums.append(later)
    product = np.ones(len(w), dtype=complex)
    alive = np.arange(len(w))
    for part, powers in zip(parts, sums[::-1], strict=True):
        top = part[0] * (theta + 0.5)
        small = np.hypot(top, part[0] * w[alive]) <= 1
        done, alive = alive[small], alive[~small]
        if len(done):
            series = np.append(0, terms * powers)
            x = top + 1j * part[0] * w[done]
            product[done] *= np.exp(polyval(x * x, series) - polyval(top * top, series))
        angles = np.outer(w[alive], part)
        tilts = np.tanh(part * (theta + 0.5))
        product[alive] *= np.prod(np.cos(angles) + 1j * tilts * np.sin(angles), axis=1)
        alive = alive[np.abs(product[alive]) > 1e-18]
    return product


ACCOUNTING = ("bound", "optimal")


def round_weights(n_rounds, alpha=0.0, Q=None):
    r"""Weights of the rounds, :math:`t^\alpha` or :math:`Q^{-t}`, scaled to a maximum of 1.

    Section 3.5 of the paper: alpha for a convex loss, Q for a strongly convex one.
    """
    require(n_rounds >= 1, f"n_rounds = {n_rounds}: at least one round is needed")
    t = np.arange(1, n_rounds + 1, dtype=float)
    if Q is None:
        require(np.isfinite(alpha), f"alpha = {alpha} must be finite")
        log_weights = alpha * np.log(t)
    else:
        require(Q > 0 and np.isfinite(Q), f"Q = {Q} must be finite and above 0")
        log_weights = -t * np.log(Q)
    require(
        np.ptp(log_weights) <= 230,
        f"{f'alpha = {alpha}' if Q is None else f'Q = {Q}'} over {n_rounds} rounds leaves some of "
        f"them a share of the budget below 1e-100: use {'0' if Q is None else '1'} or near it",
    )
    return np.exp(log_weights - log_weights.max())


def allocate(epsilon, delta, n_rounds, alpha=0.0, Q=None, accounting="bound"):
    r"""Largest budgets :math:`\epsilon_t = \epsilon_0 t^\alpha` (or :math:`\epsilon_0 Q^{-t}`) with
    :math:`CB(\{\epsilon_t\}, \delta) \le \epsilon`.

    Bisection on eps_0 whose answer is the lower end: the bound is never above `epsilon`. With
    ``accounting="optimal"`` it is enough that `optimal_delta` is at most delta at epsilon.

    Parameters
    ----------
    epsilon, delta : float
        The total budget.
    n_rounds : int
        T.
    alpha : float
        Growth over rounds for a convex loss; theory: 0 (basic), 2/5 (accelerated).
    Q : float, optional
        Used instead of alpha when given; theory: Q0^(2/5) (basic), Q0'^(1/5) (accelerated).
    accounting : {"bound", "optimal"}
        The paper's CB, or exact composition, which allows larger eps_t for the same budget.

    Returns
    -------
    ndarray, shape (T,)

    References
    ----------
    Section 3.5 of the paper (privacy budget allocation), Theorem 6.
    """
    alpha = 0.0 if Q is not None else alpha
    return _allocate(
        float(epsilon), float(delta), int(n_rounds), float(alpha), Q, accounting
    ).copy()


@lru_cache(maxsize=4096)
def _allocate(epsilon, delta, n_rounds, alpha, Q, accounting):
    require(epsilon > 0 and np.isfinite(epsilon), f"epsilon = {epsilon} must be finite and above 0")
    require(accounting in ACCOUNTING, f"accounting = {accounting}: use {' or '.join(ACCOUNTING)}")
    weights = round_weights(n_rounds, alpha, Q)
    if accounting == "optimal" and delta > 0 and n_rounds > 1:  # never less than the bound allows
        low = _allocate(epsilon, delta, n_rounds, alpha, Q, "bound").max()

        def delta_of(eps_0):
            return optimal_delta(eps_0 * weights, epsilon)

        return _safe_root(delta_of, delta, low, 2 * low, 1e-9) * weights

    def within(eps_0):
        return composition_bound(eps_0 * weights, delta) <= epsilon

    # The plain sum is always allowed; a few units in the last place cover its rounding.
    low = epsilon / weights.sum() * (1 - 8 * ULP)
    high = 2 * low
    while within(high):
        low, high = high, 2 * high
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return low * weights
        if within(middle):
            low = middle
        else:
            high = middle


def _safe_root(delta_of, delta, safe, unsafe, width):
    """Where delta_of(x), monotone, reaches delta between the two, to a relative width.

    Never on the other side: delta_of at the answer is at most delta, unless that is so nowhere
    and `safe` comes back. If it is so at `unsafe` too, the bracket moves there and grows.
    """

    @cache
    def excess(x):
        return np.log(max(delta_of(x), TINY) / delta)

    while excess(unsafe) <= 0:
        safe, unsafe = unsafe, unsafe * (unsafe / safe)
    if excess(safe) >= 0:
        return safe
    root = brentq(excess, safe, unsafe, xtol=TINY, rtol=max(width, 4 * ULP), maxiter=1000)
    step = np.copysign(width * root, safe - root)
    while excess(root) > 0:
        root, step = root + step, 2 * step
        if (root - safe) * step >= 0:
            return safe
    return root


def _gaussian_delta(a, epsilon):
    """delta(eps) of mu-GDP at a = mu/2 - eps/mu, rounded up.

    In terms of a nothing overflows or cancels in mu; what the difference of the two terms can lose
    to rounding is added, so that the true delta is not above.
    """
    b = np.sqrt(a * a + 2 * epsilon)  # mu/2 + eps/mu
    tail = 0.5 * np.exp(-a * a / 2)
    first = np.where(a > 0, ndtr(a), tail * erfcx(np.abs(a) / np.sqrt(2)))
    second = tail * erfcx(b / np.sqrt(2))
    return first - second + 8 * ULP * (first + second)


def _gaussian_curve(mu, epsilon):
    """delta(epsilon) of mu-GDP for an array of epsilon of any sign, rounded up.

    Below 0 by symmetry: delta(-e) = 1 - exp(-e) + exp(-e) delta(e). For a small mu the two terms
    cancel and their difference is the integral of -erfcx'(x) = 2/sqrt(pi) - 2 x erfcx(x).
    """
    mu = max(mu, 1e-100)  # more is on the safe side
    e = np.abs(epsilon)
    a = mu / 2 - e / mu + 2 * ULP * (mu / 2 + e / mu)
    delta = _gaussian_delta(a, e)
    if mu < 0.5:
        nodes, weights = np.polynomial.legendre.leggauss(10)
        width = mu / np.sqrt(2) * (1 + 8 * ULP)
        x = np.multiply.outer(width * (1 + nodes) / 2, np.ones_like(a)) - a / np.sqrt(2)
        falls = np.tensordot(weights / 2, 2 / np.sqrt(np.pi) - 2 * x * erfcx(x), 1) + 5 * ULP
        delta = np.minimum(delta, 0.5 * np.exp(-a * a / 2) * width * falls)
    below = (-np.expm1(-e) + np.exp(-e) * delta) * (1 + 8 * ULP)
    return np.where(epsilon < 0, below, delta)


def _mu_of(a, epsilon):
    b = np.sqrt(a * a + 2 * epsilon)
    return a + b if a > 0 else 2 * epsilon / (b - a)


@lru_cache(maxsize=256)
def gaussian_mu(epsilon, delta):
    r"""Largest mu for which a mu-GDP release is (epsilon, delta)-DP.

    .. math:: \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu) = \delta

    Solved for a = mu/2 - eps/mu, so that it works for epsilon from 1e-6 to 1e40; the answer is
    the lower end of the bracket (never above the budget).

    Parameters
    ----------
    epsilon : float
        Above 0.
    delta : float
        In (0, 1): the Gaussian mechanism gives nothing at delta = 0.

    Returns
    -------
    float

    References
    ----------
    Balle and Wang (ICML 2018), Theorem 8; Dong, Roth, Su (2022), Corollary 1.
    """
    require(epsilon > 0 and np.isfinite(epsilon), f"epsilon = {epsilon} must be finite and above 0")
    require(
        0 < delta < 1,
        f"delta = {delta}: the Gaussian mechanism needs delta in (0, 1); "
        "the two-sided Wishart mechanism works with delta = 0",
    )
    low = high = 0.0  # delta grows with a
    step = 1.0
    while _gaussian_delta(low, epsilon) > delta:
        low -= step
        step *= 2
    step = 1.0
    while _gaussian_delta(high, epsilon) < delta:
        high += step
        step *= 2
    width = 1e-13 * max(1.0, -low)
    if low < high:
        low = bisect(lambda a: _gaussian_delta(a, epsilon) - delta, low, high, xtol=width)
    root = low
    while _gaussian_delta(root, epsilon) > delta:
        root -= width
    return float(_mu_of(root, epsilon) * (1 - 4 * ULP))


def wishart_delta(eps_t):
    r"""What the one-sided Wishart mechanism really gives up: :math:`1 - e^{-\sum_t \epsilon_t}`.

    One release with noise W_d(d+1, K^2/(2 eps_t) I) is exactly (eps_t, 1 - e^-eps_t)-DP: the noise
    is positive semi-definite, so an output can rule a neighbour out, and that happens with
    probability 1 - e^-eps_t at worst. The rounds compose to (sum eps_t, 1 - e^-sum eps_t).
    """
    return float(-np.expm1(-np.sum(eps_t)))


@dataclass(frozen=True)
class Cost:
    r"""What releases cost together; ``+`` is adaptive composition, ``Cost()`` costs nothing.

    Gaussian releases compose to one of :math:`\mu = \sqrt{\sum_t \mu_t^2}`, pure ones to their
    randomised responses of total loss L (`optimal_delta`), and the two to the pair whose loss is
    the sum of both,

    .. math:: \delta(\epsilon) = E_L[\delta_\mu(\epsilon - L)], \quad
        \delta_\mu(e) = \Phi(\mu/2 - e/\mu) - e^e \Phi(-\mu/2 - e/\mu), \quad
        \delta_0(e) = (1 - e^e)_+

    Parameters
    ----------
    mu : float
        Of the Gaussian releases together, at least 0; 0 for none.
    pure : tuple of float
        Budgets eps_t of the pure releases, at least 0; kept in falling order and without zeros.

    Raises
    ------
    InputError
        If one of them is negative or not finite.

    References
    ----------
    Dong, Roth, Su (2022), Corollaries 1 and 2 (mu-GDP); Kairouz, Oh, Viswanath (2017), Theorem 3.3
    (pure rounds); Bun and Steinke (2016) (zCDP).
    """

    mu: float = 0.0
    pure: tuple = ()

    def __post_init__(self):
        pure = tuple(sorted((float(eps) for eps in self.pure if eps != 0), reverse=True))
        require(0 <= self.mu < np.inf, f"mu = {self.mu} must be finite and at least 0")
        require(all(0 <= eps < np.inf for eps in pure), "pure must hold finite budgets, all >= 0")
        object.__setattr__(self, "mu", float(self.mu))
        object.__setattr__(self, "pure", pure)

    def __add__(self, other):
        return Cost(np.hypot(self.mu, other.mu), self.pure + other.pure)

    def delta(self, epsilon):
        """Smallest delta for which all of it is (epsilon, delta)-DP.

        Rounded up, so that it is never below the true one: by less than 1e-9 of it but for very
        many unequal pure budgets, see `optimal_delta`.
        """
        require(0 <= epsilon < np.inf, f"epsilon = {epsilon} must be finite and at least 0")
        return _composed_delta(self.mu, np.array(self.pure), float(epsilon))

    def epsilon(self, delta):
        """Smallest epsilon at which `delta` is at most this delta, rounded up; inf if there is none
        (delta = 0 with Gaussian releases; without them it is the plain sum then).
        """
        require(0 <= delta <= 1, f"delta = {delta} is outside [0, 1]")
        if delta == 0:
            return np.inf if self.mu > 0 else fsum(self.pure)
        if self.delta(0.0) <= delta:
            return 0.0
        safe = 1.0
        while self.delta(safe) > delta:
            safe *= 2
        return _safe_root(self.delta, delta, safe, safe / 2, 1e-12)

    @property
    def rho(self):
        r"""The smallest rho for which all of it is rho-zCDP by adding up.

        .. math:: \rho = \mu^2/2 + \sum_t \epsilon_t \tanh(\epsilon_t/2)

        A randomised response has the Renyi divergence :math:`D_\alpha = \log\bigl(\cosh(\epsilon
        (\alpha - 1/2))/\cosh(\epsilon/2)\bigr)/(\alpha - 1)`. Since tanh(x)/x falls,
        :math:`\log\cosh(\epsilon\sqrt y)` is concave in y; its tangent at y = 1/4 gives
        :math:`D_\alpha \le \alpha \epsilon \tanh(\epsilon/2)`, with equality as alpha falls to 1.
        This is at most the eps^2/2 of Bun and Steinke (2016), Proposition 3.3.
        """
        pure = np.array(self.pure)
        return float(self.mu**2 / 2 + (pure * np.tanh(pure / 2)).sum())

"""Composition of budgets over rounds, and what a noise level proves at a given epsilon."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import bisect
from scipy.special import erfcx, expit, ndtr

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


CELLS = 20_000  # grid cells of all budgets together, where they differ


def optimal_delta(eps_t, epsilon):
    r"""Exact delta at epsilon of any adaptive composition of pure eps_t-DP rounds.

    .. math:: \delta = E\bigl[(1 - e^{\epsilon - L})_+\bigr], \quad
        L = \sum_t \pm\epsilon_t, \; P(+\epsilon_t) = \frac{e^{\epsilon_t}}{1 + e^{\epsilon_t}}

    Every pure eps_t-DP release is a randomised response that was processed further, so nothing is
    worse than the composed responses and those are attained. The distribution of L is computed on a
    grid. A loss between two grid points is split with the same mass under both neighbours:
    the split outcome tells more, never less, so the answer is not below the true delta, and it is
    the true one where all budgets are equal. What summation can lose to rounding is added.

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
    Kairouz, Oh, Viswanath (2017), Theorem 3.3; Murtagh and Vadhan (2016), Theorem 1.5; the split:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022).
    """
    eps_t = np.asarray(eps_t, dtype=float)
    require(eps_t.size > 0 and (eps_t >= 0).all(), "eps_t must hold at least one budget, all >= 0")
    largest = eps_t.max()
    if epsilon >= eps_t.sum():
        return 0.0
    h = largest / (1 if eps_t.min() == largest else max(1, CELLS // len(eps_t)))
    reach = np.minimum(np.floor(eps_t / h).astype(int), round(largest / h))
    pmf = np.ones(1)  # of L/h, centred
    for eps, k in zip(eps_t, reach, strict=True):
        over = max(eps - k * h, 0.0)  # eps lies between k h and (k + 1) h
        up, down = expit(eps), expit(-eps)
        far_up = up * np.expm1(-over) / np.expm1(-h)
        near_down = down * np.expm1(-max(h - over, 0.0)) / np.expm1(-h)
        if over == 0:
            far_up, near_down = 0.0, down
        wider = np.zeros(len(pmf) + 2 * (k + 1))
        for step, mass in (
            (k + 1, far_up),
            (k, up - far_up),
            (-k, near_down),
            (-k - 1, down - near_down),
        ):
            begin = k + 1 + step
            wider[begin : begin + len(pmf)] += max(mass, 0.0) * pmf
        pmf = wider
    losses = h * (np.arange(len(pmf)) - len(pmf) // 2)
    room = epsilon * (1 - 1e-13) - losses
    lost = -np.expm1(np.minimum(room, 0.0))
    return float(min(1.0, (lost * pmf).sum() * (1 + 1e-11)))


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
    exact = accounting == "optimal" and delta > 0 and n_rounds > 1

    def within(eps_0):
        if composition_bound(eps_0 * weights, delta) <= epsilon:
            return True
        return exact and optimal_delta(eps_0 * weights, epsilon) <= delta

    # The plain sum is always allowed; a few units in the last place cover its rounding.
    low = epsilon / weights.sum() * (1 - 8 * np.finfo(float).eps)
    if exact:  # never less than the bound allows
        low = _allocate(epsilon, delta, n_rounds, alpha, Q, "bound").max()
    high = 2 * low
    while within(high):
        low, high = high, 2 * high
    width = 1e-9 if exact else 0.0  # relative; a convolution costs more than the last digits
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high or high - low <= width * low:
            return low * weights
        if within(middle):
            low = middle
        else:
            high = middle


def _gaussian_delta(a, epsilon):
    """delta(eps) of mu-GDP at a = mu/2 - eps/mu, rounded up.

    In terms of a nothing overflows or cancels in mu; what the difference of the two terms can lose
    to rounding is added, so that the true delta is not above.
    """
    b = np.sqrt(a * a + 2 * epsilon)  # mu/2 + eps/mu
    tail = 0.5 * np.exp(-a * a / 2)
    first = ndtr(a) if a > 0 else tail * erfcx(-a / np.sqrt(2))
    second = tail * erfcx(b / np.sqrt(2))
    return first - second + 8 * np.finfo(float).eps * (first + second)


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
    return float(_mu_of(root, epsilon) * (1 - 4 * np.finfo(float).eps))


def wishart_delta(eps_t):
    r"""What the one-sided Wishart mechanism really gives up: :math:`1 - e^{-\sum_t \epsilon_t}`.

    One release with noise W_d(d+1, K^2/(2 eps_t) I) is exactly (eps_t, 1 - e^-eps_t)-DP: the noise
    is positive semi-definite, so an output can rule a neighbour out, and that happens with
    probability 1 - e^-eps_t at worst. The rounds compose to (sum eps_t, 1 - e^-sum eps_t).
    """
    return float(-np.expm1(-np.sum(eps_t)))


@dataclass(frozen=True)
class Cost:
    """Stub."""

    mu: float = 0.0
    pure: tuple = ()

    def __add__(self, other):
        return Cost(float(np.hypot(self.mu, other.mu)), self.pure + other.pure)

    def delta(self, epsilon):
        if self.mu == 0:
            return optimal_delta(self.pure, epsilon) if self.pure else 0.0
        total = sum(self.pure)
        a = self.mu / 2 - (epsilon - total) / self.mu
        return float(_gaussian_delta(a, epsilon - total))

    def epsilon(self, delta):
        return 0.0

    @property
    def rho(self):
        return self.mu**2 / 2


def largest_mu(epsilon, delta, pure=()):
    return gaussian_mu(epsilon - sum(pure), delta)

r"""Utility bounds of Theorems 2 to 5, their minima over the budget allocation, and Table 2.

All formulas are as printed, without the constants that O() hides. With s = 1 for delta = 0 (the
supplement's setting no. 1) and s = 2 for delta > 0, every bound is (M/gain)^exponent, where M is
`noise_level`, and the gain holds all that depends on the allocation, the part of M_0 included.
It is times K^2 L, but K for a strongly convex loss.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar

from mpmtl.errors import require
from mpmtl.methods import theory_rate

GRID = 4001  # points of a piece before the minimum is refined
# Table 2: (delta = 0, strongly convex, accelerated) to the exponent of the rate.
RATES = (1, 1 / 2, 2 / 5, 1 / 3, 1, 1 / 2, 4 / 9, 2 / 5)
PRINTED = dict(zip(product((True, False), repeat=3), RATES, strict=True))


def noise_level(method, d, m, epsilon, delta, k=1, K=1.0):
    r"""M but for the allocation: :math:`M_0 Kkd \log d/\sqrt m` (lr), :math:`M_0 k \log d/m` (gs).

    .. math:: M_0 = \sqrt{\log(e + \epsilon/\sqrt2\delta) + 2\epsilon}/\epsilon, \quad
        M_0 = 1/\epsilon \text{ for } \delta = 0

    Theorems 2 to 5; k is the number of singular values (lr) or rows (gs) above eta lambda.
    """
    require(method in ("lr", "gs"), f"method = {method}: use lr or gs")
    require(epsilon > 0, f"epsilon = {epsilon} must be above 0")
    log_term = np.log(np.e + epsilon / (np.sqrt(2) * delta)) + 2 * epsilon if delta else 1.0
    size = K * k * d * np.log(d) / np.sqrt(m) if method == "lr" else k * np.log(d) / m
    return float(size * np.sqrt(log_term) / epsilon)


def tasks_needed(level, method, d, epsilon, k=1, K=1.0):
    """Number of tasks m at which `noise_level` falls to `level`, with delta = 1/(m log m).

    Assumption 1 with its constant C asks for level 1/sqrt(C) (lr) or 1/C (gs) at k = 1.
    """

    def excess(log_m):
        m = np.exp(log_m)
        return np.log(noise_level(method, d, m, epsilon, 1 / (m * log_m), k, K) / level)

    return float(np.exp(brentq(excess, 0.1, 600)))


def largest_round(method, d, m, k, K=1.0):
    """Largest eps_t that Theorems 2 and 4 (lr) or 3 and 5 (gs) allow."""
    if method == "lr":
        return 4 * K * k**2 * d * np.log(d) / min(d, m) ** 2
    return k**2 * np.log(d) / (4 * K * d * (d - k) ** 2 * m)


def phi(alpha, accelerated, pure=False):
    r"""Exponent of Theorems 2 and 3: :math:`c/(\max(\alpha, 2c) + \max(-\alpha, 1/s))`, c = 1 or 2.

    The three printed pieces in one formula: 2/(2 alpha + 1), 2/5 and 1/(2 - alpha) for the basic
    form (c = 1) and delta > 0.
    """
    c = 2 if accelerated else 1
    return c / (np.maximum(alpha, 2 * c) + np.maximum(-alpha, 1 if pure else 1 / 2))


def psi(Q, Q_tilde):
    """psi of Theorem 4: Q below Q_tilde, Q_tilde up to 1, Q_tilde/Q above 1."""
    return np.minimum(Q, Q_tilde) / np.maximum(Q, 1)


def _log_gap(x):
    """log |1 - e^x| without overflow or cancellation."""
    return np.maximum(x, 0) + np.log(-np.expm1(-np.abs(x)))


@dataclass(frozen=True)
class Minimum:
    """Rate (alpha or Q) and bound; not attained where the rate is -inf, 0 or inf."""

    rate: float
    bound: float
    attained: bool = True


@dataclass(frozen=True)
class Bound:
    """What the two kinds share. x is alpha, or log Q; the bound is infinite at two breaks."""

    accelerated: bool = False
    pure: bool = False  # delta = 0

    @property
    def s(self):
        """1 for delta = 0, else 2."""
        return 1 if self.pure else 2

    def log_bound(self, x, M):
        """Logarithm of the bound at x for the noise level M."""
        with np.errstate(divide="ignore"):
            return self.exponent(x) * (np.log(M) - self.log_gain(x))

    def best(self, M, window=False):
        """Smallest bound over all rates, or between the two breaks (`window`), as `Minimum`.

        A dense grid in each of the three smooth pieces, then a bounded search beside its best
        point. Far out the bound tends to `limit`, which is the infimum if nothing is below it.
        """
        low, high = self.breaks
        far = np.linspace(np.log(1e-9), np.log(self.reach), GRID)
        pieces = [(lambda v: low + (high - low) * v, np.linspace(0, 1, GRID + 1)[1:-1])]
        if not window:
            pieces += [(lambda v: low - np.exp(v), far), (lambda v: high + np.exp(v), far)]
        found = []
        for place, grid in pieces:
            i = np.argmin(self.log_bound(place(grid), M))
            sides = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
            refined = minimize_scalar(
                lambda v, place=place: self.log_bound(place(v), M),
                bounds=sides,
                method="bounded",
                options={"xatol": 1e-12},
            )
            found.append((refined.fun, place(refined.x)))
        value, x = min(found)
        if not window and value >= np.log(self.limit):
            return Minimum(float(self.rate(-np.inf)), self.limit, attained=False)
        return Minimum(float(self.rate(x)), float(np.exp(value)))

    def stated(self, M):
        """The paper's optimum and its bound."""
        rate = theory_rate(self.accelerated, self.strongly_convex, self.mu_over_L, self.pure)
        return Minimum(rate, float(np.exp(self.log_bound(self.x_of(rate), M))))

    def agreement(self):
        """Noise level below which the stated optimum is the minimum over all rates."""

        def excess(log_M):
            M = np.exp(log_M)
            return np.log(self.best(M).bound / self.stated(M).bound) + 1e-9

        return float(np.exp(brentq(excess, -80, 5, xtol=1e-6)))

    def sums_best(self, T):
        r"""Best rate for T rounds in the sums that the theorems bound.

        .. math:: \Bigl(\sum_t w_t \epsilon_t^{-1/2}\Bigr)^2 \Bigl(\sum_t \epsilon_t^s\Bigr)^{1/s}

        with the weights w_t of `weights`; its logarithm is convex in x.
        """
        t, w = np.arange(1, T + 1), self.weights(T)

        def log_sum(x):
            log_eps = x * np.log(t) if not self.strongly_convex else -x * t
            return accumulated_error(np.exp(log_eps), w, self.s)

        return float(self.rate(minimize_scalar(log_sum, bounds=self.breaks, method="bounded").x))


def accumulated_error(eps_t, weights, s):
    """log of (sum w_t eps_t^(-1/2))^2 (sum eps_t^s)^(1/s); the scale of eps_t does not matter."""
    return 2 * np.log((weights / np.sqrt(eps_t)).sum()) + np.log((eps_t**s).sum()) / s


@dataclass(frozen=True)
class ConvexBound(Bound):
    r"""Theorems 2 and 3: gain :math:`(\alpha/2 - c)^2 |s\alpha + 1|^{1/s}`, exponent `phi`."""

    strongly_convex: ClassVar[bool] = False
    mu_over_L: ClassVar[None] = None
    limit: ClassVar[float] = 1.0
    reach: ClassVar[float] = 1e9

    @property
    def c(self):
        """Order of the momentum: 1, or 2 if accelerated."""
        return 2 if self.accelerated else 1

    @property
    def breaks(self):
        """Where the bound is infinite."""
        return -1 / self.s, 2.0 * self.c

    def rate(self, x):
        """alpha of x, which is alpha itself."""
        return x

    x_of = rate

    def exponent(self, alpha):
        """Of M/gain in the bound."""
        return phi(alpha, self.accelerated, self.pure)

    def log_gain(self, alpha):
        """Logarithm of what the allocation gains."""
        return 2 * np.log(np.abs(alpha / 2 - self.c)) + np.log(np.abs(self.s * alpha + 1)) / self.s

    def rounds_slope(self, alpha):
        """Slope of log T over log gain - log M."""
        return self.exponent(alpha) / self.c

    def weights(self, T):
        """w_t of `sums_best`, t^(c - 1)."""
        return np.arange(1.0, T + 1) ** (self.c - 1)


@dataclass(frozen=True)
class StrongBound(Bound):
    r"""Theorems 4 and 5: gain :math:`(\sqrt{\tilde Q/Q} - 1)^2 |1 - Q^s|^{1/s}`.

    Q~ = Q0^2, Q0 = 1 - mu/L (basic) or Q~ = Q0' = 1 - sqrt(mu/L) (accelerated); the exponent is
    log Q0 or log Q0' to the base psi(Q, Q~).
    """

    mu_over_L: float = 0.1
    strongly_convex: ClassVar[bool] = True
    reach: ClassVar[float] = 600.0

    def __post_init__(self):
        require(0 < self.mu_over_L < 1, f"mu_over_L = {self.mu_over_L} must be in (0, 1)")

    @property
    def limit(self):
        """Q0 or Q0', what the bound tends to far out."""
        return 1 - (self.mu_over_L**0.5 if self.accelerated else self.mu_over_L)

    @property
    def breaks(self):
        """Where the bound is infinite, in log Q."""
        return (1 if self.accelerated else 2) * np.log(self.limit), 0.0

    def rate(self, x):
        """Q of x = log Q."""
        return np.exp(x)

    def x_of(self, Q):
        """log Q."""
        return np.log(Q)

    def exponent(self, x):
        """Of M/gain in the bound."""
        return -np.log(self.limit) * self.rounds_slope(x)

    def log_gain(self, x):
        """Logarithm of what the allocation gains."""
        return 2 * _log_gap((self.breaks[0] - x) / 2) + _log_gap(self.s * x) / self.s

    def rounds_slope(self, x):
        """Slope of T over log gain - log M."""
        return 1 / (np.maximum(x, 0) - np.minimum(x, self.breaks[0]))  # -1/log psi

    def weights(self, T):
        """w_t of `sums_best`, relative to the last one."""
        return np.exp(-self.breaks[0] / 2 * (np.arange(1, T + 1) - T))


def bounds(ratios):
    """All bounds in the order of Table 2, the strongly convex ones for every mu/L."""
    for pure, accelerated in product((True, False), (False, True)):
        yield ConvexBound(accelerated, pure)
        yield from (StrongBound(accelerated, pure, ratio) for ratio in ratios)


def _labels(bound):
    return {
        "delta": "0" if bound.pure else "> 0",
        "accelerated": bound.accelerated,
        "mu_over_L": bound.mu_over_L or 0.0,
    }


def table_2():
    """Table 2 recomputed: slopes of the log of the best bound in 1/epsilon and m, both methods."""
    rows = []
    for bound in bounds([0.1]):
        row = _labels(bound)
        row["printed"] = PRINTED[bound.pure, bound.strongly_convex, bound.accelerated]

        def log_best(method, m, epsilon, bound=bound):
            M = noise_level(method, 30, m, epsilon, 0.0 if bound.pure else 0.01)
            return np.log10(bound.best(M, window=True).bound)

        for method in ("lr", "gs"):  # epsilon far below delta, so that the logarithm is 1
            start = log_best(method, 1e6, 1e-8)
            row[f"{method}_epsilon"] = log_best(method, 1e6, 1e-9) - start
            row[f"{method}_m"] = log_best(method, 1e7, 1e-8) - start
        rows.append(row)
    return pd.DataFrame(rows)


def optima(ratios, levels, T=100):
    """Optimal rates: stated, of the sums, of the bound between the breaks, and over all rates."""
    rows = []
    for bound, M in product(bounds(ratios), levels):
        stated, window, best = bound.stated(M), bound.best(M, window=True), bound.best(M)
        row = _labels(bound) | {"M": M, "stated": stated.rate}
        row |= {"sums": bound.sums_best(T), "window": window.rate, "overall": best.rate}
        row |= {"attained": best.attained, "bound_stated": stated.bound}
        rows.append(row | {"bound_overall": best.bound, "agree_below": bound.agreement()})
    rates = ["stated", "sums", "window", "overall"]
    table = pd.DataFrame(rows)
    table[rates] = table[rates].round(5) + 0.0  # no negative zeros
    return table


def claim_3(ratios):
    """Claim 3: M below which acceleration takes fewer rounds (or more, if `fewer` is false)."""
    rows = []
    for bound in bounds(ratios):
        if not bound.accelerated:
            lines = []  # log T, or T if strongly convex, is slope (log gain - log M)
            for form in (bound, replace(bound, accelerated=True)):
                x = form.x_of(form.stated(1.0).rate)
                lines.append((form.rounds_slope(x), form.rounds_slope(x) * form.log_gain(x)))
            (slope, start), (fast_slope, fast_start) = lines
            level = np.exp((start - fast_start) / (slope - fast_slope))
            rows.append(_labels(bound) | {"M": level, "fewer": bool(slope > fast_slope)})
    return pd.DataFrame(rows).drop(columns="accelerated")


def sizes(d, m, epsilons, ranks, K=1.0):
    """Convex bounds over K^2 L at the stated optimum, delta = 1/(m log m), and the tasks needed.

    `ranks` maps a method to k; T is of the basic form. The last columns are the eps_t allowed, the
    m of Assumption 1 with C = 1, and the m at which the basic bound is 1 and 0.1.
    """
    basic, fast = ConvexBound(), ConvexBound(accelerated=True)
    rows = []
    for (method, k), epsilon in product(ranks.items(), epsilons):
        M = noise_level(method, d, m, epsilon, 1 / (m * np.log(m)), k, K)
        row = {"method": method, "k": k, "epsilon": epsilon, "M": M, "T": M ** -phi(0, False)}
        row |= {"basic": basic.stated(M).bound, "accelerated": fast.stated(M).bound}
        row["largest_eps_t"] = largest_round(method, d, m, k, K)
        row["m_assumption"] = tasks_needed(1.0, method, d, epsilon, 1, K)
        for value in (1.0, 0.1):
            row[f"m_{value:g}"] = tasks_needed(value**2.5, method, d, epsilon, k, K)
        rows.append(row)
    return pd.DataFrame(rows)

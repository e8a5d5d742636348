"""Verdicts on statements: paired intervals over replicates, and how many would decide."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from mpmtl.paper.intervals import half_width

LEVEL = 0.95  # of all intervals of a statement together (Bonferroni)
POWER = 0.8  # with which so many replicates would decide it
HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
SEVERAL = {HOLDS: "hold", FAILS: "do not hold"}


def tally(verdicts):
    """How many statements have each verdict, in words."""
    counts = Counter(verdicts)
    each = ((counts[word], word) for word in dict.fromkeys((HOLDS, FAILS, OPEN, *counts)))
    return ", ".join(f"{n} {word if n == 1 else SEVERAL.get(word, word)}" for n, word in each)


@dataclass(frozen=True)
class Comparison:
    """The statement that a mean is below zero.

    Attributes
    ----------
    label : str
    values : ndarray
        One for each replicate, or what else is counted.
    counted : str
        What the values are.
    each : int
        So many of them make one value.
    """

    label: str
    values: np.ndarray
    counted: str = "replicates"
    each: int = 1

    def interval(self, level):
        """Mean and two-sided t interval."""
        mean = np.mean(self.values)
        half = half_width(self.values, level)
        half = math.inf if np.isnan(half) else half
        return mean, mean - half, mean + half

    def needed(self, level):
        """`replicates_needed` for this comparison to exclude zero, on whichever side it is."""
        values = np.asarray(self.values, dtype=float)
        sd = values.std(ddof=1) if len(values) > 1 else math.nan
        return self.each * replicates_needed(values.mean(), sd, level)


def replicates_needed(mean, sd, level, power=POWER):
    r"""Number of replicates with which a paired t interval excludes zero.

    .. math::
        \min \{ n : \sqrt n\, |\bar D| \ge
        (t_{(1 + level)/2,\, n-1} + t_{power,\, n-1})\, s_D \}

    the usual sample size of a paired t test, were the true mean and standard deviation of the
    differences those that were measured.

    Parameters
    ----------
    mean, sd : float
        Of the differences of two methods on the same replicates.
    level : float
        Of the two-sided interval.
    power : float
        Probability with which the interval excludes zero.

    Returns
    -------
    int or inf
        At least 2; inf where the mean is zero or the spread is not known.
    """
    if math.isnan(sd) or mean == 0:
        return math.inf

    def enough(n):
        quantiles = stdtrit(n - 1, [(1 + level) / 2, power])
        return math.sqrt(n) * abs(mean) >= quantiles.sum() * sd

    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class Verdict(NamedTuple):
    """A verdict, what was measured in words, and where it is open what would decide it."""

    verdict: str
    words: str
    needed: str = ""


def judge(comparisons, level=LEVEL):
    """Verdict on several comparisons that are all to hold.

    Holds if every interval is below zero, does not hold if one is above it; the intervals hold
    together with the probability `level` (Bonferroni).

    Returns
    -------
    Verdict
    """
    each = 1 - (1 - level) / len(comparisons)
    intervals = [(c.label, *c.interval(each)) for c in comparisons]
    against = [i for i in intervals if i[2] > 0]
    unclear = [i for i in intervals if i[2] <= 0 <= i[3]]
    verdict = FAILS if against else OPEN if unclear else HOLDS
    decisive = against or unclear or intervals
    named = intervals if len(intervals) <= 4 else sorted(decisive, key=lambda i: -i[1])[:4]
    words = "; ".join(
        f"{label} {mean:+.3g} [{low:+.3g}, {high:+.3g}]" for label, mean, low, high in named
    )
    if len(intervals) > 4:
        n = len(intervals) - len(against) - len(unclear)
        counts = f"{n} of {len(intervals)} hold, {len(against)} do not, {len(unclear)} undecided"
        words = f"{counts}; {'largest' if verdict == HOLDS else 'such as'}: {words}"
    return Verdict(verdict, words, _needed(comparisons, each) if verdict == OPEN else "")


def _needed(comparisons, level):
    """What would decide an open statement: one mean above zero is enough against it, all must be
    below zero for it."""
    above = [c for c in comparisons if np.mean(c.values) > 0]
    numbers = [(c.needed(level), c) for c in above or comparisons]
    number, decisive = (min if above else max)(numbers, key=lambda pair: pair[0])
    if math.isinf(number):
        return "no number: the mean is zero, or there is one value only"
    digits = max(len(str(number)) - 2, 0)
    return f"{math.ceil(number / 10**digits) * 10**digits:,} {decisive.counted}"

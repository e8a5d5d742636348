"""What samples prove about delta: Clopper-Pearson bounds for a region chosen on other samples."""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

MOST_THRESHOLDS = 100  # tried on each side's samples, as many again in the tail


def lower_limit(hits, n, level):
    """Clopper-Pearson lower limit of a probability, wrong with a chance of at most 1 - level."""
    hits = np.asarray(hits, dtype=float)
    limit = betaincinv(np.maximum(hits, 1), n - np.maximum(hits, 1) + 1, 1 - level)
    return np.where(hits > 0, limit, 0.0)


def upper_limit(hits, n, level):
    """Clopper-Pearson upper limit of a probability, wrong with a chance of at most 1 - level."""
    return 1 - lower_limit(n - np.asarray(hits), n, level)


def delta_bound(hits, hits_other, n, epsilon, confidence):
    r"""Lower bound on delta at epsilon from n samples of each input.

    .. math:: \delta \ge P(R \mid D) - e^\epsilon P(R \mid D')

    for any fixed region R. Each probability gets half of the error 1 - confidence.

    Parameters
    ----------
    hits, hits_other : array_like of int
        Samples in R under D and under D'.
    n : int
    epsilon, confidence : float

    Returns
    -------
    ndarray
        At least 0.
    """
    level = 1 - (1 - confidence) / 2
    least, most = lower_limit(hits, n, level), upper_limit(hits_other, n, level)
    excess = least - np.exp(min(epsilon, 700.0)) * most
    return np.maximum(excess, 0.0)


@dataclass(frozen=True)
class Trial:
    """One attack on one ordered pair of inputs: its scores, sorted, in two independent halves.

    The region is {score >= threshold}, or {score <= threshold} if `below`. The threshold is chosen
    on the first half (or fixed beforehand) and the bound comes from the second.

    Attributes
    ----------
    pair, attack : str
    first, first_other : ndarray
        Scores under D and under D' for the choice.
    second, second_other : ndarray
        Scores for the bound.
    fixed : float or None
        A threshold that needs no choice.
    below : bool
    """

    pair: str
    attack: str
    first: np.ndarray
    first_other: np.ndarray
    second: np.ndarray
    second_other: np.ndarray
    fixed: float | None = None
    below: bool = False

    def _hits(self, scores, threshold):
        if self.below:
            return np.searchsorted(scores, threshold, side="right")
        return len(scores) - np.searchsorted(scores, threshold)

    def thresholds(self):
        """Candidates: scores of either side, dense in the tail that the region begins with."""
        if self.fixed is not None:
            return np.array([self.fixed])
        tried = []
        for scores in (self.first, self.first_other):
            n = len(scores)
            ranks = np.geomspace(1, n, MOST_THRESHOLDS).astype(int)
            tried += [scores[ranks - 1 if self.below else -ranks]]
            tried += [scores[np.linspace(0, n - 1, MOST_THRESHOLDS).astype(int)]]
        return np.unique(np.concatenate(tried))

    def choose(self, epsilon, confidence):
        """Best threshold on the first half: threshold, bound there, estimate there."""
        tried, n = self.thresholds(), len(self.first)
        hits, hits_other = (self._hits(s, tried) for s in (self.first, self.first_other))
        bounds = delta_bound(hits, hits_other, n, epsilon, confidence)
        estimates = (hits - np.exp(min(epsilon, 700.0)) * hits_other) / n
        best = np.lexsort((estimates, bounds))[-1]
        return float(tried[best]), float(bounds[best]), float(estimates[best])

    def measure(self, threshold, epsilon, confidence):
        """Hits of both sides in the second half and the bound from them."""
        n = len(self.second)
        hits, hits_other = (int(self._hits(s, threshold)) for s in (self.second, self.second_other))
        return hits, hits_other, float(delta_bound(hits, hits_other, n, epsilon, confidence))


def search(trials, epsilon, confidence):
    """Rows for all trials at this epsilon, the one that the first half calls best in front.

    The confidence of the first row's bound needs no correction for the number of trials, because
    the choice did not look at the second half.
    """
    rows = []
    for trial in trials:
        threshold, promise, estimate = trial.choose(epsilon, confidence)
        hits, hits_other, bound = trial.measure(threshold, epsilon, confidence)
        rows.append(
            {
                "pair": trial.pair,
                "attack": trial.attack,
                "epsilon": epsilon,
                "threshold": threshold,
                "first_half_bound": promise,
                "first_half_estimate": estimate,
                "hits": hits,
                "hits_other": hits_other,
                "n": len(trial.second),
                "delta_bound": bound,
            }
        )
    return sorted(rows, key=lambda row: (-row["first_half_bound"], -row["first_half_estimate"]))

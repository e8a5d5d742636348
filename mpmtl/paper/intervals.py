"""Means over replicates with their intervals, for figures, tables and verdicts."""

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95  # of the intervals in figures


def half_width(values, level=LEVEL):
    r"""Half of Student's interval of a mean.

    .. math:: t_{(1 + level)/2,\, n-1}\; s / \sqrt n

    Parameters
    ----------
    values : array_like, shape (n, ...)
        One for each replicate (rows), for differences those of the same replicate.
    level : float

    Returns
    -------
    ndarray, shape (...)
        nan for a single value, which says nothing about its spread.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    return stdtrit(n - 1, (1 + level) / 2) * values.std(axis=0, ddof=1) / np.sqrt(n)


def paired_half_width(values, reference, level=LEVEL):
    """`half_width` of the differences of two series on the replicates that they share.

    Parameters
    ----------
    values, reference : Series, by replicate
    """
    return half_width((values - reference).dropna(), level)


def summary(rows, keys):
    """Mean, spread and number of replicates of `value` for each group of `keys`.

    Returns
    -------
    DataFrame
        Columns keys, mean, std, count, half_width (of the 95 % interval of the mean) and, where the
        rows have `stl`, separate tasks on the same replicates: stl, its mean, and half_width is
        that of the difference to it, paired.
    """
    groups = rows.groupby(keys, dropna=False, sort=False)
    result = groups.value.agg(["mean", "std", "count"])
    shown = rows.assign(shown=rows.value - rows.stl if "stl" in rows else rows.value)
    spread = shown.groupby(keys, dropna=False, sort=False).shown
    result["half_width"] = spread.agg(lambda part: float(half_width(part)))
    if "stl" in rows:
        result["stl"] = groups.stl.mean()
    return result.reset_index().fillna({"std": 0.0})


def stl_level(table):
    """Mean of separate tasks over all replicates of a `summary`."""
    return np.average(table.stl, weights=table["count"])

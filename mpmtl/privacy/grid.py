"""A release on an integer grid: contributions are whole numbers, so its sensitivity is exact.

A step of the grid is the noise's scale over `exact.STEPS`, so standard noise is `exact.STEPS` steps
whatever the scale. Bounded contributions are truncated toward zero to whole numbers *before* they
are multiplied and summed; all after that is integer arithmetic, and the conversion back to floating
point is post-processing.
"""

from fractions import Fraction
from math import isqrt

import numpy as np

from mpmtl.errors import require
from mpmtl.privacy.exact import BITS, STEPS

COARSE = 2 ** (BITS // 2)  # steps of a contribution's entry in units of 1/scale^(1/power)
SHORTER = 1 - 2.0**-30  # what rounding could add to a norm is taken off before


def squared_norm_limit(release, norm, budget, shares=1):
    r"""Largest squared norm n^2 of whole numbers that a round's budget allows; exact.

    .. math:: S n^p c_p \le b \sqrt h \, 2^{40}, \quad c_1 = 2^{20}, \; c_2 = 1

    with S the sensitivity for norms of at most 1 (S^2 is a whole number), p the release's power, b
    the budget, mu_t or eps_t, and h the shares of the noise: together they are noise of sqrt(h)
    times `STEPS` steps, which then gives what the budget says.

    Parameters
    ----------
    release : Release
    norm : {"l1", "l2"}
    budget : float
    shares : int
        h: more than one for Gaussian noise only.
    """
    S2 = round(getattr(release, norm) ** 2)
    allowed = Fraction(float(budget)) ** 2 * shares / S2
    if release.power == 2:
        return isqrt(int(allowed * STEPS**2))
    return int(allowed * COARSE**2)


def whole_numbers(V, unit, limit, axes):
    """Contributions in units of `unit`, truncated toward zero; zero if n^2 is above the limit.

    Parameters
    ----------
    V : ndarray, shape (B, m, *contribution) or (m, *contribution)
    unit, limit : ndarray, shape (B,) or ()
    axes : int
        Number of axes of a contribution.

    Returns
    -------
    ndarray of int64, shape of V
    """
    over = tuple(range(-axes, 0))
    fits = np.expand_dims(unit, tuple(range(unit.ndim, V.ndim)))
    scaled = np.trunc(V * (SHORTER / fits))
    small = (scaled**2).sum(axis=over, keepdims=True) < 2.0**62
    N = np.where(small, scaled, 0).astype(np.int64)
    limit = np.expand_dims(limit, tuple(range(limit.ndim, V.ndim)))
    return np.where((N * N).sum(axis=over, keepdims=True) <= limit, N, 0)


def step_of(scale, shares=1):
    """A step of the grid: noise of scale/sqrt(h), one of h shares, is `STEPS` steps."""
    return np.asarray(scale, dtype=float) / np.sqrt(shares) / STEPS


def in_steps(release, norm, V, scale, budgets, m=None, shares=1):
    """Sum of bounded contributions in whole steps of the grid.

    Parameters
    ----------
    release : Release
    norm : {"l1", "l2"}
    V : ndarray, shape (B, m, *contribution) or (m, *contribution)
        Norms at most the bound that `scale` was made for.
    scale, budgets : ndarray, shape (B,) or ()
        Of the whole noise.
    m : int, optional
        Tasks, where V holds some of them only.
    shares : int
        h: see `step_of`.

    Returns
    -------
    ndarray of int64, shape (B, *release.shape) or release.shape

    Raises
    ------
    InputError
        If a budget is not finite or integers of 64 bits do not suffice.
    """
    budgets = np.asarray(budgets, dtype=float)
    require(np.isfinite(budgets).all(), "noise=secure: a round without noise cannot be released")
    limits = [squared_norm_limit(release, norm, budget, shares) for budget in budgets.ravel()]
    m = V.shape[-1 - release.axes] if m is None else m
    largest = max(limits) if release.power == 2 else COARSE * (isqrt(max(limits)) + 1)
    require(
        max(limits) < 2**62 and m * largest < 2**60,
        f"noise=secure: {m} tasks at a budget of {budgets.max():.3g} for a round do not fit "
        "integers of 64 bits: use a smaller epsilon",
    )
    step = step_of(scale, shares)
    unit = np.sqrt(step) if release.power == 2 else COARSE * step
    limits = np.array(limits, dtype=np.int64).reshape(budgets.shape)
    total = release.total(whole_numbers(V, unit, limits, release.axes))
    return total if release.power == 2 else COARSE * total


def released_on_grid(release, total, scale, draw):
    """Noisy sum of contributions, and the sum itself, both exact integers times a step.

    Parameters
    ----------
    release : Release
    total : ndarray of int64
        See `in_steps`.
    scale : ndarray, shape (B,) or ()
    draw : ndarray, shape (..., *release.shape)
        Rounded standard noise, in halves of 1/STEPS.
    """
    step, noise = step_of(scale), np.rint(draw * (2 * STEPS)).astype(np.int64)
    return values(2 * total + noise, step, release), values(2 * total, step, release)


def values(halves, step, release):
    """What whole numbers of half steps are as floating-point numbers."""
    return halves * np.expand_dims(
        step / 2, tuple(range(step.ndim, step.ndim + len(release.shape)))
    )

"""Quantiles over tasks by the exponential mechanism: what a private schema is made of."""

import numpy as np
from scipy.special import softmax

# Public grids that the medians are chosen from, and the part of epsilon that the center gets.
SCALES = 2.0 ** np.arange(-20, 41)
_MAGNITUDES = (2.0 ** np.arange(-10, 41)[:, None] * (1 + np.arange(128) / 128)).ravel()
CENTERS = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])
CENTER_SHARE = 0.64


def quantile_probabilities(values, grid, q, epsilon):
    r"""Probability of each point of a public grid as the q-quantile of values, one for each task.

    .. math:: p_k \propto \exp\Bigl(-\tfrac\epsilon2 \max\bigl(0, \#\{i : v_i < a_k\} - q m,
        \#\{i : v_i > b_k\} - (1 - q) m\bigr)\Bigr)

    where a_k and b_k are half-way to the neighbours of point k. A replaced task changes every count
    by at most 1: epsilon-DP. What is not a number is above every point.

    Parameters
    ----------
    values : ndarray, shape (m,)
    grid : ndarray, shape (k,)
        Public.
    q, epsilon : float

    Returns
    -------
    ndarray, shape (k,)

    References
    ----------
    McSherry and Talwar (FOCS 2007); Smith (STOC 2011).
    """
    values = np.asarray(values, dtype=float)
    m, values = len(values), np.sort(values[~np.isnan(values)])
    half_way = (grid[1:] + grid[:-1]) / 2
    below = np.searchsorted(values, np.append(-np.inf, half_way), side="left")
    above = m - np.searchsorted(values, np.append(half_way, np.inf), side="right")
    return softmax(-epsilon / 2 * np.maximum(np.maximum(below - q * m, above - (1 - q) * m), 0))


def noisy_scale(columns, epsilon, rng):
    r"""Where most values of a column lie, from its values in every task.

    Two medians over tasks share epsilon: of the tasks' means, the center c, which is known to one
    part in 128; and of their root mean square distances from c, the scale, to a factor sqrt(2).

    Parameters
    ----------
    columns : sequence of ndarray, shape (n_i,)
        The column's values in each task; nan where there is none.
    epsilon : float
        epsilon-DP for a task, replace one.
    rng : numpy.random.Generator

    Returns
    -------
    center, scale : float
    """
    known = [values[np.isfinite(values)] for values in columns]

    def median(of_task, grid, share):
        values = [of_task(task) if len(task) else np.nan for task in known]
        return rng.choice(grid, p=quantile_probabilities(values, grid, 0.5, share * epsilon))

    with np.errstate(over="ignore", invalid="ignore"):
        center = median(np.mean, CENTERS, CENTER_SHARE)
        scale = median(
            lambda task: np.sqrt(((task - center) ** 2).mean()), SCALES, 1 - CENTER_SHARE
        )
    return float(center), float(scale)


def enough(m):
    """Epsilon for which `noisy_scale` of m tasks finds both medians almost surely: all points that
    have no task on one side weigh less than e^-5 together."""
    center = 4 / m * (np.log(len(CENTERS)) + 5) / CENTER_SHARE
    scale = 4 / m * (np.log(len(SCALES)) + 5) / (1 - CENTER_SHARE)
    return float(max(center, scale))

r"""Gaussian noise in shares: every owner adds its own, and only the sum is seen.

With h honest owners each of them adds :math:`\lfloor g_j \rfloor`, :math:`g_j \sim N(0, s^2/h)`
in whole steps of a grid, to a contribution of whole numbers. The sum of h such shares is not the
rounded Gaussian, but so close to a randomly rounded one that the difference is added to delta
(`added_delta`); docs/privacy.md has the proof. Any further owner's noise only adds to it.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from mpmtl.errors import require
from mpmtl.privacy.exact import STEPS, rounded_normal
from mpmtl.privacy.grid import values
from mpmtl.privacy.mechanisms import Gaussian

ADDITIVE = ("covariance", "diagonal", "sum", "parts", "sizes")  # kinds that are sums over tasks
NUMBERS = 2.0**60  # more than all rounds of any run release


@dataclass(frozen=True)
class Shares:
    """Who the noise of a sum without a trusted curator is expected of.

    Parameters
    ----------
    honest : int
        h: owners of every round's sum that add their share and keep it to themselves. Each adds
        1/h of the variance, so with more of them there is more noise than a trusted curator adds.
    colluding : int
        Owners of a round's sum that may tell the curator all they know, or add nothing.
    """

    honest: int
    colluding: int = 0

    def __post_init__(self):
        for key, least in (("honest", 1), ("colluding", 0)):
            value = getattr(self, key)
            require(
                isinstance(value, int) and value >= least, f"{key} = {value} must be >= {least}"
            )
        require(
            self.needed >= 2,
            "honest = 1 and colluding = 0: a sum of one owner's vector hides nothing, so at least "
            "two must be expected",
        )

    @property
    def needed(self):
        """Owners without whom a round is refused."""
        return self.honest + self.colluding


def noisy_share(gate, t, V, task, K, honest, draw=rounded_normal):
    """What a task contributes to the sum of round t, with its share of the noise; whole numbers.

    Parameters
    ----------
    gate : Gate
        With Gaussian noise=secure.
    t : int
    V : ndarray
        As `Gate` takes it; only `task` counts.
    task : int
    K : float or ndarray
    honest : int
        h.
    draw : callable
        ``draw(n)`` gives n samples of floor(STEPS Z).

    Returns
    -------
    ndarray of int64, shape (B, *release.shape) or release.shape

    Raises
    ------
    InputError
        If the release is no sum of what the tasks contribute, or its noise no sum of shares.
    """
    release = gate.release
    require(
        release.kind in ADDITIVE and isinstance(gate.mechanism, Gaussian),
        "without a trusted curator a round must be a sum over owners with Gaussian noise: use "
        "privacy=gaussian with method=fl, lr, gs or mr_mtl",
    )
    total, _ = gate.in_steps(t, only(V, [task], release.axes), K, honest)
    return total + draw(total.size).reshape(total.shape)


def only(V, tasks, axes):
    """Contributions with all but those of `tasks` set to zero."""
    keep = np.isin(np.arange(V.shape[-1 - axes]), tasks)
    return np.where(keep.reshape(-1, *(1,) * axes), V, 0.0)


def released(gate, t, total, V, counted, K, honest):
    """The release of round t from the sum of shares.

    Parameters
    ----------
    total : ndarray of int64
        Sum of the `noisy_share` of the tasks `counted`.
    V : ndarray
        What all tasks contribute without any row: that of the tasks which are not `counted`.

    Returns
    -------
    ndarray
    """
    release = gate.release
    others = [task for task in range(V.shape[-1 - release.axes]) if task not in counted]
    lost, step = gate.in_steps(t, only(V, others, release.axes), K, honest)
    whole = total + lost
    halves = whole + whole.swapaxes(-1, -2) if release.symmetric else 2 * whole
    return values(halves, step, release)


def log_distance(sigma, shares):
    r"""Log of a bound on the distance of a sum of rounded shares from rounding at random.

    With p the distribution of :math:`\lfloor g \rfloor`, :math:`g \sim N(0, \sigma^2)`, and
    :math:`G \sim N(0, h\sigma^2)` rounded to n with probability :math:`B_h(G - n)`, B_h the density
    of the sum of h uniform numbers on [0, 1], the total variation distance of the h-fold
    convolution of p from it is at most

    .. math:: \tau = \frac{2 \sqrt{2h}\,\pi\sigma^2 + 2h + 3}{2 \sigma \sqrt{2 \pi h}}
        \sum_{r \ge 1} (r+1)^h e^{-\pi^2 \sigma^2 r^2} + e^{-\pi^2 \sigma^2}

    and 0 for h = 1.

    Parameters
    ----------
    sigma : float
        Standard deviation of one share in steps of the grid.
    shares : int
        h.

    Returns
    -------
    float
        log tau; -inf for 0.
    """
    if shares == 1:
        return -math.inf
    r = np.arange(1.0, 1.0 + max(8, math.ceil(4 * shares / sigma**2)))
    terms = shares * np.log(r + 1) - (math.pi * sigma * r) ** 2
    width = 2 * math.sqrt(2 * shares) * math.pi * sigma**2 + 2 * shares + 3
    factor = math.log(width / (2 * sigma * math.sqrt(2 * math.pi * shares)))
    return float(np.logaddexp(factor + np.logaddexp.reduce(terms), -((math.pi * sigma) ** 2)))


def added_delta(epsilon, honest, sigma=STEPS, numbers=NUMBERS):
    r"""What shares add to delta: :math:`(1 + e^\epsilon) N \tau`, N the numbers released.

    Parameters
    ----------
    epsilon : float
    honest : int
    sigma : float
        Standard deviation of one share in steps of the grid.
    numbers : float
        N.
    """
    log = np.logaddexp(0.0, epsilon) + math.log(numbers) + log_distance(sigma, honest)
    return float(np.exp(min(log, 0.0)))


def of_shares(block, shares):
    """A statement of releases whose noise is the owners' own.

    Parameters
    ----------
    block : PrivacyStatement
        Of the same releases with noise=secure from a trusted curator.
    shares : Shares
    """
    h, proved = shares.honest, block.proved
    require(
        added_delta(proved.epsilon, h) <= min(1e-300, 1e-16 * proved.delta),
        f"epsilon = {proved.epsilon:g} is too large for noise in shares",
    )
    basis = f"{proved.basis}; in shares of {h} honest owners, which add less than 1e-300 to delta"
    return replace(
        block,
        proved=replace(proved, basis=basis),
        caveats=(*block.caveats, "secure-sum"),
        adversary="the curator, who sees every round's sum, with what it is told by owners that "
        f"are not honest (up to {shares.colluding}), and all other tasks together",
    )

"""The gate: the only way from one task to another.

A `Release` says what crosses, a sum over tasks of contributions, and how far one replaced task can
move it if every contribution has a norm of at most 1. A `Gate` is a release with a mechanism and
the budgets of its rounds: it bounds the contributions itself, adds the noise, and gives the cost.
`Budget` opens gates and writes the statement from their costs. A method neither draws nor scales
noise that a proof rests on.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from mpmtl.chunks import Contributions, summed
from mpmtl.errors import require
from mpmtl.privacy.budget import Cost
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.grid import in_steps, released_on_grid, step_of
from mpmtl.privacy.mechanisms import Mechanism, NoNoise, check_kind
from mpmtl.privacy.statements import (
    NO_PROTECTION,
    NOISE_CAVEATS,
    RELATION,
    Guarantee,
    PrivacyStatement,
)


@dataclass(frozen=True)
class Release:
    r"""What crosses in a round, and its exact sensitivities for contributions of norm at most 1.

    Neighbours replace one contribution. With contributions of norm at most K the sensitivities
    are K^power times those given.

    Attributes
    ----------
    kind : str
        A key of `mechanisms.KINDS`.
    shape : tuple of int
    l1, l2 : float
        Largest l1 and Euclidean (Frobenius) distance of the noise-free releases of neighbours.
    trace : float or None
        Largest tr P + tr Q where neighbours differ by P - Q with P, Q positive semi-definite; None
        where the difference has no such form.
    power : int
    symmetric : bool
        A symmetric matrix: its coordinates are a_ii and sqrt(2) a_ij, i < j.
    """

    kind: str
    shape: tuple
    l1: float
    l2: float
    trace: float | None
    power: int
    symmetric: bool = False

    @property
    def contribution(self):
        """Shape of what a task contributes."""
        if self.kind == "parts":
            return (self.shape[0] // 2,)
        return self.shape if self.kind == "sum" else self.shape[-1:]

    @property
    def axes(self):
        """Number of axes of a contribution."""
        return len(self.contribution)

    @property
    def adds(self):
        """Whether it is a sum over tasks."""
        return self.kind not in ("relation", "sample")

    def total(self, V):
        """The noise-free release of contributions V, shape (..., m, *contribution)."""
        if self.kind == "covariance":
            return np.matmul(V.swapaxes(-1, -2), V)
        if self.kind == "diagonal":
            return np.einsum("...md,...md->...d", V, V)
        if self.kind == "parts":
            return np.concatenate([np.maximum(V, 0), np.maximum(-V, 0)], axis=-1).sum(axis=-2)
        if self.kind == "sizes":
            return np.abs(V).sum(axis=-2)
        if self.kind == "relation":
            return np.matmul(V, V.swapaxes(-1, -2))
        return V if self.kind == "sample" else V.sum(axis=-1 - self.axes)


def covariance(d):
    r"""sum_i v_i v_i': ||vv' - ww'||_F^2 = ||v||^4 + ||w||^4 - 2 (v'w)^2 <= 2, tr + tr <= 2."""
    return Release("covariance", (d, d), 2.0 * d, math.sqrt(2), 2.0, 2, symmetric=True)


def diagonal(d):
    """sum_i v_ij^2 for every j: sum_j |v_j^2 - w_j^2| <= 2, Euclidean at most sqrt(2)."""
    return Release("diagonal", (d,), 2.0, math.sqrt(2), 2.0, 2)


def relation(m):
    r"""W'W, m x m: a replaced task changes a row and a column, ||.||_F <= 2 sqrt(2 (m-1)), m >= 2.

    Each of the 2 (m-1) entries beside the diagonal moves by at most 2, the diagonal one by 1.
    """
    others = max(m - 1, 1)
    return Release(
        "relation", (m, m), 4.0 * others + 1, 2 * math.sqrt(2 * others), None, 2, symmetric=True
    )


def vector_sum(*shape):
    """sum_i v_i of vectors or matrices of this shape: ||v - w|| <= 2."""
    return Release("sum", shape, 2 * math.sqrt(math.prod(shape)), 2.0, None, 1)


def signed_parts(d):
    r"""(sum_i max(v_i, 0), sum_i max(-v_i, 0)): ||p - q||^2 <= ||p||^2 + ||q||^2 <= 2.

    Both parts of a vector side by side are a vector p >= 0 of the same norm, so p'q >= 0; in l1 the
    distance is at most 2 sqrt(d). The difference of the halves is sum_i v_i and their sum is
    sum_i |v_i|, each with the noise that `vector_sum` has for the first alone.
    """
    return Release("parts", (2 * d,), 2 * math.sqrt(d), math.sqrt(2), None, 1)


def sizes(d):
    r"""sum_i |v_i|, entry by entry: p, q >= 0, so ||p - q||^2 <= ||p||^2 + ||q||^2 <= 2, or 1 for
    d = 1; in l1 at most sqrt(k) + sqrt(d - k), k = floor(d/2), for disjoint supports of even size.
    """
    half = d // 2
    l1 = math.sqrt(half) + math.sqrt(d - half)
    return Release("sizes", (d,), l1, math.sqrt(min(d, 2)), None, 1)


def unbounded_output(d):
    """A model itself, which nothing bounds: what is said about it is claimed, never proved."""
    return Release("output", (d,), math.inf, math.inf, None, 1)


def sample_models(m, d):
    """Every task's own model, by itself; a replaced *sample* moves one of them by at most 2."""
    return Release("sample", (m, d), 2 * math.sqrt(d), 2.0, None, 1)


@dataclass(frozen=True)
class Gate:
    """Releases of the rounds of a fit, or of B fits side by side that share their standard noise.

    Attributes
    ----------
    release : Release
    mechanism : Mechanism
    draws : list of ndarray
        Standard noise of each round; with B in front if every fit has its own.
    budgets : ndarray, shape (T,) or (B, T)
        inf where there is no noise.
    log : FitLog, optional
        Takes in each round of the first fit.
    """

    release: Release
    mechanism: Mechanism
    draws: list
    budgets: np.ndarray | None = None
    log: object = None

    def with_budgets(self, budgets):
        """The same draws for fits with these budgets, shape (T,) or (B, T)."""
        return replace(self, budgets=np.asarray(budgets, dtype=float))

    def of_columns(self, k):
        """The gate for matrices with the first k columns only, on the same draws."""
        shape = (*self.release.shape[:-1], k)
        draws = [draw[..., :k] for draw in self.draws]
        return replace(self, release=vector_sum(*shape), draws=draws)

    def scale(self, t, K, B=None):
        """Noise scale of round t (from 1) for contributions of norm at most K, shape () or (B,)."""
        sensitivity = getattr(self.release, self.mechanism.norm)
        of_round = self.mechanism.scale(self._budgets(t, B), sensitivity)
        return np.asarray(K, dtype=float) ** self.release.power * of_round

    def _budgets(self, t, B):
        budgets = self.budgets[..., t - 1]
        return budgets[:B] if budgets.ndim else budgets

    def __call__(self, t, V, K):
        """Release round t (from 1) of contributions V, bounded by K here.

        Parameters
        ----------
        t : int
        V : ndarray, shape (m, *contribution) or (B, m, *contribution), or Contributions
        K : float, or ndarray of shape (B,)

        Returns
        -------
        ndarray
            Noise-free release plus noise, shape (B, *release.shape) or release.shape.
        """
        dims, axes = len(self.release.shape), self.release.axes
        if isinstance(V, Contributions):
            m, B = V.m, None
        else:
            V = np.asarray(V, dtype=float)
            m, B = V.shape[-1 - axes], len(V) if V.ndim > 1 + axes else None
        scale, draw = self.scale(t, K, B), self.draws[t - 1]
        of_part = self.release.total
        if self.mechanism.secure:
            how = {"scale": scale, "budgets": self._budgets(t, B), "m": m}
            of_part = partial(_steps_of, self.release, self.mechanism.norm, how)
        of_part = partial(_bounded_total, of_part, axes, K)
        signal = summed(V, axes, of_part) if self.release.adds else of_part(V)
        if self.mechanism.secure:
            released, signal = released_on_grid(self.release, signal, scale, draw)
            noise = released - signal
        else:
            noise = _columns(scale, dims) * draw
            released = signal + noise
        if self.log is not None:
            parts = [part if part.ndim == dims else part[0] for part in (noise, signal, released)]
            self.log.add_round(*parts)
        return released

    def in_steps(self, t, V, K, shares):
        """The sum of contributions in round t, in whole steps of a share of its noise; the step.

        See `privacy.grid.in_steps` and `privacy.shares`; other parameters as for a release.
        """
        V = bounded(V, K, self.release.axes)
        B = None if V.ndim == 1 + self.release.axes else len(V)
        scale, budgets = self.scale(t, K, B), self._budgets(t, B)
        total = in_steps(self.release, self.mechanism.norm, V, scale, budgets, shares=shares)
        return total, step_of(scale, shares)

    def shifted(self, t, released, K):
        """Add the mechanism's multiple of the identity: a public constant, free post-processing."""
        if self.mechanism.shift == 0:
            return released
        unit = self.mechanism.shift * self.mechanism.spectral_norm(self.release)
        dims = len(self.release.shape)
        scale = self.scale(t, K, len(released) if released.ndim > dims else None)
        identity = np.eye(self.release.shape[0]) if dims == 2 else 1.0
        return released + _columns(scale, dims) * (unit * identity)

    @property
    def cost(self):
        """What all rounds of one fit cost together; None where no cost is proved."""
        return self.mechanism.cost(self.budgets)


def _bounded_total(total, axes, K, V):
    """What a chunk of tasks adds to a release, bounded here."""
    # one order in memory, so that the sum has the same bits wherever V was put together
    return total(np.ascontiguousarray(bounded(V, K, axes)))


def _steps_of(release, norm, how, V):
    return in_steps(release, norm, V, **how)


def _columns(scale, dims):
    """A scale for each of B fits, shaped to multiply arrays with `dims` more axes."""
    return np.expand_dims(scale, tuple(range(scale.ndim, scale.ndim + dims)))


@dataclass
class FitLog:
    """What a fit of one candidate leaves besides its models.

    Attributes
    ----------
    rounds : list of (float, float)
        Norm of the noise and of the signal of each round.
    released : list of ndarray
        What the other tasks see of each round.
    arrays : dict of str to ndarray
        Matrices worth saving, such as a learned relation matrix.
    """

    rounds: list = field(default_factory=list)
    released: list = field(default_factory=list)
    arrays: dict = field(default_factory=dict)

    def add_round(self, noise, signal, released=None):
        """Note a round: noise and signal, and what is released unless that is their sum."""
        self.rounds.append((float(np.linalg.norm(noise)), float(np.linalg.norm(signal))))
        self.released.append(np.copy(noise + signal if released is None else released))


@dataclass(frozen=True)
class Budget:
    """Mechanism with the total (epsilon, delta) that a fit may spend: opens gates, states the sum.

    Attributes
    ----------
    mechanism : Mechanism
    epsilon, delta : float
    """

    mechanism: Mechanism
    epsilon: float
    delta: float

    @property
    def free(self):
        """Whether nothing is protected."""
        return isinstance(self.mechanism, NoNoise)

    def of_rounds(self, candidate):
        """Budgets of the rounds of a candidate, shape (T,)."""
        alpha, Q = (getattr(candidate, key, None) for key in ("alpha", "Q"))
        return self.mechanism.budgets(
            self.epsilon, self.delta, candidate.n_rounds, 0.0 if alpha is None else alpha, Q
        )

    def split(self, T):
        """Budgets of T rounds that share it evenly, shape (T,)."""
        return self.mechanism.budgets(self.epsilon, self.delta, T)

    def open(self, release, n_rounds, rng, size=(), log=None):
        """A gate with its standard noise drawn, for rounds whose budgets are said later.

        Parameters
        ----------
        release : Release
        n_rounds : int
            The most that any fit will have.
        rng : numpy.random.Generator
        size : tuple
            Shape of a batch of fits with noise of their own.
        log : FitLog, optional
        """
        check_kind(self.mechanism, release.kind)
        draws = [self.mechanism.draw(rng, release, size) for _ in range(n_rounds)]
        return Gate(release, self.mechanism, draws, log=log)

    def planned(self, release, budgets):
        """A gate without noise, for its cost alone."""
        check_kind(self.mechanism, release.kind)
        return Gate(release, self.mechanism, [], np.asarray(budgets, dtype=float))

    def statement(self, *gates, relation=RELATION, m=None, caveats=NOISE_CAVEATS):
        """What the releases of one fit claim and prove together.

        (epsilon, delta) is proved only if the exact composition of all costs says so.

        Parameters
        ----------
        *gates : Gate
            All of them, with the budgets of the fit.
        relation : str
            What neighbours replace, where it is less than model and data.
        m : int, optional
            Tasks; a delta near 1/m or above is the caveat `large-delta`.
        caveats : tuple of str

        Returns
        -------
        PrivacyStatement
        """
        mechanism, epsilon, delta = self.mechanism, self.epsilon, self.delta
        if self.free:
            return NO_PROTECTION
        require(gates, "no release is stated: a private method gives the gates of its fit")
        if mechanism.secure:
            caveats = tuple(code for code in caveats if code not in NOISE_CAVEATS)
        costs = [gate.cost for gate in gates]
        if None in costs:
            require(
                len(gates) == 1,
                f"mechanism {mechanism.name} has no proved cost to add to other releases",
            )
            claimed, proved = mechanism.guarantees(
                gates[0].release, gates[0].budgets, epsilon, delta
            )
            return PrivacyStatement(
                mechanism.name, claimed, proved, (*mechanism.caveats, *caveats), relation=relation
            ).for_tasks(m)
        cost = sum(costs, Cost())
        spent = cost.delta(epsilon)
        require(
            spent <= delta,
            f"the releases cost ({epsilon:g}, {spent:.3g}), which is more than delta = {delta:.3g}",
        )
        sampled = "; noise sampled exactly on an integer grid" if mechanism.secure else ""
        proved = Guarantee(epsilon, delta, f"{mechanism.basis}{sampled}")
        return PrivacyStatement(
            mechanism.name, None, proved, caveats, relation=relation, cost=cost
        ).for_tasks(m)


NO_BUDGET = Budget(NoNoise(), np.inf, 0.0)

"""A fit whose tasks sit in different places: everything but the gate runs where the data are.

The curator and every owner run the method's own `fit`, each on the tasks that it has; all others
have no rows. Only the gate differs. An owner's gate takes the releases so far from the curator and,
in the first round that has none, stops the fit and hands out what its task contributes. The
curator's gate puts the contributions of the owners in the place of its own empty tasks, bounds
them, adds the noise, and releases the sum. An owner keeps nothing between rounds: it starts anew
with one release more, so a message that comes twice changes nothing.

That the others are empty changes no bit of an owner's model, because nothing of a task reaches
another one but releases (docs/privacy.md, "after the gate there is only post-processing").

Without a trusted curator (`privacy.shares`) an owner's gate bounds the contribution and adds a
share of the noise, and the curator's gate is given the sum alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mpmtl.errors import InputError, require
from mpmtl.experiments.tuning import is_tuned, prepare
from mpmtl.privacy import shares
from mpmtl.privacy.clipping import bounded
from mpmtl.privacy.releases import Budget

OVERSIZE = 1e-9  # relative excess of a norm that is not rounding


@dataclass(frozen=True)
class RelayGate:
    """A gate whose rounds go through ``relay(gate, t, V, K)``; all else is that of `gate`.

    Attributes
    ----------
    gate : Gate
    relay : callable
    excess : float
        By which the noise of all owners' shares is larger than that of the gate.
    """

    gate: object
    relay: Callable
    excess: float = 1.0

    def __getattr__(self, name):
        return getattr(self.gate, name)

    def with_budgets(self, budgets):
        """See `Gate.with_budgets`."""
        return replace(self, gate=self.gate.with_budgets(budgets))

    def of_columns(self, k):
        """See `Gate.of_columns`."""
        return replace(self, gate=self.gate.of_columns(k))

    def scale(self, t, K, B=None):
        """Noise scale of a round, for what a method makes of the release."""
        return self.excess * self.gate.scale(t, K, B)

    def __call__(self, t, V, K):
        return self.relay(self.gate, t, np.asarray(V, dtype=float), K)


@dataclass(frozen=True)
class RelayBudget(Budget):
    """A budget whose gates are relayed.

    Attributes
    ----------
    relay : callable
        See `RelayGate`.
    draws : bool
        Whether the gates hold noise; an owner's need none.
    excess : float
        See `RelayGate`.
    """

    relay: Callable | None = None
    draws: bool = True
    excess: float = 1.0

    def open(self, release, n_rounds, rng, size=(), log=None):
        """See `Budget.open`."""
        gate = super().open(release, n_rounds if self.draws else 0, rng, size, log)
        return RelayGate(gate, self.relay, self.excess)


class Due(Exception):
    """An owner's fit has come to a round without a release; `contribution` is what it shows."""

    def __init__(self, contribution):
        super().__init__("a release is due")
        self.contribution = contribution


class NoDraws:
    """Stands for an owner's generator: numbers that a method draws besides noise are not shared."""

    def __getattr__(self, name):
        raise InputError("the method draws numbers of its own, which owners apart do not share")


def task_axis(V, axes):
    """The axis of the tasks in contributions of shape (..., m, *contribution)."""
    return V.ndim - axes - 1


def fit(run, data, budget, rng):
    """Models of all tasks, shape (m, d), by the one candidate of a run.

    In one process `data` holds all rows and `budget` is the run's own; apart see `curate` and
    `take_part`.

    Parameters
    ----------
    run : mpmtl.experiments.config.Run
    data : MultiTaskData
    budget : Budget
    rng : numpy.random.Generator
    """
    problem = prepare(data, run.tuning, run.method, run.seed, 0)
    (candidate,) = run.method.candidates(problem.scales)
    ((_, W),) = run.method.fit(problem.datafit, problem.start, [candidate], budget, rng)
    return W[0]


def statement(run, data, noise=None):
    """The privacy statement of a fit, from what is public; `noise` is None or the `Shares`."""
    problem = prepare(data, run.tuning, run.method, run.seed, 0)
    (candidate,) = run.method.candidates(problem.scales)
    block = run.method.statement(candidate, run.budget(data.n_tasks), problem.datafit)
    return block if noise is None else shares.of_shares(block, noise)


def check_apart(run):
    """Refuse a run that needs more of the owners than releases."""
    method = run.method
    require(method.private, f"method={method.name} shares nothing: every owner can run it alone")
    require(
        getattr(method, "instance_epsilon", None) is None,
        "method.instance_protection cannot be used apart: leave it out",
    )
    require(
        method.n_candidates() == 1 and not is_tuned(method, run.tuning),
        f"method={method.name} as it is set chooses from all owners' data, which nobody has: use "
        "method=fl, or method.eta=public with one value for each setting",
    )


def take_part(run, data, task, releases, noise=None):
    """What an owner does with the releases so far.

    Parameters
    ----------
    run : Run
    data : MultiTaskData
        The owner's rows; all other tasks are empty.
    task : int
        Index of the owner's task.
    releases : list of ndarray
        Of all rounds so far.
    noise : Shares, optional
        Without a trusted curator.

    Returns
    -------
    contribution : ndarray or None
        Of the round that is due, bounded, and with `noise` whole numbers that hold the owner's
        share, fresh in every call; None if all releases are there.
    model : ndarray, shape (d,), or None
        The owner's model then.
    """
    position = 0

    def relay(gate, t, V, K):
        nonlocal position
        position += 1
        if position <= len(releases):
            return releases[position - 1]
        if noise is not None:
            raise Due(shares.noisy_share(gate, t, V, task, K, noise.honest))
        axes = gate.release.axes
        V = bounded(V, K, axes)
        raise Due(np.take(V, task, axis=task_axis(V, axes)))

    try:
        W = fit(run, data, _relayed(run, data, relay, noise, draws=False), NoDraws())
    except Due as due:
        return due.contribution, None
    require(
        position == len(releases),
        f"there are {len(releases)} releases and the fit has {position} rounds",
    )
    return None, W[task]


def _relayed(run, data, relay, noise, draws):
    m = data.n_tasks
    excess = 1.0 if noise is None else np.sqrt(m / noise.honest)
    return RelayBudget(**vars(run.budget(m)), relay=relay, draws=draws, excess=excess)


def curate(run, data, rng, collect, say=print, noise=None):
    """The curator's part: ask for contributions, release their noisy sum, and so on.

    Parameters
    ----------
    run : Run
    data : MultiTaskData
        All tasks, without any row.
    rng : numpy.random.Generator
    collect : callable
        ``collect(releases)`` returns {task index: contribution} of the owners that answered in
        time. A task that is not there counts as one without rows, whose model is zero. With
        `noise` it is ``collect(releases, shape)``, which returns the sum of the owners' shares, an
        array of int64 of that shape, and a list of the tasks in it.
    say : callable
        Takes a line for each contribution that is not as it should be.
    noise : Shares, optional
        Without a trusted curator.

    Returns
    -------
    releases : list of ndarray
    present : list of list of int
        Tasks that counted in each round.
    """
    require(not data.n_samples.any(), "the curator has rows of its own")
    releases, present = [], []

    def relay(gate, t, V, K):
        given = collect(tuple(releases))
        V, counted = _placed(V, K, gate.release.axes, given, data.task_names, say)
        present.append(counted)
        releases.append(gate(t, V, K))
        return releases[-1]

    def relay_sum(gate, t, V, K):
        release = gate.release
        shape = (*V.shape[: task_axis(V, release.axes)], *release.shape)
        total, counted = collect(tuple(releases), shape)
        present.append(counted)
        releases.append(shares.released(gate, t, total, V, counted, K, noise.honest))
        return releases[-1]

    used = relay if noise is None else relay_sum
    fit(run, data, _relayed(run, data, used, noise, draws=noise is None), rng)
    return releases, present


def rehearse(run, data, noise=None):
    """A whole study without rows: refuses what owners apart cannot do, before anybody is asked.

    Parameters
    ----------
    run : Run
    data : MultiTaskData
        All tasks, without any row.
    noise : Shares, optional
        Without a trusted curator.
    """
    require(
        noise is None or noise.needed <= data.n_tasks,
        f"{noise and noise.needed} owners are needed in every round (honest and colluding), and "
        f"there are {data.n_tasks}",
    )

    def nobody(releases, shape=None):
        return {} if noise is None else (np.zeros(shape, dtype=np.int64), [])

    take_part(run, data, 0, [], noise)
    releases, _ = curate(run, data, np.random.default_rng(0), nobody, noise=noise)
    take_part(run, data, 0, releases, noise)


def _placed(V, K, axes, given, names, say):
    """Contributions of all tasks: those given where they can be used, and of which they are."""
    V, counted = np.array(V, dtype=float), []
    axis = task_axis(V, axes)
    for task in sorted(given):
        place = (*(slice(None),) * axis, task)
        own = np.asarray(given[task])
        if own.shape != V[place].shape or own.dtype != np.float64:
            say(
                f"owner {names[task]}: malformed contribution ({own.dtype}, shape {own.shape}), "
                "counted as a zero model"
            )
            continue
        if not np.isfinite(own).all():
            say(f"owner {names[task]}: contribution that is not finite, set to zero by the gate")
        else:
            most = np.abs(own).max(initial=0.0)
            norm = most * np.sqrt(((own / (most or 1.0)) ** 2).sum())
            if norm > np.max(K) * (1 + OVERSIZE):
                say(
                    f"owner {names[task]}: contribution of norm {norm:.3g}, clipped to "
                    f"{np.max(K):.3g} by the gate"
                )
        V[place] = own
        counted.append(task)
    return V, counted

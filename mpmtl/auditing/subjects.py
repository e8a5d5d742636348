"""What can be audited. A subject gives what others see for two neighbouring inputs.

The other tasks are known to the adversary and fixed, so an input is the model of one task (with
data that make it so).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mpmtl.datafits import LogisticLoss, Loss
from mpmtl.errors import require
from mpmtl.methods import Budget, Candidate, Decomposed, FitLog, Proximal
from mpmtl.methods.base import Method
from mpmtl.methods.feature_learning import FeatureLearning
from mpmtl.penalties import penalty_named
from mpmtl.privacy.releases import Gate, diagonal, sample_models
from mpmtl.solvers.proximal import proximal_rounds

FITTED = ("linear", "norm", "single")  # statistics that the audit fits to what is observed
FAR = 1e6  # norm of a model that only clipping can hide, in units of K


class Subject(ABC):
    """What can be audited: what others see for two neighbouring inputs.

    Attributes
    ----------
    name : str
    guarantees : dict of str to Guarantee
        What must hold, by name: claimed, proved or instance.
    pairs : dict of str to (ndarray, ndarray)
        Neighbouring inputs by name, each a pair of models of the replaced task.
    attacks : tuple of str
        Names of the scores that `scores` returns, and of the fitted statistics to try.
    default_samples : int
        Observations of each input where no number is given.
    """

    default_samples: ClassVar[int] = 100_000

    @property
    @abstractmethod
    def outcome_size(self):
        """Numbers in one observation."""

    @abstractmethod
    def observe(self, w, rng, size):
        """What others see for the model w, `size` independent times; the first axis says which."""

    def scores(self, observed, pair):
        """Scores by attack, large where the first input of the pair is likely.

        ``support`` scores are 1 where the second input is impossible, -1 where the first is.
        """
        return {}

    def features(self, observed):
        """Numbers that fitted statistics look at, shape (size, k)."""
        return observed.reshape(len(observed), -1)


def neighbours(d, K, rng, far=False, random=2):
    """Pairs of models with norms of at most K, among them those that are worst somewhere.

    Zero against full norm (support of one-sided noise), orthogonal (largest distance of ww'),
    equal norm at 60 degrees, opposite (largest distance of w, with equal entries also in l1), one
    coordinate against all, and random ones; with `far` zero against a model that is longer than K
    by the factor `FAR`.
    """
    e = K * np.eye(d)
    pairs = {"zero / full": (0 * e[0], e[0]), "opposite": (e[0], -e[0])}
    if d > 1:
        even = np.full(d, K / np.sqrt(d))
        pairs |= {
            "orthogonal": (e[0], e[1]),
            "equal norm": (e[0], 0.5 * e[0] + np.sqrt(0.75) * e[1]),
            "one / all": (e[0], even),
            "all opposite": (even, -even),
        }
    for k in range(random):
        w = rng.standard_normal((2, d))
        w *= K / np.sqrt((w**2).sum(axis=1, keepdims=True))
        pairs[f"random {k + 1}"] = (w[0], w[1] * rng.uniform())
    if far:
        pairs["zero / far"] = (0 * e[0], FAR * e[0])
    return pairs


def log_ratio(first, second):
    """Log likelihood ratio to six decimals; 0 where neither input is possible (rounding).

    The last bits are dropped on purpose: where a ratio is constant in exact arithmetic they differ
    between the inputs, which is the caveat `float-noise` and not what is audited here.
    """
    nowhere = np.isneginf(first) & np.isneginf(second)
    with np.errstate(invalid="ignore"):
        return np.round(np.where(nowhere, 0.0, first - second), 6)


def evidence(gate, E_first, E_second):
    r"""Support and log likelihood ratio from the noise that each of two inputs would need.

    For the full two-sided Wishart matrix, which has no closed form, the ratio is that of
    diag(U'EU), U the eigenvectors of the difference, whose entries are independent: exact for
    d = 1 and for commuting noise, a projection otherwise.

    Parameters
    ----------
    gate : Gate
    E_first, E_second : ndarray, shape (size, T, *gate.release.shape)
        Standard noise of each round; rounds are independent.

    Returns
    -------
    support, ratio : ndarray, shape (size,)
    """
    mechanism, release = gate.mechanism, gate.release
    if not mechanism.has_density(release):
        U = np.linalg.eigh(E_second - E_first)[1]
        E_first, E_second = (
            np.einsum("...ji,...jk,...ki->...i", U, E, U, optimize=True)
            for E in (E_first, E_second)
        )
        release = diagonal(release.shape[0])
    first, second = (mechanism.log_density(E, release).sum(axis=1) for E in (E_first, E_second))
    support = np.isneginf(second).astype(float) - np.isneginf(first)
    return support, log_ratio(first, second)


def guarantees_of(statement):
    """The guarantees of a statement that say anything."""
    both = {"claimed": statement.claimed, "proved": statement.proved}
    return {name: g for name, g in both.items() if g is not None and g.delta < 1}


@dataclass(frozen=True)
class Releases(Subject):
    r"""What a gate releases in T rounds, all of which see the same models.

    Parameters
    ----------
    gate : Gate
    guarantees : dict
    pairs : dict
        Of contributions with norms of at most 1.
    others : ndarray, shape (m - 1, d), optional
        Models of the other tasks; they matter to the relation W'W alone.
    tail : float, optional
        Constant that every model gets as a last entry, as sqrt(beta) in `fl`.
    inverted : bool
        Noise with the inverse of its scale: the printed density of Algorithm 5.
    """

    gate: Gate
    guarantees: dict
    pairs: dict
    others: np.ndarray | None = None
    tail: float = 0.0
    inverted: bool = False
    name: str = "release"
    attacks: tuple = ("support", "likelihood", *FITTED)

    def contributions(self, w):
        """What the gate gets from the replaced task, and from those whose part is not known."""
        release = self.gate.release
        if release.kind == "relation":
            return np.vstack([self.others, w])
        if self.tail:
            w = np.append(w, self.tail)
        if release.kind == "sum":
            w = w[: release.shape[0]]
        if release.kind == "sum" and len(release.shape) > 1:  # in the first column
            w = np.column_stack([w, *np.zeros((release.shape[1] - 1, len(w)))])
        return w[None]

    def signal(self, w):
        """What is released without noise, less what the adversary knows of it."""
        return self.gate.release.total(self.contributions(w))

    @property
    def outcome_size(self):
        return self._scale().size * int(np.prod(self.gate.release.shape))

    @property
    def _K(self):
        return np.sqrt(1 + self.tail**2)

    def _scale(self):
        """Noise scale of each round, with an axis for each of a release."""
        scale = np.array([self.gate.scale(t + 1, self._K) for t in range(len(self.gate.budgets))])
        scale = 1 / scale if self.inverted else scale
        return scale.reshape(-1, *[1] * len(self.gate.release.shape))

    def observe(self, w, rng, size):
        """Releases of the gate itself, on whatever path its noise takes."""
        rounds = range(1, len(self.gate.budgets) + 1)
        E = self.gate.mechanism.draw(rng, self.gate.release, (size, len(rounds)))
        if self.inverted:
            E = E * self._scale() ** 2
        gate = replace(self.gate, draws=list(np.moveaxis(E, 1, 0)))
        V = self.contributions(w)
        return np.stack([gate(t, V, self._K) for t in rounds], axis=1)

    def scores(self, observed, pair):
        residuals = [(observed - self.signal(w)) / self._scale() for w in pair]
        support, ratio = evidence(self.gate, *residuals)
        return {"support": support, "likelihood": ratio}

    def features(self, observed):
        """Distinct entries, for fitted statistics."""
        if not self.gate.release.symmetric:
            return super().features(observed)
        rows, cols = np.triu_indices(self.gate.release.shape[0])
        return observed[..., rows, cols].reshape(len(observed), -1)


@dataclass(frozen=True)
class Inputs:
    """All tasks of a method: the others fixed, the last one replaced by data with a given model.

    Attributes
    ----------
    datafit : Loss
        Of the other tasks.
    start : ndarray, shape (m - 1, d)
        Their STL models.
    """

    datafit: Loss
    start: np.ndarray

    def with_models(self, *models):
        """Losses and starting models of the others and of tasks with X = I, y = w."""
        binary = isinstance(self.datafit, LogisticLoss)
        d = self.start.shape[1]
        targets = [np.where(w >= 0, 1.0, -1.0) if binary else w for w in models]
        datafit = type(self.datafit)(
            (*self.datafit.X, *[np.eye(d)] * len(models)),
            (*self.datafit.y, *targets),
            self.datafit.average,
        )
        return datafit, np.vstack([self.start, *models])


def released_covariance(penalty, known, seen, threshold):
    """M and the released covariance of a round, from models before and after the projection.

    Least squares gives M, and inverting the shrinkage the covariance,
    |Lambda| = (threshold/(1 - s))^2; for s = 0 that is the largest value possible.

    Parameters
    ----------
    penalty : TraceNorm or GroupL1
    known, seen : ndarray, shape (size, m - 1, d)
        The first may have size 1.
    threshold : ndarray, shape (size,)
        eta lambda.
    """
    if penalty.view == "diagonal":
        energy = np.maximum((known**2).sum(axis=1), np.finfo(float).tiny)
        M = s = (known * seen).sum(axis=1) / energy
    else:
        M = np.linalg.pinv(known) @ seen
        M = (M + M.swapaxes(1, 2)) / 2
        s, U = np.linalg.eigh(M)
    root = threshold[:, None] / (1 - np.clip(s, 0.0, 1 - 1e-14))
    if penalty.view == "diagonal":
        return M, root**2
    return M, (U * root[:, None] ** 2) @ U.swapaxes(1, 2)


def replayed_rounds(method, candidate, datafit, start, observed):
    """The rounds of a fit as tasks repeat them who saw its models: a pair for each round.

    Colluding tasks know their own models before and after the projection, hence M, and repeat the
    fit with it. The last tasks of the repeated fit are hypotheses about the replaced task.

    Parameters
    ----------
    method : Proximal
    datafit, start
        Of the m - 1 other tasks and of the hypotheses.
    observed : ndarray, shape (size, T, m - 1, d)
        Models of the others after each round.

    Returns
    -------
    list of (Sigma, signals)
        The released covariance, and that of the models without noise for each hypothesis.
    """
    penalty, others, rounds = penalty_named(method.penalty), observed.shape[2], []

    def project(t, W, W_tilde, threshold):
        source = W_tilde if method.clips(datafit) == "models" else W
        known = source[: 1 if t == 1 else None, :others]  # every repetition starts alike
        M, Sigma = released_covariance(penalty, known, observed[:, t - 1], threshold)
        common = penalty.covariance(W_tilde[:, :others])
        own = W_tilde[:, others:]
        signals = [common + penalty.covariance(own[:, [h]]) for h in range(own.shape[1])]
        rounds.append((Sigma, signals))
        return penalty.apply(source, M)

    settings = method.rounds([candidate] * len(observed), method.lipschitz(datafit))
    for _ in proximal_rounds(datafit, project, start, settings):
        pass
    return rounds


@dataclass(frozen=True)
class ProximalView(Subject):
    """Models that the other tasks have after each round of `lr` or `gs`, through the real fit."""

    method: Proximal
    candidate: Candidate
    budget: Budget
    inputs: Inputs
    guarantees: dict
    pairs: dict
    name: str = "view"

    @property
    def attacks(self):
        """A replay needs models that span all features, and no further noise or part of a model."""
        spanning = np.linalg.matrix_rank(self.inputs.start) == self.inputs.start.shape[1]
        plain = self.method.instance_epsilon is None and not isinstance(self.method, Decomposed)
        replayed = plain and (spanning or self.method.view == "diagonal")
        return (*(("view_support", "view_likelihood") if replayed else ()), *FITTED)

    @property
    def outcome_size(self):
        return 4 * self.candidate.n_rounds * self.inputs.start.size

    def observe(self, w, rng, size):
        datafit, start = self.inputs.with_models(w)
        rounds = self.method.trajectories(datafit, start, self.candidate, self.budget, rng, size)
        return np.stack([W[:, :-1] for W in rounds], axis=1)

    def residuals(self, observed, pair):
        """Standard noise that each of two inputs needs for what the others saw."""
        datafit, start = self.inputs.with_models(*pair)
        rounds = replayed_rounds(self.method, self.candidate, datafit, start, observed)
        gate, K = self.gate, self.candidate.K
        shift = gate.shifted
        return [
            np.stack(
                [
                    (S - shift(t, signals[h], K)) / gate.scale(t, K)
                    for t, (S, signals) in enumerate(rounds, start=1)
                ],
                axis=1,
            )
            for h in range(2)
        ]

    @property
    def gate(self):
        """The gate of the rounds, without noise."""
        (gate,) = self.method.gates(self.candidate, self.budget, self.inputs.datafit)
        return gate

    def scores(self, observed, pair):
        if "view_support" not in self.attacks:
            return {}
        support, ratio = evidence(self.gate, *self.residuals(observed, pair))
        return {"view_support": support, "view_likelihood": ratio}


@dataclass(frozen=True)
class FitView(Subject):
    """What the other tasks see of any method's fit: rounds' releases and their own models.

    For methods that release the models themselves, all models. One fit gives one observation, and
    the attacks are fitted statistics.
    """

    method: Method
    candidate: Candidate
    budget: Budget
    inputs: Inputs
    guarantees: dict
    pairs: dict
    name: str = "view"
    attacks: tuple = FITTED
    outcome_size: ClassVar[int] = 10_000  # small batches, so that progress is seen
    default_samples: ClassVar[int] = 4_000  # each one is a fit of its own

    def observe(self, w, rng, size):
        datafit, start = self.inputs.with_models(w)
        seen = slice(None) if self.method.view == "output" else slice(-1)
        rows = []
        for _ in range(size):
            log = FitLog()
            fits = self.method.fit(datafit, start, [self.candidate], self.budget, rng, log)
            ((_, W),) = fits
            rows.append(np.concatenate([np.ravel(part) for part in (*log.released, W[0][seen])]))
        return np.stack(rows)


def subjects_of(method, candidate, budget, inputs, pairs, density="corrected"):
    """Everything of a method that can be audited, with the guarantees that must hold.

    Parameters
    ----------
    method : Method
    candidate : Candidate
    budget : Budget
    inputs : Inputs
    pairs : callable
        ``pairs(far)`` gives the neighbouring inputs.
    density : {"corrected", "paper"}
        Of Algorithm 5's noise for a sample.
    """
    zero = np.zeros(inputs.start.shape[1])
    datafit, _ = inputs.with_models(zero)
    statement = method.statement(candidate, budget, datafit)
    guarantees = guarantees_of(statement)
    require(
        guarantees or statement.instance,
        f"nothing is claimed or proved for mechanism {budget.mechanism.name} with method "
        f"{method.name}: there is nothing to audit",
    )
    shared = method, candidate, budget, inputs, guarantees
    replayed = isinstance(method, Proximal)
    view = (ProximalView if replayed else FitView)(*shared, pairs(True))
    settings = {}
    if method.view == "relation":
        others = np.zeros_like(inputs.start)
        others[:, 0] = 1.0  # all alike and as long as may be: the worst for W'W
        settings = {"others": others}
    tail = np.sqrt(method.affine) if isinstance(method, FeatureLearning) else 0.0
    subjects = [
        Releases(
            gate,
            guarantees,
            pairs(False),
            name=f"release {k}".removesuffix(" 1"),
            tail=tail if gate.release.kind == "covariance" else 0.0,
            **settings,
        )
        for k, gate in enumerate(method.gates(candidate, budget, datafit), start=1)
    ]
    subjects.append(view)
    if statement.instance is not None:
        inner = method.sample_budget
        gate = inner.planned(sample_models(1, datafit.shape[1]), inner.of_rounds(candidate))
        own = {"instance": statement.instance}
        inverted = density == "paper"
        sample = Releases(gate, own, pairs(False), inverted=inverted, name="sample")
        subjects.append(sample)
    return subjects, statement

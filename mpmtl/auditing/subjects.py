"""What can be audited. A subject gives what others see for two neighbouring inputs.

Every subject has

- ``name``, and ``guarantees``: the `Guarantee` objects it must keep, by name,
- ``pairs``: neighbouring inputs by name, each a pair of models of the replaced task,
- ``observe(w, rng, size)``: what others see for the model w, ``size`` independent times, as an
  array whose first axis is the repetition,
- ``attacks``: names of the scores that its ``scores`` returns,
- ``scores(observed, pair)``: scores by attack, large where the first input of the pair is likely;
  ``support`` scores are 1 where the second input is impossible, -1 where the first is,
- ``outcome_size``: numbers in one observation.

The other tasks are known to the adversary and fixed, so an input is the model of one task (with
data that make it so).
"""

from dataclasses import dataclass, field

import numpy as np

from mpmtl.datafits import LogisticLoss, Loss
from mpmtl.errors import require
from mpmtl.methods import Budget, Candidate, Decomposed, FitLog, Proximal
from mpmtl.methods.base import Method
from mpmtl.methods.feature_learning import FeatureLearning
from mpmtl.methods.proximal import SampleNoise
from mpmtl.penalties import penalty_named
from mpmtl.privacy.mechanisms import sphere_noise
from mpmtl.solvers.proximal import proximal_rounds

FITTED = ("linear", "norm", "single")  # statistics that the audit fits to what is observed
FAR = 1e6  # norm of a model that only clipping can hide, in units of K


def neighbours(d, K, rng, far=False, random=2):
    """Pairs of models with norms of at most K, among them those that are worst somewhere.

    Zero against full norm (support of one-sided noise), orthogonal (largest distance of ww'),
    equal norm at 60 degrees, opposite (largest distance of w), one coordinate against all, and
    random ones; with `far` zero against a model that is longer than K by the factor `FAR`.
    """
    e = K * np.eye(d)
    pairs = {"zero / full": (0 * e[0], e[0]), "opposite": (e[0], -e[0])}
    if d > 1:
        even = np.full(d, K / np.sqrt(d))
        pairs |= {
            "orthogonal": (e[0], e[1]),
            "equal norm": (e[0], 0.5 * e[0] + np.sqrt(0.75) * e[1]),
            "one / all": (e[0], even),
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


def evidence(mechanism, view, E_first, E_second):
    r"""Support and log likelihood ratio from the noise that each of two inputs would need.

    For the full two-sided Wishart matrix, which has no closed form, the ratio is that of
    diag(U'EU), U the eigenvectors of the difference, whose entries are independent: exact for
    d = 1 and for commuting noise, a projection otherwise.

    Parameters
    ----------
    E_first, E_second : ndarray, shape (size, T, d, d) or (size, T, d)
        Standard noise of each round; rounds are independent.

    Returns
    -------
    support, ratio : ndarray, shape (size,)
    """
    d = E_first.shape[-1]
    if view != "diagonal" and mechanism.name == "two_sided_wishart":
        U = np.linalg.eigh(E_second - E_first)[1]
        E_first, E_second = (
            np.einsum("...ji,...jk,...ki->...i", U, E, U, optimize=True)
            for E in (E_first, E_second)
        )
        view = "diagonal"
    first, second = (mechanism.log_density(E, d, view).sum(axis=1) for E in (E_first, E_second))
    support = np.isneginf(second).astype(float) - np.isneginf(first)
    return support, log_ratio(first, second)


def guarantees_of(statement):
    """The guarantees of a statement that say anything."""
    found = {"claimed": statement.claimed, "proved": statement.proved}
    return {name: g for name, g in found.items() if g is not None and g.delta < 1}


@dataclass(frozen=True)
class Releases:
    r"""The released covariance (or W'W) of T rounds, all of which see the same models.

    Parameters
    ----------
    mechanism : Mechanism
    view : {"full", "diagonal", "relation"}
    scale : ndarray, shape (T,)
        Noise scale of each round.
    guarantees : dict
    pairs : dict
    others : ndarray, shape (m - 1, d), optional
        Models of the other tasks; they matter to the relation W'W alone.
    tail : float, optional
        Constant that every model gets as a last entry, as sqrt(beta) in `fl`.
    """

    mechanism: object
    view: str
    scale: np.ndarray
    guarantees: dict
    pairs: dict
    others: np.ndarray | None = None
    tail: float = 0.0
    name: str = "release"
    attacks: tuple = ("support", "likelihood", *FITTED)

    def signal(self, w):
        """What is released without noise, less what the adversary knows of it."""
        if self.view == "relation":
            W = np.vstack([self.others, w])
            return W @ W.T
        if self.tail:
            w = np.append(w, self.tail)
        return w**2 if self.view == "diagonal" else np.outer(w, w)

    @property
    def size(self):
        """Number of rows of the noise."""
        any_w = next(iter(self.pairs.values()))[0]
        return len(self.signal(any_w))

    @property
    def outcome_size(self):
        return len(self.scale) * self.size ** (1 if self.view == "diagonal" else 2)

    def _scale(self):
        return self.scale.reshape(-1, *[1] * (1 if self.view == "diagonal" else 2))

    def observe(self, w, rng, size):
        E = self.mechanism.draw(rng, self.size, self.view, (size, len(self.scale)))
        return self.signal(w) + self._scale() * E

    def scores(self, observed, pair):
        residuals = [(observed - self.signal(w)) / self._scale() for w in pair]
        support, ratio = evidence(self.mechanism, self.view, *residuals)
        return {"support": support, "likelihood": ratio}

    def features(self, observed):
        """Distinct entries, for fitted statistics."""
        if self.view == "diagonal":
            return observed.reshape(len(observed), -1)
        rows, cols = np.triu_indices(self.size)
        return observed[..., rows, cols].reshape(len(observed), -1)


@dataclass(frozen=True)
class SampleReleases:
    """Algorithm 5's noise on a clipped model, round by round, which protects a single sample.

    A sample can change the whole model, so the inputs are two models. What is audited is the noisy
    model before it is clipped again. ``density="paper"`` is the printed density
    exp(-(2K/eps_t)||b||), which no method of the package uses.
    """

    candidate: Candidate
    epsilon: float
    guarantees: dict
    pairs: dict
    density: str = "corrected"
    name: str = "sample"
    attacks: tuple = ("likelihood", *FITTED)

    @property
    def outcome_size(self):
        return self.candidate.n_rounds * len(next(iter(self.pairs.values()))[0])

    def noise(self, draws):
        """The method's own noise; its scale inverted for the printed density."""
        noise = SampleNoise([self.candidate], self.epsilon, draws)
        if self.density == "paper":
            noise.scale = 1 / noise.scale
        return noise

    def observe(self, w, rng, size):
        T = self.candidate.n_rounds
        noise = self.noise([sphere_noise(rng, (size, len(w))) for _ in range(T)])
        return np.stack([noise(t, w[None, None])[0] for t in range(1, T + 1)], axis=1)

    def scores(self, observed, pair):
        scale = self.noise([]).scale[0]
        first, second = (
            -(np.sqrt(((observed - w) ** 2).sum(axis=2)) / scale).sum(axis=1) for w in pair
        )
        return {"likelihood": log_ratio(first, second)}

    def features(self, observed):
        return observed.reshape(len(observed), -1)


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


@dataclass
class Replay:
    """Penalty of a fit that is repeated by tasks who saw its models: M comes from what they saw.

    Colluding tasks know their own models before the projection (`source`) and after it, so least
    squares gives M, and inverting the shrinkage gives the released covariance,
    |Lambda| = (threshold/(1 - s))^2; for s = 0 that is the largest value possible. The last tasks
    of the repeated fit are the adversary's hypotheses about the replaced task.

    Attributes
    ----------
    penalty : TraceNorm or GroupL1
    seen : ndarray, shape (size, T, m - 1, d)
    """

    penalty: object
    seen: np.ndarray
    rounds: list = field(default_factory=list)

    def covariance(self, W_tilde):
        own = W_tilde[:, self.seen.shape[2] :]
        known = self.penalty.covariance(W_tilde[:, : self.seen.shape[2]])
        self._signals = [known + self.penalty.covariance(own[:, [h]]) for h in range(own.shape[1])]
        return W_tilde

    def projection(self, Sigma, threshold, negative):
        self._threshold = threshold
        return None

    def apply(self, source, _):
        known, seen = source[:, : self.seen.shape[2]], self.seen[:, len(self.rounds)]
        if self.penalty.view == "diagonal":
            energy = np.maximum((known**2).sum(axis=1), np.finfo(float).tiny)
            M = s = (known * seen).sum(axis=1) / energy
        else:
            if not self.rounds:  # every repetition starts alike
                known = known[:1]
            M = np.linalg.pinv(known) @ seen
            M = (M + M.swapaxes(1, 2)) / 2
            s, U = np.linalg.eigh(M)
        s = np.clip(s, 0.0, 1 - 1e-14)
        root = self._threshold[:, None] / (1 - s)
        Sigma = (
            root**2
            if self.penalty.view == "diagonal"
            else (U * root[:, None] ** 2) @ U.swapaxes(1, 2)
        )
        self.rounds.append((Sigma, self._signals))
        return self.penalty.apply(source, M)


@dataclass(frozen=True)
class ProximalView:
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
        """Replay needs models that span all directions and no further noise or part of a model."""
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
        replay = Replay(penalty_named(self.method.penalty), observed)
        heads = [self.candidate] * len(observed)
        rounds = proximal_rounds(
            datafit,
            replay,
            start,
            self.method.rounds(heads, self.method.lipschitz(datafit)),
            lambda t, Sigma: Sigma,
            clip=self.method.clip,
        )
        for _ in rounds:
            pass
        mechanism, d = self.budget.mechanism, start.shape[1]
        scale = self.candidate.K**2 * mechanism.scale(self.budget.of_rounds(self.candidate))
        shift = mechanism.shift * mechanism.spectral_norm(d, self.method.view)
        shift = shift * (1.0 if self.method.view == "diagonal" else np.eye(d))
        return [
            np.stack(
                [
                    (Sigma - signals[h]) / scale[t] - shift
                    for t, (Sigma, signals) in enumerate(replay.rounds)
                ],
                axis=1,
            )
            for h in range(2)
        ]

    def scores(self, observed, pair):
        if "view_support" not in self.attacks:
            return {}
        residuals = self.residuals(observed, pair)
        support, ratio = evidence(self.budget.mechanism, self.method.view, *residuals)
        return {"view_support": support, "view_likelihood": ratio}

    def features(self, observed):
        return observed.reshape(len(observed), -1)


@dataclass(frozen=True)
class FitView:
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
    outcome_size: int = 10_000  # small batches, so that progress is seen

    def observe(self, w, rng, size):
        datafit, start = self.inputs.with_models(w)
        seen = slice(None) if self.method.view == "output" else slice(-1)
        rows = []
        for _ in range(size):
            log = FitLog()
            fits = self.method.fit(datafit, start, [self.candidate], self.budget, rng, log)
            ((_, W),) = fits
            shown = [*log.released, W[0][seen]]
            rows.append(np.concatenate([np.ravel(part) for part in shown]))
        return np.stack(rows)

    def scores(self, observed, pair):
        return {}

    def features(self, observed):
        return observed


def subjects_of(method, candidate, budget, inputs, pairs, density="corrected"):
    """Everything of a method that can be audited, with the guarantees it must keep.

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
        f"nothing is claimed or proved for privacy={budget.mechanism.name} with "
        f"method={method.name}: there is nothing to audit",
    )
    shared = method, candidate, budget, inputs, guarantees
    if isinstance(method, Proximal):
        scale = candidate.K**2 * budget.mechanism.scale(budget.of_rounds(candidate))
        found = [
            Releases(budget.mechanism, method.view, scale, guarantees, pairs(False)),
            ProximalView(*shared, pairs(True)),
        ]
        if statement.instance is not None:
            kept = {"instance": statement.instance}
            sample = SampleReleases(candidate, method.instance_epsilon, kept, pairs(False), density)
            found.append(sample)
        return found, statement
    found = [FitView(*shared, pairs(True))]
    if method.view == "relation":
        others = np.zeros_like(inputs.start)
        others[:, 0] = candidate.K  # all alike and as long as may be: the worst for W'W
        scale = method.noise_scale(candidate, budget, len(others) + 1)
        release = Releases(budget.mechanism, "relation", scale, guarantees, pairs(False), others)
        found.insert(0, release)
    if isinstance(method, FeatureLearning):  # in every round a vector of norm 1 with its tail
        scale = (1 + method.affine) * budget.mechanism.scale(method.budgets(budget, *datafit.shape))
        tail = np.sqrt(method.affine)
        release = Releases(budget.mechanism, "full", scale, guarantees, pairs(False), tail=tail)
        found.insert(0, release)
    return found, statement

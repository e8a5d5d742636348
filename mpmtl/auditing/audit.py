"""The audit: draw, attack, bound, judge."""

import math
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from mpmtl.auditing.bounds import Trial, search
from mpmtl.auditing.subjects import Inputs, neighbours, subjects_of
from mpmtl.data.synthetic import LowRank
from mpmtl.datafits import datafit_for
from mpmtl.errors import InputError, require
from mpmtl.methods import Budget, Proximal, Scales
from mpmtl.privacy.mechanisms import Mechanism, check_kind
from mpmtl.privacy.statements import PrivacyStatement
from mpmtl.solvers.single_task import ridge_path
from mpmtl.streams import stream

#: Attacks by the word that asks for them.
ATTACKS = {
    "support": ("support",),
    "likelihood": ("likelihood",),
    "view": ("view_support", "view_likelihood"),
    "fitted": ("linear", "norm", "single"),
}
CHUNK = 2_000_000  # numbers drawn at a time
LEAST_SAMPLES = 200
MOST_DRAWN = 6  # trials behind the profile over epsilon, for each guarantee
MOST_FEATURES = 200  # of one observation
MOST_FITTED = 5_000  # observations that a fitted statistic learns from


@dataclass(frozen=True)
class AuditSettings:
    """How to audit.

    Parameters
    ----------
    n_rounds : int
        T.
    lam : float
        Penalty of `lr` and `gs`, in units of the step's inverse and of K = 1.
    density : {"corrected", "paper"}
        Noise of Algorithm 5.
    samples : int, optional
        Observations of each input; default 100,000, or 4,000 where each one is a fit of its own.
    confidence : float
        Of each verdict.
    attack : str or list of str
        "all", or some of "support", "likelihood", "view", "fitted".
    seed : int
    """

    n_rounds: int = 1
    lam: float = 0.01
    density: str = "corrected"
    samples: int | None = None
    confidence: float = 0.99
    attack: str | list = "all"
    seed: int = 0

    def __post_init__(self):
        for key, least in (("n_rounds", 1), ("samples", LEAST_SAMPLES)):
            value = getattr(self, key)
            require(
                (isinstance(value, int) and value >= least) or (key, value) == ("samples", None),
                f"{key} = {value} must be a whole number of at least {least}",
            )
        require(
            self.lam >= 0 and np.isfinite(self.lam),
            f"lam = {self.lam} must be finite and at least 0",
        )
        require(
            self.density in ("corrected", "paper"),
            f"density = {self.density}: use corrected or paper",
        )
        require(
            0.5 < self.confidence < 1,
            f"confidence = {self.confidence} must be above 0.5 and below 1",
        )
        for word in self._words:
            require(word in ATTACKS, f"attack = {word}: use all or {', '.join(ATTACKS)}")

    @property
    def _words(self):
        words = [self.attack] if isinstance(self.attack, str) else list(self.attack)
        return list(ATTACKS) if words == ["all"] else words

    @property
    def scores(self):
        """Names of the scores that the words of `attack` ask for."""
        return {name for word in self._words for name in ATTACKS[word]}

    def samples_of(self, subject):
        """Observations of each input of a subject."""
        return subject.default_samples if self.samples is None else self.samples


@dataclass(frozen=True)
class Verdict:
    """A guarantee and what the audit says about it: `refuted` or `not refuted`.

    Attributes
    ----------
    guarantee : str
        claimed, proved or instance.
    epsilon, delta : float
    basis : str
    measured : float
        Lower bound on delta at epsilon, at the audit's confidence.
    pair, attack : str
        That gave the bound.
    """

    guarantee: str
    epsilon: float
    delta: float
    basis: str
    measured: float
    pair: str
    attack: str

    @property
    def refuted(self):
        """Whether the measured bound is above what is guaranteed."""
        return self.measured > self.delta

    def __str__(self):
        return "refuted" if self.refuted else "not refuted"


@dataclass(frozen=True)
class Audit:
    """Results of an audit.

    Attributes
    ----------
    statement : PrivacyStatement or None
    verdicts : dict of str to Verdict
    rows : list of dict
        Every attack on every ordered pair: threshold, hits under both inputs, bound. Only the row
        that a verdict rests on has the stated confidence; the others have it one at a time.
    profile : list of dict
        Lower bound on delta over epsilon, each at the stated confidence by itself.
    samples : int
        Of each input; half of them choose the attack, the other half give the bound.
    confidence : float
    seed : int
    """

    statement: PrivacyStatement | None
    verdicts: dict
    rows: list
    profile: list
    samples: int
    confidence: float
    seed: int

    def as_dict(self):
        """Everything as JSON can hold it."""
        verdicts = {name: {**asdict(v), "verdict": str(v)} for name, v in self.verdicts.items()}
        return {
            "privacy": self.statement.as_dict() if self.statement else None,
            "verdicts": verdicts,
            "rows": self.rows,
            "profile": self.profile,
            "samples": self.samples,
            "confidence": self.confidence,
            "seed": self.seed,
        }


def audit(
    target,
    epsilon=1.0,
    delta=5.4e-4,
    *,
    method=None,
    data=None,
    d=5,
    m=10,
    progress=None,
    **settings,
):
    """Lower bounds on the delta that a mechanism or a private method really has.

    Parameters
    ----------
    target : Mechanism or subjects
        A mechanism with a budget; or a `mpmtl.auditing.subjects.Subject` of your own, or a list of
        them, for which the arguments up to `m`, `n_rounds`, `lam` and `density` do not matter.
    epsilon, delta : float
        Budget over all rounds.
    method : Method, optional
        Default: `lr`, or `gs` for a mechanism that perturbs the diagonal alone.
    data : MultiTaskData, optional
        The other tasks; default m - 1 low-rank tasks with d features.
    d, m : int
        Features and tasks.
    progress : callable, optional
        ``progress(count, total)`` is called when another `count` of `total` samples are drawn.
    **settings
        ``n_rounds=1``, ``lam=0.01``, ``density="corrected"``, ``samples=None``,
        ``confidence=0.99``, ``attack="all"``, ``seed=0``; see `AuditSettings`.

    Returns
    -------
    Audit

    Examples
    --------
    >>> from mpmtl import Wishart, audit
    >>> result = audit(Wishart(), epsilon=0.1, samples=10_000)
    >>> str(result.verdicts["claimed"]), str(result.verdicts["proved"])
    ('refuted', 'not refuted')
    """
    settings, statement = AuditSettings(**settings), None
    if isinstance(target, Mechanism):
        data = _others(d, m, settings.seed) if data is None else data
        budget = Budget(target, epsilon, delta)
        target, statement = subjects_for(budget, method, data, settings)
    subjects = list(target) if isinstance(target, list | tuple) else [target]
    return run_audit(subjects, statement, settings, progress)


def default_method(mechanism):
    """`lr`, or `gs` where the mechanism perturbs the diagonal alone."""
    if "covariance" in mechanism.kinds:
        return Proximal("lr", "trace", private=True)
    if "diagonal" in mechanism.kinds:
        return Proximal("gs", "l21", private=True)
    raise InputError(
        f"mechanism {mechanism.name} does not perturb a covariance: name the method it belongs to, "
        "for example dp_mtrl"
    )


def _others(d, m, seed):
    """Low-rank tasks for an audit that is given no data."""
    for key, value, least in (("d", d, 1), ("m", m, 2)):
        whole = isinstance(value, int) and value >= least
        require(whole, f"{key} = {value} must be a whole number of at least {least}")
    source = LowRank(m=m, n=max(2 * d, 10), d=d, blocks=min(m, 5), test_ratio=1)
    return source.draw("", seed, 0)[0]


def subjects_for(budget, method, data, settings):
    """What can be audited of a budget's mechanism within a method, and its statement; see `audit`.

    Without a method, `default_method`.
    """
    mechanism = budget.mechanism
    method = method or default_method(mechanism)
    require(method.private, f"method {method.name} is not private: there is nothing to audit")
    for kind in method.kinds:
        check_kind(mechanism, kind)
    inputs = inputs_from(data, method)
    d = inputs.start.shape[1]
    candidate = candidate_of(method, inputs, settings.n_rounds, settings.lam)

    def pairs(far):
        return neighbours(d, 1.0, stream(settings.seed, "audit", "pairs"), far)

    return subjects_of(method, candidate, budget, inputs, pairs, settings.density)


def inputs_from(data, method):
    """The other tasks: all but the last one of `data`, with their ridge models."""
    whole = datafit_for(data, method.loss_average)
    datafit = type(whole)(whole.X[:-1], whole.y[:-1], whole.average, **whole.common)
    return Inputs(datafit, ridge_path(datafit, [0.1 * datafit.lipschitz()])[0])


def candidate_of(method, inputs, n_rounds, lam):
    """One setting of the method that looks at no data: its defaults, in absolute units."""
    given = {"n_rounds": n_rounds} | ({"lam": lam} if isinstance(method, Proximal) else {})
    absolute = {key: "absolute" for key in ("lam_unit", "K_unit") if hasattr(method, key)}
    if method.settings:
        grid = {key: value for key, value in given.items() if key in method.settings}
        method = replace(method, grid=grid, **absolute)
    m, d = inputs.start.shape
    candidate = method.candidates(Scales(1.0, np.ones((m + 1, d)), 1.0))[0]
    if isinstance(method, Proximal):  # lam in units of the step
        datafit, _ = inputs.with_models(np.zeros(d))
        candidate = replace(candidate, lam=lam * method.lipschitz(datafit))
    return candidate


def run_audit(subjects, statement, settings, progress=None, profile=True):
    """Audit subjects that share their guarantees.

    Parameters
    ----------
    subjects : list of Subject
    statement : PrivacyStatement or None
    settings : AuditSettings
    progress : callable, optional
        ``progress(count, total)`` is called when another `count` of `total` samples are drawn.
    profile : bool
        Measure delta over epsilon besides.

    Returns
    -------
    Audit
    """
    subjects, trials = attackable(subjects, settings), {}
    counts = [settings.samples_of(subject) for subject in subjects]
    total = sum(2 * n * len(s.pairs) for s, n in zip(subjects, counts, strict=True))
    drawn = partial(progress, total=total) if progress else lambda count: None
    for subject, n in zip(subjects, counts, strict=True):
        for pair in subject.pairs:
            own = _trials(subject, pair, n, settings, drawn)
            for guarantee in subject.guarantees:
                trials.setdefault(guarantee, []).extend(own)
    guarantees = {name: g for s in subjects for name, g in s.guarantees.items()}
    verdicts, rows, ranked = {}, [], {}
    for name, g in guarantees.items():
        ranked[g] = search(trials[name], g.epsilon, settings.confidence)
        best = ranked[g][0]
        verdicts[name] = Verdict(
            name, g.epsilon, g.delta, g.basis, best["delta_bound"], best["pair"], best["attack"]
        )
        rows += [{"guarantee": name, "delta": g.delta, **row} for row in ranked[g]]
    curve = _profile(trials, guarantees, settings.confidence, ranked) if profile else []
    return Audit(statement, verdicts, rows, curve, max(counts), settings.confidence, settings.seed)


def attackable(subjects, settings):
    """The subjects that have one of the attacks that are asked for."""
    chosen = [s for s in subjects if set(s.attacks) & settings.scores]
    require(
        chosen,
        f"attack = {settings.attack} does not apply here: view needs lr or gs, and other tasks "
        "whose models span all features (more tasks than features); support and likelihood need a "
        "covariance",
    )
    return chosen


def sample_counts(subjects, settings):
    """Name, pairs and samples of each input for every subject that is attacked."""
    return [(s.name, len(s.pairs), settings.samples_of(s)) for s in attackable(subjects, settings)]


def _trials(subject, pair, n, settings, drawn):
    """Trials of all attacks on a pair, in both directions."""
    models, wanted = subject.pairs[pair], settings.scores
    chunk = max(1, CHUNK // subject.outcome_size)
    fitted = None
    scores = {}  # attack -> [half][side] -> arrays
    for half in range(2):
        size = n // 2
        for number, begin in enumerate(range(0, size, chunk)):
            count = min(chunk, size - begin)
            observed = []
            for side, w in enumerate(models):
                rng = stream(settings.seed, "audit", subject.name, pair, side, half, number)
                observed.append(subject.observe(w, rng, count))
                drawn(count)
            fresh = 0  # observations that taught a statistic do not choose its threshold
            if fitted is None and wanted & set(ATTACKS["fitted"]):
                fresh = min(MOST_FITTED, (count + 2) // 3)
                fitted = _fit_statistics(*(_features(subject, s[:fresh]) for s in observed))
            for side, seen in enumerate(observed):
                values = subject.scores(seen, models)
                if fitted:
                    values |= fitted(_features(subject, seen[fresh:]))
                for name in values.keys() & wanted & set(subject.attacks):
                    scores.setdefault(name, ([[], []], [[], []]))[half][side].append(values[name])
    reverse = " / ".join(reversed(pair.split(" / "))) if " / " in pair else f"{pair}, reversed"
    trials = []
    for name, halves in sorted(scores.items()):
        (a, b), (c, e) = [[np.sort(np.concatenate(side)) for side in half] for half in halves]
        fixed = 0.5 if name.endswith("support") else None
        opposite = None if fixed is None else -fixed
        trials += [
            Trial(f"{subject.name}: {pair}", name, a, b, c, e, fixed),
            Trial(f"{subject.name}: {reverse}", name, b, a, e, c, opposite, below=True),
        ]
    return trials


def _features(subject, seen):
    """At most `MOST_FEATURES` numbers of each observation, evenly spread over it."""
    features = subject.features(seen)
    width = features.shape[1]
    if width <= MOST_FEATURES:
        return features
    return features[:, np.linspace(0, width - 1, MOST_FEATURES).astype(int)]


def _fit_statistics(first, second):
    """Statistics fitted to samples of both inputs, large where the first one is likely.

    ``linear``: the linear discriminant; ``norm``: distance from the middle, whitened; ``single``:
    the entry, or its distance from one input's median, whose distributions differ most.
    """
    middle = (first.mean(axis=0) + second.mean(axis=0)) / 2
    spread = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
    spread = np.where(spread > 0, spread, 1.0)
    a, b = (first - middle) / spread, (second - middle) / spread
    within = np.atleast_2d(np.cov(a.T, ddof=0) + np.cov(b.T, ddof=0)) / 2
    values, V = np.linalg.eigh(within)
    whiten = V / np.sqrt(np.maximum(values, 0) + 1e-6)
    direction = whiten @ (whiten.T @ (a.mean(axis=0) - b.mean(axis=0)))
    centres = (None, np.median(first, axis=0), np.median(second, axis=0))
    distances = [_distance(_entries(first, c), _entries(second, c)) for c in centres]
    kind, entry = np.unravel_index(np.argmax(distances), np.shape(distances))
    centre = None if kind == 0 else centres[kind][[entry]]

    def raw(x):
        z = (x - middle) / spread
        return {
            "linear": z @ direction,
            "norm": np.sqrt(((z @ whiten) ** 2).sum(axis=1)),
            "single": _entries(x[:, [entry]], centre)[:, 0],
        }

    left, right = raw(first), raw(second)
    signs = {name: 1 if np.median(left[name]) >= np.median(right[name]) else -1 for name in left}
    return lambda x: {name: signs[name] * score for name, score in raw(x).items()}


def _entries(x, centre):
    return x if centre is None else np.abs(x - centre)


def _distance(first, second):
    """Kolmogorov-Smirnov distance of each column."""
    distances = []
    for a, b in zip(np.sort(first, axis=0).T, np.sort(second, axis=0).T, strict=True):
        at = np.concatenate([a, b])
        below = [np.searchsorted(x, at, side="right") / len(x) for x in (a, b)]
        distances.append(np.abs(below[0] - below[1]).max())
    return np.array(distances)


def _profile(trials, guarantees, confidence, ranked):
    """Measured delta over epsilon around the guarantees, for each unit that is protected.

    From the trials that the first half of the samples puts in front at a guarantee (`ranked`).
    """
    rows = []
    for unit in ("task", "sample"):
        stated = [g for name, g in guarantees.items() if (name == "instance") == (unit == "sample")]
        known = [t for name, t in trials.items() if (name == "instance") == (unit == "sample")]
        if not stated:
            continue
        low, high = (math.log10(f(g.epsilon for g in stated)) for f in (min, max))
        first = {(r["pair"], r["attack"]) for g in stated for r in ranked[g][:MOST_DRAWN]}
        drawn = [t for t in known[0] if (t.pair, t.attack) in first]
        for epsilon in (0.0, *np.logspace(low - 1.5, high + 1, 20)):
            best = search(drawn, float(epsilon), confidence)[0]
            picked = {key: best[key] for key in ("epsilon", "delta_bound", "pair", "attack", "n")}
            rows.append({"unit": unit, **picked})
    return rows

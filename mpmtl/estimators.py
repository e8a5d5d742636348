"""Estimators for use from Python: fit(X, y) on lists with one array for each task."""

from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import expit

from mpmtl.data import MultiTaskData
from mpmtl.datafits import datafit_for
from mpmtl.errors import InputError, require
from mpmtl.methods import Budget, FeatureLearning, Proximal, ProximalCandidate
from mpmtl.methods.feature_learning import own_models
from mpmtl.penalties import penalty_named
from mpmtl.privacy.mechanisms import MECHANISMS, Gaussian, Mechanism, source_of_noise
from mpmtl.privacy.statements import warn_caveats
from mpmtl.solvers.proximal import solve, solve_each
from mpmtl.solvers.single_task import about_means, ridge_path

DEFAULT_MECHANISM = Gaussian(shift=1.0)


class NotFittedError(InputError, AttributeError):
    """A learner that is asked for what only `fit` gives."""


def _generator(rng, random_state):
    """`rng`, or else `random_state`: a generator, a seed, or None for fresh randomness."""
    seed = random_state if rng is None else rng
    if isinstance(seed, np.random.RandomState):
        seed = seed.randint(2**31, size=4)
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state = {seed!r}: give None, a whole number of at least 0, or a generator"
        ) from error


def _mechanism(given):
    """A mechanism, or the one of that name; the default one's settings where it is meant."""
    named = {m.name: m for m in MECHANISMS} | {"gaussian": lambda: DEFAULT_MECHANISM}
    if isinstance(given, str) and given in named:
        return named[given]()
    require(
        isinstance(given, Mechanism),
        f"mechanism = {given!r}: give a Mechanism, or a name of {', '.join(sorted(named))}",
    )
    return given


def _source(mechanism, rng, random_state):
    """Mechanism and generator of a fit, see `source_of_noise`: a seed or a generator may be given
    to `fit`, or as `random_state`."""
    given = rng is not None or random_state is not None
    generator = _generator(rng, random_state) if given else None
    return source_of_noise(_mechanism(mechanism), generator)


class _Learner:
    """Linear models of m tasks.

    After `fit`: `coef_`, shape (m, d), and `intercept_`, (m,), in the target's own units;
    `n_features_in_`. Settings are read and written as scikit-learn does it, which can clone it.
    """

    target_range = None

    def get_params(self, deep=True):
        """Settings by name; `deep` changes nothing."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params):
        """Change settings; returns the learner."""
        known = self.get_params()
        for name, value in params.items():
            require(
                name in known,
                f"{type(self).__name__} has no setting {name}: it has {', '.join(known)}",
            )
            setattr(self, name, value)
        return self

    def score(self, X, y):
        """R^2 over the samples of all tasks; the share of right labels for binary tasks."""
        predicted = self.predict(X)
        require(len(y) == len(predicted), f"X has {len(predicted)} tasks and y has {len(y)}")
        y, predicted = (np.concatenate([np.ravel(t) for t in part]) for part in (y, predicted))
        require(len(y) == len(predicted), f"{len(predicted)} rows of features and {len(y)} targets")
        if self.kind == "binary":
            return float(np.mean(y == predicted))
        total = ((y - y.mean()) ** 2).sum()
        require(total > 0, "all targets are equal, so the score is not defined")
        return float(1 - ((y - predicted) ** 2).sum() / total)

    def _datafit(self, X, y, strict=True, row_norm=None, public=False):
        require(self.lam >= 0 and np.isfinite(self.lam), f"lam = {self.lam} must be at least 0")
        data = MultiTaskData.checked(X, y, self.kind, strict=strict)
        if row_norm is not None:
            data = data.with_row_norm(row_norm)
        if self.target_range is not None and self.kind == "regression":
            data = data.with_target_range(*self.target_range)
        if self.fit_intercept:
            data = data.with_intercept()
        self._units = data.units
        return datafit_for(
            replace(data, pooled=self.kind == "regression"), self.loss_average, public
        )

    def _keep(self, W):
        """Models (m, d), with the intercept last if there is one, in the target's own units."""
        offset, scale = self._units
        slopes, levels = (W[:, :-1], W[:, -1]) if self.fit_intercept else (W, np.zeros(len(W)))
        self.coef_, self.intercept_ = scale * slopes, offset + scale * levels
        self.n_features_in_ = slopes.shape[1]
        return self

    def decision_function(self, X):
        """X_i w_i + b_i for each task, a list of arrays of shape (n_i,)."""
        if not hasattr(self, "coef_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")
        m, d = self.coef_.shape
        require(len(X) == m, f"X has {len(X)} tasks and the learner was fitted on {m}")
        scores = []
        for k, rows in enumerate(X):
            try:
                rows = np.asarray(rows, dtype=float)
            except (TypeError, ValueError) as error:
                raise InputError(f"task {k + 1}: not a table of numbers: {error}") from error
            require(
                rows.ndim == 2 and rows.shape[1] == d,
                f"task {k + 1}: X has shape {rows.shape}; the learner was fitted on {d} features",
            )
            scores.append(rows @ self.coef_[k] + self.intercept_[k])
        return scores

    def predict(self, X):
        """Predicted values, or labels in {-1, 1}, as a list with one array for each task."""
        scores = self.decision_function(X)
        if self.kind == "regression":
            return scores
        return [np.where(score >= 0, 1, -1) for score in scores]

    def predict_proba(self, X):
        """Probability of label 1 (binary tasks only)."""
        require(self.kind == "binary", "predict_proba needs kind='binary'")
        return [expit(score) for score in self.decision_function(X)]


@dataclass
class SingleTaskLearner(_Learner):
    r"""Separate tasks (STL): argmin_w L_i(w) + (lam/2)||w||^2, or + lam ||w||_1.

    Parameters
    ----------
    lam : float
    penalty : {"l2", "l1"}
    kind : {"regression", "binary"}
        Squared or logistic loss (labels -1 and 1).
    loss_average : bool, optional
        Average a task's loss over its samples; default no for squared, yes for logistic.
    fit_intercept : bool
        Give every task an intercept. It is not penalised, but for l1 with the logistic loss.
    """

    lam: float = 1.0
    penalty: str = "l2"
    kind: str = "regression"
    loss_average: bool | None = None
    fit_intercept: bool = True

    def fit(self, X, y):
        """Fit every task by itself."""
        require(self.penalty in ("l2", "l1"), f"penalty = {self.penalty!r}: use l2 or l1")
        datafit = self._datafit(X, y)
        if self.penalty == "l2":
            return self._keep(ridge_path(datafit, [self.lam])[0])
        slopes, restored = about_means(datafit)
        W, self.dual_gap_, self.n_rounds_ = solve_each(slopes, penalty_named("l1"), self.lam)
        return self._keep(restored(W[None])[0])


@dataclass
class MultiTaskLearner(_Learner):
    r"""Non-private multi-task learning: argmin_W sum_i L_i(w_i) + lam ||W||, solved to `tol`.

    Parameters
    ----------
    lam : float
    penalty : {"trace", "l21"}
        Trace norm (models span few directions) or l2,1 norm (models share few features).
    kind : {"regression", "binary"}
    tol : float
        Relative duality gap at which the solver stops.
    max_rounds : int
    loss_average : bool, optional
    fit_intercept : bool
        Give every task an intercept, penalised like every weight: bring targets near zero first.

    Attributes
    ----------
    coef_ : ndarray, shape (m, d)
    intercept_ : ndarray, shape (m,)
    dual_gap_ : float
        Relative duality gap reached.
    n_rounds_ : int
    """

    lam: float = 1.0
    penalty: str = "trace"
    kind: str = "regression"
    tol: float = 1e-8
    max_rounds: int = 20_000
    loss_average: bool | None = None
    fit_intercept: bool = True

    def fit(self, X, y):
        """Fit all tasks together, without noise."""
        W, self.dual_gap_, self.n_rounds_ = solve(
            self._datafit(X, y), penalty_named(self.penalty), self.lam, self.tol, self.max_rounds
        )
        return self._keep(W)


@dataclass
class PrivateMultiTaskLearner(_Learner):
    r"""Algorithms 2 (``penalty="trace"``) and 3 (``"l21"``) of the paper with a chosen mechanism.

    Each round clips the models to norm K, releases their covariance with noise, projects the models
    with it and takes a gradient step. The unit is a task; neighbours replace one task. What is
    claimed and what is proved is in `privacy_` after `fit`, which also issues the caveats as
    `PrivacyCaveat` warnings. By default every constant is public: rows are shortened to `row_norm`,
    the loss is averaged and the step is that of this bound. A task whose data cannot be used (not
    finite, beyond 1e30, no rows) gets a zero model.

    Parameters
    ----------
    lam : float
    epsilon : float
    delta : float
    mechanism : Mechanism or str
        Or its name, as on the command line: `Gaussian` (proved, default), `TwoSidedWishart`
        (proved), `Laplace` (proved, l21 only), `Wishart` (the paper's; claimed, and false).
    K : float
        Clipping norm of the models. Choose it without looking at the data.
    n_rounds : int
        T.
    ridge : float
        Penalty of the separate models that start the rounds.
    accelerated : bool
    alpha : float, optional
        Allocation eps_t ~ t^alpha; default is theory's 2/5 (accelerated) or 0.
    clip : {"auto", "models", "covariance"}
        Clip the models, or only inside the covariance; "auto": the latter with an intercept.
    row_norm : float or None
        Rows that are longer are shortened to it; choose it without looking at the data.
    eta : "public", float or None
        Step: of the bound on the rows, or as it is. None is 1/L of all tasks' data, which nothing
        covers (caveat `tuning-not-charged`).
    loss_average : bool
    fit_intercept : bool
        Give every task an intercept, released and learned like every weight.
    target_range : (low, high), optional
        Public range of the targets, mapped to [-1, 1]; targets outside are clipped. Without, bring
        targets near zero by constants that are public.
    """

    lam: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-5
    mechanism: Mechanism | str = DEFAULT_MECHANISM
    penalty: str = "trace"
    kind: str = "regression"
    K: float = 1.0
    n_rounds: int = 10
    ridge: float = 1.0
    accelerated: bool = True
    alpha: float | None = None
    clip: str = "auto"
    row_norm: float | None = 1.0
    eta: float | str | None = "public"
    loss_average: bool = True
    fit_intercept: bool = True
    target_range: tuple | None = None
    random_state: object = None

    def fit(self, X, y, rng=None):
        """Fit with noise=secure, the operating system's randomness (`Mechanism.noise`); or, for
        experiments that can be repeated, with the given generator or seed, else `random_state`."""
        mechanism, rng = _source(self.mechanism, rng, self.random_state)
        method = Proximal("private", self.penalty, private=True, clip=self.clip, eta=self.eta)
        alpha = (0.4 if self.accelerated else 0.0) if self.alpha is None else self.alpha
        candidate = ProximalCandidate(
            self.lam, self.n_rounds, self.accelerated, False, alpha=alpha, K=self.K
        )
        budget = Budget(mechanism, self.epsilon, self.delta)
        datafit = self._datafit(X, y, False, self.row_norm, method.public)
        self.privacy_ = method.statement(candidate, budget, datafit)
        warn_caveats(self.privacy_.caveats)
        start = ridge_path(datafit, [self.ridge])[0]
        ((_, W),) = method.fit(datafit, start, [candidate], budget, rng)
        return self._keep(W[0])


@dataclass
class PrivateFeatureLearner(_Learner):
    r"""Private feature learning (`fl`): a prior for all tasks from one noisy second moment.

    Nothing is to be chosen; see `mpmtl.methods.FeatureLearning` and docs/method.md. The unit is a
    task; neighbours replace one task. What is proved is in `privacy_` after `fit`, which also
    issues the caveats as `PrivacyCaveat` warnings.

    Parameters
    ----------
    epsilon, delta : float
    mechanism : Mechanism or str
        Or its name, as on the command line: `Gaussian` or `TwoSidedWishart` (proved), `NoNoise`.
    tuning : {"local", "votes", "shared"}
        "local" and "votes" are covered by the budget; "shared" is better and is not.
    affine : float
        Weight of the common mean, between 0 and 1.
    rounds : "auto" or int
    kind : {"regression", "binary"}
    loss_average : bool, optional
    fit_intercept : bool
        Give every task an intercept, which has its place in the priors.
    target_range : (low, high), optional
        Public range of the targets, mapped to [-1, 1]; targets outside are clipped. Without, bring
        targets near zero by constants that are public.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    mechanism: Mechanism | str = DEFAULT_MECHANISM
    tuning: str = "local"
    affine: float = 0.15
    rounds: str | int = "auto"
    kind: str = "regression"
    loss_average: bool | None = None
    fit_intercept: bool = True
    target_range: tuple | None = None
    random_state: object = None
    lam = 0.0  # a ridge penalty is among what the evidence weighs

    def fit(self, X, y, rng=None):
        """Fit with noise=secure, the operating system's randomness (`Mechanism.noise`); or, for
        experiments that can be repeated, with the given generator or seed, else `random_state`."""
        mechanism, rng = _source(self.mechanism, rng, self.random_state)
        method = FeatureLearning("private", self.tuning, self.affine, self.rounds)
        budget = Budget(mechanism, self.epsilon, self.delta)
        datafit = self._datafit(X, y, strict=False)
        self.privacy_ = method.statement(None, budget, datafit)
        warn_caveats(self.privacy_.caveats)
        return self._keep(method.models(datafit, own_models(datafit)[1], budget, rng))

"""Estimators for use from Python: fit(X, y) on a table for each task, or one with task=..."""

from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
from scipy.special import expit

from mpmtl.chunks import Serial
from mpmtl.data import MultiTaskData
from mpmtl.data.tasks import units_of
from mpmtl.datafits import datafit_for
from mpmtl.errors import InputError, require
from mpmtl.methods import Budget, FeatureLearning, Proximal, ProximalCandidate
from mpmtl.penalties import penalty_named
from mpmtl.privacy.mechanisms import MECHANISMS, Gaussian, Mechanism, source_of_noise
from mpmtl.privacy.statements import warn_caveats
from mpmtl.solvers.proximal import solve, solve_each
from mpmtl.solvers.single_task import about_means, ridge_path
from mpmtl.stacked import (
    distinct,
    is_table,
    matched,
    names_of,
    rows_by_task,
    signs,
    taken,
    two_classes,
)

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

    X and y are lists with one table and one array of targets for each task; or one table and one
    array for all of them, with `task`: the label of each row, or the name of a column of X, which
    can be a setting as well. One table without `task` is one task. Columns of a DataFrame are
    matched by name. Predictions come as they were asked for, a list or one array.

    After `fit`: `coef_`, shape (m, d), and `intercept_`, (m,), in the target's own units; `tasks_`,
    the labels in that order (1 to m for a list); `n_features_in_`, `feature_names_in_` if there are
    names; `classes_` for binary tasks, of which the second is the positive one.
    """

    target_range = None
    classes = None
    private = False

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

    def __sklearn_tags__(self):
        """What scikit-learn, which alone asks, may expect."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        binary = self.kind == "binary"
        return Tags(
            estimator_type="classifier" if binary else "regressor",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False) if binary else None,
            regressor_tags=None if binary else RegressorTags(),
            input_tags=InputTags(),
            non_deterministic=self.private,
        )

    def score(self, X, y, task=None):
        """R^2 over the samples of all tasks; the share of right labels for binary tasks."""
        predicted = self.predict(X, task)
        if isinstance(predicted, list):
            require(len(y) == len(predicted), f"X has {len(predicted)} tasks and y has {len(y)}")
            y, predicted = (np.concatenate([np.ravel(t) for t in p]) for p in (y, predicted))
        y = np.ravel(y)
        require(len(y) == len(predicted), f"{len(predicted)} rows of features and {len(y)} targets")
        if self.kind == "binary":
            return float(np.mean(y == predicted))
        total = ((y - y.mean()) ** 2).sum()
        require(total > 0, "all targets are equal, so the score is not defined")
        return float(1 - ((y - predicted) ** 2).sum() / total)

    def _tasks(self, X, y, task):
        """X and y as one table and one array for each task; names of tasks and columns are kept."""
        task = self.task if task is None else task
        if task is not None:
            X, labels = rows_by_task(X, task)
            require(len(y) == len(X), f"{len(X)} rows of features and {len(y)} targets")
            self.tasks_, place = distinct(labels, "task labels")
            rows = [np.flatnonzero(place == k) for k in range(len(self.tasks_))]
            X, y = [taken(X, r) for r in rows], [np.asarray(y)[r] for r in rows]
        else:
            X, y = ([X], [y]) if is_table(X) else (X, y)
            self.tasks_ = np.arange(1, len(X) + 1)
        names = names_of(X[0]) if len(X) else None
        vars(self).pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names
        return [matched(rows, names) for rows in X], y

    def _labelled(self, y):
        """Binary targets as -1 and 1. What a private learner takes for a class is public."""
        y = [np.asarray(target) for target in y]
        if self.classes is not None:
            require(len(set(self.classes)) == 2, f"classes = {self.classes!r}: give two labels")
            self.classes_ = np.asarray(self.classes)
        elif not self.private:
            self.classes_ = two_classes(y)
        else:
            require(
                not all(target.dtype.kind in "US" for target in y),
                "the labels are text: name them, classes=(negative, positive)",
            )
            self.classes_ = np.array([-1, 1])
            return y
        return [signs(target, self.classes_) for target in y]

    def _datafit(self, X, y, task, row_norm=None, public=False):
        require(self.lam >= 0 and np.isfinite(self.lam), f"lam = {self.lam} must be at least 0")
        X, y = self._tasks(X, y, task)
        y = self._labelled(y) if self.kind == "binary" else y
        names = [str(label) for label in self.tasks_]
        data = MultiTaskData.checked(X, y, self.kind, names, strict=not self.private)
        data = prepared(data, row_norm, self.target_range, self.fit_intercept)
        self._units = data.units
        return datafit_for(data, self.loss_average, public)

    def _keep(self, W):
        """Models (m, d), with the intercept last if there is one, in the target's own units."""
        offset, scale = self._units
        slopes, levels = (W[:, :-1], W[:, -1]) if self.fit_intercept else (W, np.zeros(len(W)))
        self.coef_, self.intercept_ = scale * slopes, offset + scale * levels
        self.n_features_in_ = slopes.shape[1]
        return self

    def _scores(self, X, k, where):
        """Scores of task k of the learner."""
        d = self.n_features_in_
        try:
            rows = np.asarray(matched(X, getattr(self, "feature_names_in_", None)), dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: not a table of numbers: {error}") from error
        require(
            rows.ndim == 2 and rows.shape[1] == d,
            f"{where}: X has shape {rows.shape}; the learner was fitted on {d} features",
        )
        return rows @ self.coef_[k] + self.intercept_[k]

    def decision_function(self, X, task=None):
        """X_i w_i + b_i for each task, arrays of shape (n_i,); for one table one array."""
        if not hasattr(self, "coef_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")
        m, task = len(self.coef_), self.task if task is None else task
        if task is None and not is_table(X):
            require(len(X) == m, f"X has {len(X)} tasks and the learner was fitted on {m}")
            return [self._scores(rows, k, f"task {k + 1}") for k, rows in enumerate(X)]
        if task is None:
            require(m == 1, f"the learner was fitted on {m} tasks: give task, that of each row")
            return self._scores(X, 0, "task 1")
        X, labels = rows_by_task(X, task)
        known = {label: k for k, label in enumerate(self.tasks_.tolist())}
        place = np.array([known.get(label, -1) for label in labels.tolist()], dtype=int)
        unknown = list(dict.fromkeys(map(repr, labels[place < 0].tolist())))
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        require(not unknown, f"the learner was not fitted on task {', '.join(unknown[:3])}{more}")
        scores = np.empty(len(place))
        for k in np.unique(place):
            rows = np.flatnonzero(place == k)
            scores[rows] = self._scores(taken(X, rows), k, f"task {self.tasks_[k]}")
        return scores

    def predict(self, X, task=None):
        """Predicted values, or labels of `classes_`: a list with an array for each task, or for one
        table one array."""
        scores = self.decision_function(X, task)
        if self.kind == "regression":
            return scores
        return _each(scores, lambda score: self.classes_[(score >= 0).astype(int)])

    def predict_proba(self, X, task=None):
        """Probability of the second of `classes_` (binary tasks only)."""
        require(self.kind == "binary", "predict_proba needs kind='binary'")
        return _each(self.decision_function(X, task), expit)


def prepared(data, row_norm, target_range, fit_intercept):
    """Data clipped and scaled by public constants, with an intercept if it is asked for."""
    if row_norm is not None:
        data = data.with_row_norm(row_norm)
    if target_range is not None and data.kind == "regression":
        data = data.with_target_range(*target_range)
    if fit_intercept:
        data = data.with_intercept()
    return replace(data, pooled=data.kind == "regression")


def _each(scores, function):
    return [function(s) for s in scores] if isinstance(scores, list) else function(scores)


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
    task: str | None = None

    def fit(self, X, y, task=None):
        """Fit every task by itself."""
        require(self.penalty in ("l2", "l1"), f"penalty = {self.penalty!r}: use l2 or l1")
        datafit = self._datafit(X, y, task)
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
    task: str | None = None

    def fit(self, X, y, task=None):
        """Fit all tasks together, without noise."""
        W, self.dual_gap_, self.n_rounds_ = solve(
            self._datafit(X, y, task),
            penalty_named(self.penalty),
            self.lam,
            self.tol,
            self.max_rounds,
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
    task : str, optional
        Column of X that names the task, where `fit` and `predict` are given none.
    classes : (negative, positive), optional
        Public labels of binary tasks. Without, -1 and 1: any number above 0 counts as 1. A task
        with any other label cannot be used.
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
    task: str | None = None
    classes: tuple | None = None
    private = True

    def fit(self, X, y, rng=None, task=None):
        """Fit with noise=secure, the operating system's randomness (`Mechanism.noise`); or, for
        experiments that can be repeated, with the given generator or seed, else `random_state`."""
        mechanism, rng = _source(self.mechanism, rng, self.random_state)
        method = Proximal("private", self.penalty, private=True, clip=self.clip, eta=self.eta)
        alpha = (0.4 if self.accelerated else 0.0) if self.alpha is None else self.alpha
        candidate = ProximalCandidate(
            self.lam, self.n_rounds, self.accelerated, False, alpha=alpha, K=self.K
        )
        budget = Budget(mechanism, self.epsilon, self.delta)
        datafit = self._datafit(X, y, task, self.row_norm, method.public)
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
    tuning : {"local", "hyper", "votes", "shared"}
        All but "shared" are covered by the budget.
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
    task : str, optional
        Column of X that names the task, where `fit` and `predict` are given none.
    classes : (negative, positive), optional
        Public labels of binary tasks. Without, -1 and 1: any number above 0 counts as 1. A task
        with any other label cannot be used.
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
    task: str | None = None
    classes: tuple | None = None
    private = True
    lam = 0.0  # a ridge penalty is among what the evidence weighs

    def fit(self, X, y, rng=None, task=None):
        """Fit with noise=secure, the operating system's randomness (`Mechanism.noise`); or, for
        experiments that can be repeated, with the given generator or seed, else `random_state`."""
        return self._learned(self._datafit(X, y, task), rng)

    def fit_partitions(self, partitions, rng=None, engine=None):
        """`fit` on the Parquet files of a folder, which are read chunk by chunk and never whole.

        Parameters
        ----------
        partitions : mpmtl.data.Partitions
            With the learner's kind.
        rng
            See `fit`.
        engine : optional
            Where chunks are worked on (`mpmtl.chunks`); default one after another, here. For
            processes or a cluster: ``with Local().chunks(n_jobs=2) as engine``, or
            ``Dask(address).chunks(None)``, of `mpmtl.experiments.parallel`. The numbers are the
            same.
        """
        require(
            partitions.kind == self.kind,
            f"the partitions are {partitions.kind} and the learner {self.kind}: give both one kind",
        )
        prepare = partial(
            prepared,
            row_norm=None,
            target_range=self.target_range,
            fit_intercept=self.fit_intercept,
        )
        scan = partitions.scanned()
        self.tasks_ = scan[0]
        self.feature_names_in_ = np.array(partitions.features, dtype=object)
        if self.kind == "binary":
            self.classes_ = np.array([-1, 1])
        ranged = self.target_range is not None and self.kind == "regression"
        self._units = units_of(*self.target_range) if ranged else (0.0, 1.0)
        datafit = partitions.loss(prepare, scan, engine or Serial(), self.loss_average)
        return self._learned(datafit, rng)

    def _learned(self, datafit, rng):
        mechanism, rng = _source(self.mechanism, rng, self.random_state)
        method = FeatureLearning("private", self.tuning, self.affine, self.rounds)
        budget = Budget(mechanism, self.epsilon, self.delta)
        self.privacy_ = method.statement(None, budget, datafit)
        warn_caveats(self.privacy_.caveats)
        return self._keep(method.models(datafit, None, budget, rng))

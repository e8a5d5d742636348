"""Linear models of m tasks from Python: their data as users have them, and their predictions."""

from dataclasses import replace

import numpy as np
from scipy.special import expit

from mpmtl.data import MultiTaskData
from mpmtl.errors import InputError, require, shown
from mpmtl.privacy.clipping import bounded
from mpmtl.stacked import (
    as_given,
    distinct,
    is_table,
    matched,
    names_of,
    numbers_of,
    rows_by_task,
    signs,
    taken,
    targets_of,
    two_classes,
)


class NotFittedError(InputError, AttributeError):
    """A learner that is asked for what only `fit` gives."""


class LinearModels:
    """Linear models of m tasks, from whatever fits them.

    X and y are lists with one table and one array of targets for each task; or one table and one
    array for all of them, with `task`: the label of each row, or the name of a column of X, which
    can be a setting as well. One table without `task` is one task. Columns of a DataFrame are
    matched by name. Predictions come as they were asked for, a list or one array.
    """

    kind = "regression"
    task = None
    intercept = True
    norm = None
    target_range = None
    n_public = None
    classes = None

    def _tasks(self, X, y, task):
        """X and y as one table and one array for each task; names of tasks and columns are kept."""
        require(
            y is not None,
            f"{type(self).__name__} requires y to be passed, but the target y is None",
        )
        X, y = as_given(X), as_given(y)
        task = self.task if task is None else task
        if task is not None:
            X, labels = rows_by_task(X, task)
            y = targets_of(y, "y")
            require(len(y) == len(X), f"{len(X)} rows of features and {len(y)} targets")
            self.tasks_, place = distinct(labels, "task labels")
            rows = [np.flatnonzero(place == k) for k in range(len(self.tasks_))]
            X, y = [taken(X, r) for r in rows], [y[r] for r in rows]
        else:
            X, y = ([X], [y]) if is_table(X) else (X, y)
            require(
                all(hasattr(part, "__len__") and not isinstance(part, str) for part in (X, y)),
                "give X and y as lists with an array for each task, or as one table and one array",
            )
            require(len(X) == len(y), f"X has {len(X)} tasks and y has {len(y)}")
            self.tasks_ = np.arange(1, len(X) + 1)
            y = [targets_of(t, f"task {k}") for k, t in enumerate(y, start=1)]
        names = names_of(X[0]) if len(X) else None
        vars(self).pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names
        return [matched(rows, names) for rows in X], y

    def _data(self, X, y, task, strict):
        """Training data, checked; `strict` also looks at what a task holds."""
        X, y = self._tasks(X, y, task)
        X = [numbers_of(rows, f"task {t}") for rows, t in zip(X, self.tasks_, strict=True)]
        if self.kind == "binary":
            self.classes_ = two_classes(y) if self.classes is None else _two(self.classes)
            y = [signs(target, self.classes_) for target in y]
        names = [str(label) for label in self.tasks_]
        columns = list(getattr(self, "feature_names_in_", ())) or None
        data = MultiTaskData.checked(X, y, self.kind, names, columns, strict=strict)
        return self._prepared(replace(data, n_public=self._sizes()))

    def _prepared(self, data):
        """Data clipped and scaled by public constants, with an intercept if it is asked for."""
        data = replace(data, pooled=self.kind == "regression")
        if self.norm is not None:
            ok = is_finite(self.norm)
            require(ok, f"norm = {shown(self.norm)}: give None or a number above 0")
            data = data.with_row_norm(self.norm)
        if self.target_range is not None and self.kind == "regression":
            data = data.with_target_range(*_pair("target_range", self.target_range))
        require(
            isinstance(self.intercept, bool | np.bool_),
            f"intercept = {shown(self.intercept)}: give True or False",
        )
        return data.with_intercept() if self.intercept else data

    def _sizes(self):
        if self.n_public is None:
            return None
        least, most = _pair("n_public", self.n_public)
        require(
            least == int(least) and most == int(most),
            f"n_public = {shown(self.n_public)}: give (least, most), whole numbers",
        )
        return int(least), int(most)

    def _keep(self, W, data):
        """Models (m, d), with the intercept last if there is one, in the target's own units."""
        offset, scale = data.units
        slopes, levels = (W[:, :-1], W[:, -1]) if data.intercept else (W, np.zeros(len(W)))
        self.coef_, self.intercept_ = scale * slopes, offset + scale * levels
        self.n_features_in_ = slopes.shape[1]
        self._norm = None if self.norm is None else float(self.norm)
        return self

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

    def _scores(self, X, k, where):
        """Scores of task k of the learner."""
        d = self.n_features_in_
        rows = numbers_of(matched(X, getattr(self, "feature_names_in_", None)), where)
        try:
            rows = np.asarray(rows, dtype=float)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{where}: not a table of numbers: {error}") from error
        require(
            rows.ndim == 2,
            f"{where}: X has shape {rows.shape} and must be a table. Reshape your data: "
            "X.reshape(1, -1) for one row",
        )
        require(
            rows.shape[1] == d,
            f"{where}: X has {rows.shape[1]} features, but {type(self).__name__} is expecting {d} "
            "features as input",
        )
        bad = ~np.isfinite(rows).all(axis=1)
        require(
            not bad.any(),
            f"{where}: {bad.sum()} of {len(rows)} rows of X hold NaN or infinity: fill or drop "
            "them, there is no prediction",
        )
        rows = rows if self._norm is None else bounded(rows, self._norm)
        return rows @ self.coef_[k] + self.intercept_[k]

    def _check_fitted(self):
        if not hasattr(self, "coef_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")

    def _decision(self, X, task):
        """X_i w_i + b_i for each task, arrays of shape (n_i,); for one table one array."""
        self._check_fitted()
        X = as_given(X)
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


class Regression(LinearModels):
    """Predictions of numbers."""

    _estimator_type = "regressor"

    def predict(self, X, task=None):
        """Predicted values: a list with an array for each task, or for one table one array."""
        return self._decision(X, task)


class Classification(LinearModels):
    """Predictions of two classes."""

    kind = "binary"
    _estimator_type = "classifier"

    def decision_function(self, X, task=None):
        """Log odds of the second of `classes_`: a list with an array for each task, or an array."""
        return self._decision(X, task)

    def predict(self, X, task=None):
        """Labels of `classes_`: a list with an array for each task, or for one table one array."""
        scores = self._decision(X, task)
        return _each(scores, lambda score: self.classes_[(score >= 0).astype(int)])

    def predict_proba(self, X, task=None):
        """Probability of each of `classes_`, shape (n, 2): a list of them, or one for one table."""
        scores = self._decision(X, task)
        return _each(scores, lambda score: np.stack([expit(-score), expit(score)], axis=1))


def _each(scores, function):
    return [function(s) for s in scores] if isinstance(scores, list) else function(scores)


def is_finite(value):
    """Whether a setting is a real number, and not True or False."""
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool) and abs(value) < 1e300


def _pair(key, value):
    """Two numbers, or a sentence."""
    ok = isinstance(value, list | tuple | np.ndarray) and len(value) == 2
    ok = ok and all(map(is_finite, value))
    require(ok, f"{key} = {shown(value)}: give two numbers, (low, high)")
    return value


def _two(classes):
    """Two labels, or a sentence."""
    ok = isinstance(classes, list | tuple | np.ndarray) and len(classes) == 2
    require(
        ok and len({repr(label) for label in classes}) == 2,
        f"classes = {shown(classes)}: give two labels, (negative, positive)",
    )
    return np.asarray(classes)

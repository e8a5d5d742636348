"""Multi-task data with ragged tasks, its checks, splits and folds."""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mpmtl.datafits import usable
from mpmtl.errors import InputError, require
from mpmtl.privacy.clipping import bounded, directions


@dataclass(frozen=True)
class MultiTaskData:
    """m tasks that share d features.

    Attributes
    ----------
    X : tuple of ndarray, shape (n_i, d)
    y : tuple of ndarray, shape (n_i,)
        Numbers for ``kind="regression"``, -1 and 1 for ``kind="binary"``.
    kind : {"regression", "binary"}
    task_names, feature_names : tuple of str
    bias : str or None
        Name of the feature that is constant by intention.
    recipes : tuple of dict, optional
        For each task, how rows of a table become rows of X (see `data.table`).
    row_norm : float, optional
        Public bound on the norm of every row; set it with `unit_rows` or `with_row_norm`, which
        enforce it.
    n_public : (int, int), optional
        Least and largest number of samples of a task, which are public; taken as given.
    intercept : bool
        The last feature is 1 in every sample, see `with_intercept`.
    pooled : bool
        The error is that of all tasks' samples together, instead of a mean over tasks.
    units : (float, float)
        Offset and scale: a target in its own units is offset + scale * y.
    """

    X: tuple
    y: tuple
    kind: str
    task_names: tuple
    feature_names: tuple
    bias: str | None = None
    recipes: tuple | None = None
    row_norm: float | None = None
    n_public: tuple | None = None
    intercept: bool = False
    pooled: bool = False
    units: tuple = (0.0, 1.0)

    def __post_init__(self):
        require(
            self.row_norm is None or 0 < self.row_norm < np.inf,
            f"row_norm = {self.row_norm} must be finite and above 0",
        )
        if self.n_public is not None:
            least, most = self.n_public
            require(
                1 <= least <= most < np.inf,
                f"n_public = {self.n_public} must be the least and the largest size, at least 1",
            )

    def digest(self):
        """What the samples and targets are, all of them, as 32 hexadecimal digits."""
        shapes = repr((self.kind, [rows.shape for rows in self.X]))
        digest = hashlib.blake2b(shapes.encode(), digest_size=16)
        for array in (*self.X, *self.y):
            digest.update(np.ascontiguousarray(array, dtype=float))
        return digest.hexdigest()

    @classmethod
    def checked(
        cls, X, y, kind="regression", task_names=None, feature_names=None, bias=None, strict=True
    ):
        """Data whose every fault is an `InputError` of one line.

        Refused: no task, lengths or widths or numbers of names that differ; and if `strict` a task
        without samples, values that are NaN, infinite or no numbers, labels other than -1 and 1, a
        binary task with one class only.

        Without `strict` only what is public is looked at, so that what one task holds decides
        nothing for the others. Such values become NaN, which makes the task idle
        (`datafits.usable`); a label above 0 counts as 1, any other number as -1.
        """
        require(kind in ("regression", "binary"), f"kind = {kind!r}: use regression or binary")
        require(len(X) > 0, "there is no task: X is empty")
        require(len(X) == len(y), f"X has {len(X)} tasks and y has {len(y)}")
        names = task_names or [str(i + 1) for i in range(len(X))]
        require(len(names) == len(X), f"{len(names)} task names for {len(X)} tasks")
        X = tuple(_numbers(rows, name, strict) for rows, name in zip(X, names, strict=True))
        y = tuple(
            _numbers(target, name, strict).reshape(-1)
            for target, name in zip(y, names, strict=True)
        )
        if kind == "binary" and not strict:
            y = tuple(np.where(np.isfinite(t), np.where(t > 0, 1.0, -1.0), np.nan) for t in y)
        for name, rows, target in zip(names, X, y, strict=True):
            require(rows.ndim == 2, f"task {name}: X must be a table, its shape is {rows.shape}")
            require(
                not strict or len(target) > 0,
                f"task {name} is empty: drop it or give it samples",
            )
            require(
                len(rows) == len(target),
                f"task {name}: {len(rows)} rows of features and {len(target)} targets",
            )
            require(
                rows.shape[1] == X[0].shape[1] > 0,
                f"task {name} has {rows.shape[1]} features and the first task {X[0].shape[1]}",
            )
        features = feature_names or [f"x{j + 1}" for j in range(X[0].shape[1])]
        require(
            len(features) == X[0].shape[1],
            f"{len(features)} feature names for {X[0].shape[1]} features",
        )
        for name, rows, target in zip(names, X, y, strict=True) if strict else ():
            bad = ~np.isfinite(rows)
            require(
                not bad.any(),
                f"task {name}: feature {features[int(bad.any(axis=0).argmax())]} is NaN or "
                f"infinite in {int(bad.any(axis=1).sum())} of {len(rows)} rows: fill or drop them",
            )
            require(
                np.isfinite(target).all(),
                f"task {name}: {int((~np.isfinite(target)).sum())} targets are NaN or infinite: "
                "drop those rows",
            )
            if kind == "binary":
                require(
                    np.isin(target, (-1, 1)).all(),
                    f"task {name}: binary targets must be -1 or 1, not {np.unique(target)[:5]}",
                )
                require(
                    len(np.unique(target)) == 2,
                    f"task {name} has one class only ({target[0]:+.0f}): drop it, there is nothing "
                    "to learn",
                )
        return cls(X, y, kind, tuple(names), tuple(features), bias)

    @cached_property
    def usable(self):
        """X, y and idle tasks of `datafits.usable`."""
        return usable(self.X, self.y)

    @property
    def n_tasks(self):
        """Number of tasks, m."""
        return len(self.X)

    @property
    def n_features(self):
        """Number of features, d."""
        return self.X[0].shape[1]

    @property
    def n_samples(self):
        """n_i of each task, shape (m,)."""
        return np.array([len(target) for target in self.y])

    def take(self, rows):
        """The samples `rows[i]` of each task i."""
        return replace(
            self,
            X=tuple(X[r] for X, r in zip(self.X, rows, strict=True)),
            y=tuple(y[r] for y, r in zip(self.y, rows, strict=True)),
        )

    def unit_rows(self):
        """Every sample scaled to unit length; zero rows stay, and what is not finite is zero."""
        X = tuple(directions(X) for X in self.X)
        return replace(self, X=X, row_norm=1.0, intercept=False)

    def with_row_norm(self, limit):
        """Samples longer than `limit` scaled to that length; what is not finite is zero."""
        data = replace(self, row_norm=float(limit), intercept=False)
        return replace(data, X=tuple(bounded(X, data.row_norm) for X in self.X))

    def with_target_range(self, low, high):
        """Targets mapped from their public range to [-1, 1]; those outside are clipped."""
        require(
            np.isfinite([low, high]).all() and low < high,
            f"target_range = {[low, high]}: give it as [low, high] with low < high",
        )
        offset, scale = units_of(low, high)
        y = tuple((np.clip(target, low, high) - offset) / scale for target in self.y)
        return replace(self, y=y, units=(offset, scale))

    def with_intercept(self):
        """The same with a last feature that is 1 in every sample: every task has an intercept."""
        norm = self.row_norm
        return replace(
            self,
            X=tuple(np.column_stack([X, np.ones(len(X))]) for X in self.X),
            feature_names=(*self.feature_names, "(intercept)"),
            row_norm=None if norm is None else math.hypot(norm, 1),
            bias="(intercept)",
            intercept=True,
        )


def units_of(low, high):
    """Offset and scale for which the range from low to high is that from -1 to 1."""
    return (low + high) / 2, (high - low) / 2


def _numbers(values, name, strict):
    """Values of a task as floats; without `strict`, NaN where one is no number."""
    try:
        return np.ascontiguousarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        if strict:
            raise InputError(f"task {name}: not a table of numbers: {error}") from error
    values = np.array(values, dtype=object)
    return np.array([_number(value) for value in values.flat], dtype=float).reshape(values.shape)


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _strata(y, kind, stratified):
    """Row indices of each class (one stratum for regression)."""
    if kind == "binary" and stratified:
        return [np.flatnonzero(~(y > 0)), np.flatnonzero(y > 0)]
    return [np.arange(len(y))]


def _own_streams(data, rng, stratified):
    """A generator for each task: how often one is asked must not move the draws of another."""
    if data.kind == "binary" and stratified:  # that depends on the task's labels
        return rng.spawn(data.n_tasks)
    return [rng] * data.n_tasks  # and here on the tasks' sizes alone, which are public


def split(data, train_fraction, rng, stratified=True):
    """Random training and test part of each task.

    Each task (each class of a binary task, if stratified) keeps the nearest whole number of
    samples to its `train_fraction`, and at least one on either side where it has two.

    Returns
    -------
    train, test : MultiTaskData
    """
    train_rows, test_rows = [], []
    for y, own in zip(data.y, _own_streams(data, rng, stratified), strict=True):
        train = []
        for rows in _strata(y, data.kind, stratified):
            n_train = round(train_fraction * len(rows))
            n_train = min(max(n_train, 1), max(len(rows) - 1, 1))
            train.append(own.permutation(rows)[:n_train])
        train = np.sort(np.concatenate(train))
        train_rows.append(train)
        test_rows.append(np.setdiff1d(np.arange(len(y)), train, assume_unique=True))
    return data.take(train_rows), data.take(test_rows)


def assign_folds(data, n_folds, rng, stratified=True):
    """Fold of each sample: a list with an integer array of shape (n_i,) for each task.

    Fold sizes differ by at most one within a task; for binary tasks each class is spread as evenly
    as it can be.

    A task with fewer samples than folds is held out in some of them only.

    Raises
    ------
    InputError
        If no task has two samples.
    """
    require(n_folds >= 2, f"n_folds = {n_folds}: cross-validation needs at least 2")
    require(
        data.n_samples.max() >= 2,
        "no task has two training samples, which cross-validation needs: tuning=fixed, or a larger "
        f"train_fraction (the largest task has n_samples = {data.n_samples.max()})",
    )
    folds = []
    for y, own in zip(data.y, _own_streams(data, rng, stratified), strict=True):
        order = np.concatenate(
            [own.permutation(rows) for rows in _strata(y, data.kind, stratified)]
        )
        labels = np.empty(len(y), dtype=int)
        labels[order] = (np.arange(len(y)) + own.integers(n_folds)) % n_folds
        folds.append(labels)
    return folds

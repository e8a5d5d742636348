"""Test metrics (nMSE, aAUC) and the held-out error used for tuning."""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from mpmtl.datafits import LogisticLoss, SquaredLoss, variance_of
from mpmtl.errors import require


@dataclass(frozen=True)
class Metric:
    """What a test metric is called and in which direction it is better.

    Attributes
    ----------
    name : str
        As it is written in text.
    samples : str
        What it is measured on; with the name the label of an axis.
    higher_is_better : bool
    """

    name: str
    samples: str = "test samples"
    higher_is_better: bool = False

    @property
    def label(self):
        """Name and samples: the label of an axis."""
        return f"{self.name} on {self.samples}"

    def better(self, values, others):
        """Whether each value is better than the other one."""
        return values > others if self.higher_is_better else values < others

    def error(self, values):
        """The metric as an error, lower is better: itself, or 1 less it."""
        return 1 - values if self.higher_is_better else values


METRICS = {
    "nmse": Metric("nMSE"),
    "nmse_pooled": Metric("pooled nMSE", "all tasks' test samples"),
    "nmse_own_mean": Metric("nMSE", "test rows (own mean = 1)"),
    "nmse_median": Metric("median nMSE"),
    "aauc": Metric("average AUC", higher_is_better=True),
    "noisy_error": Metric("noisy error", "test rows, clipped for each task"),
}


def auc(scores, y):
    """Area under the ROC curve by the rank statistic, ties counting one half.

    Parameters
    ----------
    scores : ndarray, shape (..., n)
    y : ndarray, shape (n,)
        Labels in {-1, 1}.

    Returns
    -------
    ndarray, shape (...)
        nan where only one class is present.
    """
    from scipy.stats import rankdata  # here: scipy.stats takes half a second to import

    positive = y > 0
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if n_pos == 0 or n_neg == 0:
        return np.full(np.shape(scores)[:-1], np.nan)
    ranks = rankdata(scores, axis=-1)[..., positive].sum(axis=-1)
    return (ranks - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)


def nmse_per_task(data, W):
    """MSE_i / var(y_i) of models W, shape (m, d); nan for tasks of fewer than 2 samples or whose
    targets are all equal (`datafits.variance_of`)."""
    values = np.full(data.n_tasks, np.nan)
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        if (variance := _variance(data, y)) > 0:
            values[i] = ((X @ W[i] - y) ** 2).mean() / variance
    return values


def _variance(data, y):
    """Variance of targets, where rounding is that of the targets in their own units."""
    return variance_of(y, np.abs(y).max(initial=0.0) + abs(data.units[0]) / data.units[1])


def nmse_own_mean(data, W, means):
    r"""Squared error over all tasks, relative to that of each task's own training mean.

    .. math:: \sum_{ij} (y_{ij} - x_{ij}'w_i)^2 / \sum_{ij} (y_{ij} - \bar y_i)^2

    Parameters
    ----------
    data : MultiTaskData
        Test samples.
    W : ndarray, shape (m, d)
    means : ndarray, shape (m,)
        Mean of each task's training targets.

    Returns
    -------
    pooled, median : float
        The error, and the median over tasks of the same for a task alone; nan where not defined.
    """
    errors, own = _against_own_means(data, W, means)
    known = own > 0
    if not known.any():
        return np.nan, np.nan
    return float(errors.sum() / own.sum()), float(np.median(errors[known] / own[known]))


def _against_own_means(data, W, means):
    """Squared errors of each task by its model and by its own mean, both of shape (m,)."""
    errors, own = np.zeros((2, data.n_tasks))
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        errors[i] = ((X @ W[i] - y) ** 2).sum()
        if _variance(data, np.append(y, means[i])) > 0:
            own[i] = ((y - means[i]) ** 2).sum()
    return errors, own


def nmse_pooled(data, W):
    """Squared error over all tasks divided by the sum of squares about the common mean."""
    y = np.concatenate(data.y)
    error = sum(((X @ w - t) ** 2).sum() for X, w, t in zip(data.X, W, data.y, strict=True))
    return float(error / ((y - y.mean()) ** 2).sum())


def auc_per_task(data, W):
    """AUC of each task; nan for tasks with one class."""
    return np.array([auc(X @ w, y) for X, w, y in zip(data.X, W, data.y, strict=True)])


PER_TASK = {"regression": ("nmse", nmse_per_task), "binary": ("aauc", auc_per_task)}


def evaluate(data, W, means=None):
    """Test metrics of models W, shape (m, d); the test tasks are the first of the m.

    A task whose samples are not usable (`datafits.usable`) counts as one without samples.

    Parameters
    ----------
    data : MultiTaskData
    W : ndarray, shape (m, d)
    means : ndarray, shape (m,), optional
        Mean of each task's training targets; needed if ``data.pooled``.

    Returns
    -------
    dict
        The main metric first: ``nmse_own_mean`` with ``nmse_median`` if ``data.pooled``; ``nmse``
        and ``nmse_pooled``, or ``aauc``: means over tasks; and ``tasks_left_out``, the number of
        tasks on which the main metric is not defined.
    """
    name, per_task = PER_TASK[data.kind]
    W = W[: data.n_tasks]
    data = _of_usable(data)
    values = per_task(data, W)
    defined = np.isfinite(values)
    result = {}
    if data.pooled:
        pooled, median = nmse_own_mean(data, W, means[: data.n_tasks])
        result = {"nmse_own_mean": pooled, "nmse_median": median}
    known = defined.any() or np.isfinite(result.get("nmse_own_mean", np.nan))
    require(known, f"{name} is not defined on any task: every test part is constant")
    if defined.any():
        result[name] = float(values[defined].mean())
        if data.kind == "regression":
            result["nmse_pooled"] = nmse_pooled(data, W)
    out = data.n_samples == 0 if data.pooled else ~defined
    return result | {"tasks_left_out": int(out.sum())}


def error_per_task(data, W, means):
    """Each task's own part of the main metric of `evaluate`, as an error; shape (m,).

    Squared loss: MSE_i / var(y_i), with ``data.pooled`` relative to that of the task's own training
    mean; labels: 1 - AUC. nan where it is not defined.
    """
    W, data = W[: data.n_tasks], _of_usable(data)
    if data.kind == "binary":
        return 1 - auc_per_task(data, W)
    if not data.pooled:
        return nmse_per_task(data, W)
    errors, own = _against_own_means(data, W, means[: data.n_tasks])
    return np.divide(errors, own, out=np.full(len(own), np.nan), where=own > 0)


WORST = 2.0


def clipped_errors(data, W, means):
    """Error of each task between 0 and `WORST`, by its own test samples alone; shape (m,).

    Squared loss: relative to that of the task's own training mean; labels: 1 - AUC. 1 where it is
    not defined.
    """
    X, y, idle = data.usable
    errors = np.ones(data.n_tasks)
    for i in np.flatnonzero(~np.asarray(idle)):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = X[i] @ W[i]
            if data.kind == "binary":
                errors[i] = 1 - auc(scores, y[i])
            elif own := float(((y[i] - means[i]) ** 2).sum()):
                errors[i] = ((scores - y[i]) ** 2).sum() / own
    return np.clip(np.nan_to_num(errors, nan=1.0, posinf=WORST), 0, WORST)


def _of_usable(data):
    """The data without the samples of tasks that are not usable."""
    X, y, idle = data.usable
    X, y = (
        tuple(A[:0] if gone else A for A, gone in zip(part, idle, strict=True)) for part in (X, y)
    )
    return replace(data, X=X, y=y)


def dominating(data, W, means):
    """The task that alone makes most of the main metric of `evaluate`: without it the error is
    less than half.

    Returns
    -------
    dict or None
        "task", its name, "rows", its number of test samples, and "without", the metric without it.
    """
    if data.kind != "regression":
        return None  # no task's AUC can be large
    W, data = W[: data.n_tasks], _of_usable(data)
    if data.pooled:
        parts, weights = _against_own_means(data, W, means[: data.n_tasks])
    else:
        parts = nmse_per_task(data, W)
        weights = np.isfinite(parts).astype(float)
        parts = np.where(weights > 0, parts, 0.0)
    i = int(np.argmax(parts))
    rest, weight = np.delete(parts, i).sum(), np.delete(weights, i).sum()
    if weight == 0 or parts.sum() / weights.sum() <= 2 * rest / weight:
        return None
    return {"task": data.task_names[i], "rows": len(data.y[i]), "without": float(rest / weight)}


@singledispatch
def heldout_error(part, W, variance):
    """Error of a batch of models on held-out samples, shape (B, m); nan where not defined.

    Squared loss: MSE_i / variance_i, from the held-out Gram matrices; with ``part.pooled`` squared
    errors that all tasks' are relative to, so that their mean is the pooled error. Logistic loss:
    1 - AUC, see also `heldout_loss`.

    Parameters
    ----------
    part : SquaredLoss or LogisticLoss
        Loss of the held-out samples.
    W : ndarray, shape (B, m, d)
    variance : ndarray, shape (m,)
        Variance of each task's training targets.
    """
    raise TypeError(f"no held-out error for {type(part).__name__}")


@heldout_error.register
def _(part: SquaredLoss, W, variance):
    n = np.maximum(part.n, 1)
    if part.pooled:
        variance, n = np.full(len(n), variance.mean() or 1.0), n.mean()
    scale = np.where((variance > 0) & ~part.idle, variance, np.nan)
    return part.squared_error(W) / (n * scale)


@heldout_error.register
def _(part: LogisticLoss, W, variance):
    return np.stack(
        [
            1 - auc((X @ W[:, i].T).T, y)
            for i, (X, y) in enumerate(zip(part.X, part.y, strict=True))
        ],
        axis=1,
    )


def heldout_loss(part, W, variance=None):
    """The same by the loss of a sample, for labels of which no held-out part has both classes."""
    defined = (part.n > 0) & ~part.idle
    return np.where(defined, part.value(W) / (part.weight * np.maximum(part.n, 1)), np.nan)

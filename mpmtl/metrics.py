"""Test metrics (nMSE, aAUC) and the held-out error used for tuning."""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
from scipy.stats import rankdata

from mpmtl.datafits import LogisticLoss, SquaredLoss, usable
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
    "nmse_pooled": Metric("nMSE", "all tasks' test samples"),
    "aauc": Metric("average AUC", higher_is_better=True),
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
    positive = y > 0
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if n_pos == 0 or n_neg == 0:
        return np.full(np.shape(scores)[:-1], np.nan)
    ranks = rankdata(scores, axis=-1)[..., positive].sum(axis=-1)
    return (ranks - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)


def nmse_per_task(data, W):
    """MSE_i / var(y_i) of models W, shape (m, d); nan for tasks of fewer than 2 samples or whose
    targets are all equal."""
    values = np.full(data.n_tasks, np.nan)
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        if len(y) >= 2 and y.min() < y.max():
            values[i] = ((X @ W[i] - y) ** 2).mean() / y.var()
    return values


def nmse_pooled(data, W):
    """Squared error over all tasks divided by the sum of squares about the common mean."""
    y = np.concatenate(data.y)
    error = sum(((X @ w - t) ** 2).sum() for X, w, t in zip(data.X, W, data.y, strict=True))
    return float(error / ((y - y.mean()) ** 2).sum())


def auc_per_task(data, W):
    """AUC of each task; nan for tasks with one class."""
    return np.array([auc(X @ w, y) for X, w, y in zip(data.X, W, data.y, strict=True)])


PER_TASK = {"regression": ("nmse", nmse_per_task), "binary": ("aauc", auc_per_task)}


def evaluate(data, W):
    """Test metrics of models W, shape (m, d); the test tasks are the first of the m.

    A task whose samples are not usable (`datafits.usable`) counts as one without samples.

    Returns
    -------
    dict
        ``nmse`` and ``nmse_pooled``, or ``aauc``: means over tasks; and ``tasks_left_out``, the
        number of tasks on which the metric is not defined.
    """
    name, per_task = PER_TASK[data.kind]
    W = W[: data.n_tasks]
    X, y, idle = usable(data.X, data.y)
    X, y = (
        tuple(A[:0] if gone else A for A, gone in zip(part, idle, strict=True)) for part in (X, y)
    )
    data = replace(data, X=X, y=y)
    values = per_task(data, W)
    defined = np.isfinite(values)
    require(defined.any(), f"{name} is not defined on any task: every test part is constant")
    result = {name: float(values[defined].mean()), "tasks_left_out": int((~defined).sum())}
    if data.kind == "regression":
        result["nmse_pooled"] = nmse_pooled(data, W)
    return result


@singledispatch
def heldout_error(part, W, variance):
    """Error of a batch of models on held-out samples, shape (B, m); nan where not defined.

    Squared loss: MSE_i / variance_i, from the held-out Gram matrices. Logistic loss: 1 - AUC.

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
    scale = np.where((variance > 0) & ~part.idle, variance, np.nan)
    return part.squared_error(W) / (np.maximum(part.n, 1) * scale)


@heldout_error.register
def _(part: LogisticLoss, W, variance):
    return np.stack(
        [
            1 - auc((X @ W[:, i].T).T, y)
            for i, (X, y) in enumerate(zip(part.X, part.y, strict=True))
        ],
        axis=1,
    )

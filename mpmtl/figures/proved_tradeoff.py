"""Accuracy over epsilon for methods with equal budgets, one panel for each data set."""

import numpy as np

from mpmtl.figures.style import figure, line_with_band
from mpmtl.privacy.mechanisms import MECHANISMS

NAMES = {"nmse": "nMSE", "aauc": "aAUC"}


def draw_tradeoff(table, path):
    """Mean over replicates with bands of one standard deviation, and methods without noise.

    Parameters
    ----------
    table : DataFrame
        `mpmtl.comparison.compare`.
    path : Path
        Without suffix; PNG, PDF and CSV are written.
    """
    datasets = list(table.dataset.unique())
    noisy = table[np.isfinite(table.epsilon)]
    methods = list(noisy.method.unique())
    stated = {mechanism.name: mechanism.status for mechanism in MECHANISMS}
    status = {row.method: stated[row.privacy] for row in noisy.itertuples()}
    size = {"width": 2.3 * len(datasets) + 0.4, "height": 2.9, "ncols": len(datasets)}
    with figure(path, table, squeeze=False, **size) as axes:
        for ax, dataset in zip(axes[0], datasets, strict=True):
            rows = table[table.dataset == dataset]
            for k, method in enumerate(methods):
                line = rows[(rows.method == method) & np.isfinite(rows.epsilon)]
                line = line.rename(columns={"sd": "std"})
                line_with_band(ax, line.epsilon, line, k, f"{method}, {status[method]}")
            ax.axhline(rows.stl.mean(), color="0.3", ls="--", lw=0.8, label="separate tasks")
            free = rows[np.isinf(rows.epsilon) & (rows.method == rows.best)]
            for _, row in free.iterrows():
                ax.axhline(row["mean"], color="0.3", ls=":", lw=0.8, label="best without noise")
            ax.set_xscale("log")
            ax.set_title(dataset)
            ax.set_xlabel("epsilon (one task)")
            metric = rows.metric.iloc[0]
            ax.set_ylabel(f"{NAMES[metric]}, mean and sd")
            if metric == "nmse":  # failures far above separate tasks would hide the rest
                low, top = rows["mean"].min(), 1.15 * rows.stl.mean()
                ax.set_ylim(low - 0.06 * (top - low), top)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(handles, labels, loc="outside lower center", ncols=5)

"""Accuracy over epsilon for methods with equal budgets, one panel for each data set."""

import numpy as np

from mpmtl.experiments.reader import accuracy, needed, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.comparison import compare
from mpmtl.paper.figures.style import (
    budget_axis,
    figure,
    legend_below,
    legend_words,
    line_with_band,
)


def collect(results, reference="fl"):
    """`mpmtl.paper.comparison.compare` of the runs of experiment=proved_tradeoff.

    If there are none below `results`, of those without a tag.
    """
    finished = runs(results)
    own = "proved_tradeoff" if (finished.experiment == "proved_tradeoff").any() else ""
    chosen = needed(finished[finished.experiment == own], f"no run without a tag below {results}")
    return compare(accuracy(chosen), reference)


def draw(table, path):
    """Mean over replicates with bands of one standard deviation, and methods without noise.

    Parameters
    ----------
    table : DataFrame
        Of `collect`.
    path : Path
        Without suffix; PNG, PDF and CSV are written.
    """
    datasets = list(table.dataset.unique())
    noisy = table[np.isfinite(table.epsilon)].rename(columns={"sd": "std"})
    size = {"width": 2.3 * len(datasets) + 0.4, "height": 3.2, "ncols": len(datasets)}
    with figure(path, table, squeeze=False, **size) as axes:
        for ax, dataset in zip(axes[0], datasets, strict=True):
            rows = table[table.dataset == dataset]
            for k, ((method, privacy), lines) in enumerate(noisy.groupby(["method", "privacy"])):
                line = lines[lines.dataset == dataset]
                status = " or ".join(sorted(lines.status.unique()))
                line_with_band(ax, line.epsilon, line, k, legend_words(method, privacy, status))
            ax.axhline(rows.stl.mean(), color="0.3", ls="--", lw=0.8, label="separate tasks")
            free = rows[np.isinf(rows.epsilon) & (rows.method == rows.best)]
            for _, row in free.iterrows():
                ax.axhline(row["mean"], color="0.3", ls=":", lw=0.8, label="best without noise")
            budget_axis(ax, sorted(noisy.epsilon.unique()))
            ax.set_title(dataset)
            ax.set_xlabel("epsilon (one task)")
            metric = METRICS[rows.metric.iloc[0]]
            ax.set_ylabel(metric.label)
            # failures far beyond separate tasks would hide the rest
            if metric.higher_is_better:
                top = rows["mean"].max()
                gap = max(top - rows.stl.mean(), 0.005)
                ax.set_ylim(top - 3 * gap, top + 0.2 * gap)
            else:
                low, top = rows["mean"].min(), 1.15 * rows.stl.mean()
                ax.set_ylim(low - 0.06 * (top - low), top)
        counts = dict.fromkeys((table.n.min(), table.n.max()))
        words = f"mean of {' to '.join(map(str, counts))} replicates, band +- 1 sd"
        axes[0, 0].figure.suptitle(words, size=8)
        legend_below(axes, ncols=len(datasets) + 1)

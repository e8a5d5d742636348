"""Figs. S1 and S2: accuracy over the share of samples that trains."""

import numpy as np

from mpmtl.experiments.reader import accuracy, needed, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.privacy_accuracy import BASELINES
from mpmtl.paper.figures.style import (
    COLUMN,
    figure,
    legend_below,
    legend_words,
    line_with_bars,
    look,
)
from mpmtl.paper.intervals import summary


def collect(results, dataset):
    """`summary` over replicates of each method, epsilon and share.

    nMSE is that of all tasks together: with 90 % for training, small tasks have two test samples
    left, and their own variance says nothing.
    """
    experiment = f"mpmtl-run experiment=training_percentage_{dataset}"
    chosen = runs(results).query("experiment == 'training_percentage' and dataset == @dataset")
    needed(
        chosen[chosen.epsilon.notna()],
        f"no training_percentage of {dataset} below {results}: {experiment}",
    )
    rows = accuracy(chosen, pooled=True)
    rows["percent"] = 100 * rows["dataset.train_fraction"]
    keys = ["dataset", "metric", "method", "privacy", "status", "epsilon", "percent"]
    return summary(rows, keys)


def draw(table, path):
    """A row of panels, one for each epsilon; the baselines with larger errors below."""
    budgets = sorted(table.epsilon.dropna().unique())
    lines = list(table[["method", "privacy", "status"]].drop_duplicates().itertuples(index=False))
    dataset, metric = table[["dataset", "metric"]].iloc[0]
    layout = {"nrows": 2, "ncols": len(budgets), "sharex": True, "sharey": "row", "squeeze": False}
    with figure(path, table, width=COLUMN * len(budgets), height=5, **layout) as axes:
        for column, eps in enumerate(budgets):
            for key in lines:
                here = (table[["method", "privacy", "status"]] == list(key)).all(axis=1)
                line = table[here & ((table.epsilon == eps) | table.epsilon.isna())].sort_values(
                    "percent"
                )
                below = key.method in BASELINES
                ax = axes[int(below), column]
                style = look(key.method, key.status)
                own = [other for other in lines if (other.method in BASELINES) == below]
                aside = 3 * (own.index(key) - (len(own) - 1) / 2)
                line_with_bars(ax, line.percent, line, style, legend_words(*key), aside)
            axes[0, column].set_title(f"eps = {eps:g}, one task")
            axes[1, column].set_xlabel("samples that train, %")
        for ax in axes[:, 0]:
            ax.set_ylabel(METRICS[metric].label.replace(" on ", "\non "))
        ticks = np.sort(table.percent.unique())
        axes[0, 0].set_xticks(ticks, [f"{t:g}" for t in ticks])
        n = table["count"].max()
        axes[0, 0].figure.suptitle(
            f"{dataset}: mean of {n} replicates, bars: its 95 % interval", size=8
        )
        legend_below(axes[:, 0], ncols=min(2, len(budgets)))

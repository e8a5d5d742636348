"""Figs. S1 and S2: accuracy over the share of samples that trains."""

from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.figures.privacy_accuracy import BASELINES, METRICS
from mpmtl.figures.style import COLUMN, figure, line_with_bars
from mpmtl.figures.tables import accuracy, summary


def collect(results, dataset):
    """Mean and standard deviation over replicates of each method, epsilon and share."""
    places = sorted((Path(results) / "training_percentage").glob(f"*/{dataset}"))
    if not places:
        command = f"mpmtl-run experiment=training_percentage_{dataset}"
        raise ResultsError(f"no training_percentage of {dataset} below {results}: {command}")
    rows = pd.concat([accuracy(p).assign(percent=100 * float(p.parent.name)) for p in places])
    keys = ["dataset", "metric", "method", "privacy", "status", "epsilon", "percent"]
    return summary(rows, keys)


def draw(table, path):
    """A row of panels, one for each epsilon; the baselines with larger errors below."""
    budgets = sorted(table.epsilon.dropna().unique())
    layout = {"nrows": 2, "ncols": len(budgets), "sharex": True, "sharey": "row", "squeeze": False}
    with figure(path, table, width=COLUMN * len(budgets), height=4.6, **layout) as axes:
        for column, eps in enumerate(budgets):
            for row, below in enumerate((False, True)):
                ax = axes[row, column]
                here = table[(table.epsilon == eps) | (table.epsilon.isna() & (not below))]
                here = here[here.method.isin(BASELINES) == below]
                for k, ((method, status), line) in enumerate(here.groupby(["method", "status"])):
                    line = line.sort_values("percent")
                    words = "not private" if status == "none" else f"({status})"
                    line_with_bars(ax, line.percent, line, k, f"{method}, {words}")
                if row == 0:
                    ax.set_title(f"{table.dataset.iloc[0]}, eps = {eps:g}")
                else:
                    ax.set_xlabel("samples that train, %")
                if column == 0:
                    ax.set_ylabel(METRICS[table.metric.iloc[0]])
                    ax.legend()
        ticks = np.sort(table.percent.unique())
        axes[0, 0].set_xticks(ticks, [f"{t:g}" for t in ticks])

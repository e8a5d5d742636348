"""Fig. 4: error of the cross-validation over how the budget is shared by the rounds."""

import numpy as np
import pandas as pd

from mpmtl.experiments.reader import needed, read_rows, runs, summary
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.style import figure, legend_below, legend_words, line_with_band

AXES = {"convex": ("alpha", "alpha, eps_t ~ t^alpha"), "strong": ("Q", "Q, eps_t ~ Q^-t")}

LINES = (
    "epsilon == 0.1 and privacy == 'wishart' and method == 'lr'",
    "method == 'stl'",
    "method == 'mtl_lr'",
)


def collect(results, form):
    """The best error at each alpha (``form="convex"``) or Q ("strong"), with and without momentum.

    For each replicate the other settings are those that cross-validation finds best there.
    """
    key, _ = AXES[form]
    experiment = f"budget_allocation_{form}"
    own = runs(results).query("experiment == @experiment and dataset == 'low_rank'")
    parts = [
        needed(own.query(query), f"no {experiment} of {query.split()[-1]} below {results}")
        for query in LINES
    ]
    cv = read_rows(pd.concat(parts), "cv")
    private = cv.privacy != "none"
    steps = np.where(cv.accelerated == True, "accelerated", "basic")  # noqa: E712, not all have it
    cv["steps"] = pd.Series(steps, cv.index).where(private)
    cv[key] = cv[key].where(private).astype(float)
    keys = ["method", "privacy", "status", "steps", key]
    best = cv.groupby([*keys, "replicate"], dropna=False).score.min()
    return summary(best.rename("value").reset_index(), keys)


def draw(table, path):
    """Lines over alpha or Q, whichever the table has, with separate tasks as a level."""
    key, label = next(AXES[form] for form in AXES if AXES[form][0] in table)
    level = table.set_index("method")["mean"]
    with figure(path, table) as ax:
        for k, (steps, line) in enumerate(table.groupby("steps", sort=False)):
            line, first = line.sort_values(key), line.iloc[0]
            words = legend_words(first.method, first.privacy, first.status)
            line_with_band(ax, line[key], line, k, f"{words}, {steps}")
        stl, mtl = level["stl"], level["mtl_lr"]
        ax.axhline(stl, color="0.35", ls=":", lw=1, label="stl, separate tasks")
        ax.plot([], [], " ", label=f"mtl_lr, not private: {mtl:.3f} (far below)")
        if key == "alpha":
            ax.set_xscale("symlog", linthresh=1)
            ax.set_xticks([-8, -2, -1, 0, 1, 2, 8], ["-8", "-2", "-1", "0", "1", "2", "8"])
            ax.set_xticks([], minor=True)
        ax.set_xlabel(label)
        ax.set_ylabel(f"{METRICS['nmse'].name} on held-out folds")
        ax.set_title(f"eps = 0.1, mean of {table['count'].max()} replicates, band +- 1 sd")
        legend_below(ax)

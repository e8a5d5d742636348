"""Fig. 4: error of the cross-validation over how the budget is shared by the rounds."""

from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.errors import ResultsError
from mpmtl.experiments.reader import needed, read_rows, read_table, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.style import (
    at_the_edge,
    figure,
    legend_below,
    legend_words,
    line_with_bars,
    look,
)
from mpmtl.paper.intervals import paired_half_width, summary

AXES = {"convex": ("alpha", "alpha, eps_t ~ t^alpha"), "strong": ("Q", "Q, eps_t ~ Q^-t")}

LINES = (
    "epsilon == 0.1 and privacy == 'wishart' and method == 'lr'",
    "method == 'stl'",
    "method == 'mtl_lr'",
)


def collect(results, form):
    """The best error at each alpha (``form="convex"``) or Q ("strong"), with and without momentum.

    For each replicate the other settings are those that cross-validation finds best there. Column
    `half_width` is that of the paired difference of a private setting to the private setting of the
    lowest mean: two settings differ where it does not reach the best.
    """
    key, _ = AXES[form]
    experiment = f"budget_allocation_{form}"
    own = runs(results).query("experiment == @experiment and dataset == 'low_rank'")
    parts = [
        needed(own.query(query), f"no {experiment} of {query.split()[-1]} below {results}")
        for query in LINES
    ]
    try:
        cv, levels = read_rows(pd.concat(parts), "cv"), None
    except ResultsError:  # of the private runs only: the levels as they were saved
        saved = Path(results) / f"figures/{experiment}.csv"
        if not saved.is_file():
            raise
        cv, levels = read_rows(parts[0], "cv"), read_table(saved).query("privacy == 'none'")
    private = cv.privacy != "none"
    steps = np.where(cv.accelerated == True, "accelerated", "basic")  # noqa: E712, not all have it
    cv["steps"] = pd.Series(steps, cv.index).where(private)
    cv[key] = cv[key].where(private).astype(float)
    keys = ["method", "privacy", "status", "steps", key]
    best = cv.groupby([*keys, "replicate"], dropna=False).score.min()
    best = best.rename("value").reset_index()
    table = summary(best, keys).drop(columns="half_width")
    setting = ["steps", key]
    each = best.dropna(subset=key).pivot(index="replicate", columns=setting, values="value")
    half = each.apply(paired_half_width, reference=each[each.mean().idxmin()])
    table = table.join(half.rename("half_width"), on=setting)
    return table if levels is None else pd.concat([table, levels], ignore_index=True)


def draw(table, path):
    """Lines over alpha or Q, whichever the table has, with separate tasks as a level."""
    key, label = next(AXES[form] for form in AXES if AXES[form][0] in table)
    level = table.set_index("method")["mean"]
    with figure(path, table, height=3.1) as ax:
        for steps, line in table.groupby("steps", sort=False):
            line, first = line.sort_values(key), line.iloc[0]
            style = look(first.method, first.status)
            if steps == "basic":  # the same method, open markers
                style |= {"markerfacecolor": "white", "marker": "s"}
            words = legend_words(first.method, first.privacy, first.status)
            line_with_bars(ax, line[key], line, style, f"{words}, {steps} steps")
        stl, mtl = level["stl"], level["mtl_lr"]
        ax.axhline(stl, color=look("stl")["color"], ls=":", lw=1, label="stl, separate tasks")
        style = look("mtl_lr", "none")
        ax.set_ylim(ax.get_ylim())
        beyond = "" if ax.get_ylim()[0] <= mtl <= ax.get_ylim()[1] else " (beyond the axis)"
        ax.axhline(mtl, color=style["color"], ls=":", label=f"mtl_lr, not private{beyond}")
        if key == "alpha":
            ax.set_xscale("symlog", linthresh=1)
            ax.set_xticks([-8, -2, -1, 0, 1, 2, 8], ["-8", "-2", "-1", "0", "1", "2", "8"])
            ax.set_xticks([], minor=True)
        ax.set_xlabel(label)
        ax.set_ylabel(f"{METRICS['nmse'].name} on held-out folds")
        ax.set_title(
            f"low_rank, eps = 0.1, mean of {table['count'].max()} replicates\n"
            "bars: 95 % paired interval to the best setting"
        )
        at_the_edge(ax, [([table[key].median()], [mtl], style)])
        legend_below(ax)

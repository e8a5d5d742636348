"""Accuracy over the privacy budget: Figs. 6, 7, 9 and 10 of the paper, and any sweep like them."""

import numpy as np

from mpmtl.experiments.reader import compared, needed, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.style import (
    COLUMN,
    budget_axis,
    figure,
    legend_words,
    line_with_band,
    look,
)
from mpmtl.paper.intervals import stl_level, summary

PAIRED = "95 % interval of the difference to separate tasks"
#: Shown in a panel of their own, because their errors are so much larger.
BASELINES = ("dp_mtrl", "dp_aggr")


def datasets(results):
    """Names of the data sets that have runs without a tag."""
    return sorted(runs(results).query("experiment == ''").dataset.unique())


def collect(results, dataset, methods=None):
    """`summary` over replicates of each method, mechanism and epsilon.

    Parameters
    ----------
    results : Path
        Results folder.
    dataset : str
    methods : list of str, optional
        As "lr" or, with one mechanism only, as "lr/wishart"; default: all that are there.

    Raises
    ------
    ResultsError
        If there is no such run.
    """
    untagged = runs(results).query("experiment == ''")
    chosen = untagged[untagged.dataset == dataset]
    there = ", ".join(sorted(untagged.dataset.unique()))
    needed(chosen, f"no run of {dataset} below {results}: there is {there}")
    if methods:
        pairs = chosen.method + "/" + chosen.privacy
        chosen = chosen[chosen.method.isin(methods) | pairs.isin(methods)]
        needed(chosen, f"no run of {', '.join(methods)} on {dataset} below {results}")
    keys = ["dataset", "metric", "method", "privacy", "status", "epsilon"]
    return summary(compared(chosen), keys)


def draw(table, path):
    """A line over epsilon for each private method and mechanism, a level for each other method."""
    stl, budgets = stl_level(table), sorted(table.epsilon.dropna().unique())
    dataset, metric = table[["dataset", "metric"]].iloc[0]
    behind = table.method.isin(BASELINES)
    panels = [part for part in (table[~behind], table[behind]) if len(part)]
    names = max(len(part[["method", "privacy", "status"]].drop_duplicates()) for part in panels)
    size = {"width": COLUMN * len(panels), "height": 2.7 + 0.14 * names}  # a line for each name
    with figure(path, table, **size, ncols=len(panels)) as axes:
        for ax, part in zip(np.atleast_1d(axes), panels, strict=True):
            _lines(ax, part, stl)
            if budgets:
                budget_axis(ax, budgets)
            else:
                ax.set_xticks([])
            ax.set_xlabel("epsilon of one task, all rounds")
            ax.set_ylabel(METRICS[metric].label)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        lines = f"{dataset}: mean of {table['count'].max()} replicates", f"band: {PAIRED}"
        ax.figure.suptitle((", " if len(panels) > 1 else "\n").join(lines), size=8)


def _lines(ax, table, stl):
    ax.axhline(
        stl, color=look("stl")["color"], ls=":", lw=1, label=legend_words("stl", "none", "none")
    )
    lines = table[table.method != "stl"].groupby(["method", "privacy", "status"], sort=False)
    for key, line in lines:
        style = look(key[0], key[-1])
        if key[-1] == "none":
            level, words = line["mean"].iloc[0], legend_words(*key)
            ax.axhline(level, color=style["color"], ls=style["ls"], lw=1.2, label=words)
        else:
            line = line.sort_values("epsilon")
            line_with_band(ax, line.epsilon, line, style, legend_words(*key))

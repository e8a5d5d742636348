"""Fig. 8: what more tasks bring to the first twenty."""

import pandas as pd

from mpmtl.experiments.reader import accuracy, needed, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.style import figure, legend_below, legend_words, line_with_bars, look
from mpmtl.paper.intervals import paired_half_width, summary


def collect(results):
    """Error of the first 20 tasks over the number of tasks that take part.

    `half_width` is that of the difference to the smallest number, paired: what more tasks bring.
    """
    chosen = runs(results).query("experiment == 'task_number'")
    needed(chosen, f"no task_number below {results}: mpmtl-run experiment=task_number")
    rows = accuracy(chosen)
    rows["m"] = rows["dataset.used"].astype(int)
    keys = ["dataset", "metric", "method", "privacy", "status", "epsilon", "m"]
    table = summary(rows, keys).drop(columns="half_width")
    parts = []
    for _, line in rows.groupby(keys[:-1], dropna=False, sort=False):
        each = line.pivot(index="replicate", columns="m", values="value")
        half = each.apply(paired_half_width, reference=each[each.columns.min()])
        parts.append(line[keys].drop_duplicates().assign(half_width=lambda t, h=half: t.m.map(h)))
    return table.merge(pd.concat(parts), on=keys)


def draw(table, path):
    """A line over the number of tasks for each method."""
    keys = ["method", "privacy", "status", "epsilon"]
    with figure(path, table) as ax:
        for key, line in table.groupby(keys, dropna=False):
            method, privacy, status, epsilon = key
            line = line.sort_values("m")
            words = legend_words(method, privacy, status)
            budget = "" if status == "none" else f", eps = {epsilon:g}"
            line_with_bars(ax, line.m, line, look(method, status), words + budget)
        ax.set_xscale("log")
        ax.set_xticks(sorted(table.m.unique()), sorted(table.m.unique()))
        ax.set_xticks([], minor=True)
        ax.set_xlabel("tasks that take part")
        ax.set_ylabel(f"{METRICS[table.metric.iloc[0]].name} of the first 20 tasks")
        ax.set_title(
            f"{table.dataset.iloc[0]}, mean of {table['count'].max()} replicates\n"
            f"bars: 95 % interval of the difference to {table.m.min()} tasks"
        )
        legend_below(ax)

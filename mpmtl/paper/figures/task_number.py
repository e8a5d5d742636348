"""Fig. 8: what more tasks bring to the first twenty."""

from mpmtl.experiments.reader import accuracy, needed, runs, summary
from mpmtl.metrics import METRICS
from mpmtl.paper.figures.style import figure, legend_below, legend_words, line_with_bars, look


def collect(results):
    """Error of the first 20 tasks over the number of tasks that take part, bars of one sd."""
    chosen = runs(results).query("experiment == 'task_number'")
    needed(chosen, f"no task_number below {results}: mpmtl-run experiment=task_number")
    rows = accuracy(chosen)
    rows["m"] = rows["dataset.used"].astype(int)
    keys = ["dataset", "metric", "method", "privacy", "status", "epsilon", "m"]
    return summary(rows, keys)


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
            f"{table.dataset.iloc[0]}, mean of {table['count'].max()} replicates, bars +- 1 sd"
        )
        legend_below(ax)

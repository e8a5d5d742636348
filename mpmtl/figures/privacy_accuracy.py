"""Accuracy over the privacy budget: Figs. 6, 7, 9 and 10 of the paper, and any sweep like them."""

from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.figures.style import COLOURS, MARKERS, figure
from mpmtl.figures.tables import accuracy

METRICS = {"nmse": "nMSE on test samples", "aauc": "average AUC on test samples"}


def draw(root, dataset, path, methods=None):
    """A line over epsilon for each private method and mechanism, a level for each other method.

    Parameters
    ----------
    root : Path
        Results folder.
    dataset : str
    path : Path
        Without suffix; PNG, PDF and CSV (means, standard deviations, replicates) are written.
    methods : list of str, optional
        Default: all that are there.

    Raises
    ------
    ResultsError
        If there is no such run.
    """
    rows = accuracy(root)
    there = sorted(rows.dataset.unique())
    rows = rows[rows.dataset == dataset]
    if methods is not None:
        rows = rows[rows.method.isin(methods)]
    if rows.empty:
        raise ResultsError(f"no run of {dataset} below {root}: there is {', '.join(there)}")
    keys = ["method", "privacy", "status", "epsilon", "metric"]
    table = rows.groupby(keys, dropna=False, sort=False).value.agg(["mean", "std", "count"])
    table = table.reset_index().fillna({"std": 0.0})
    budgets = sorted(table.epsilon.dropna().unique())
    with figure(path, table, height=3.0) as ax:
        stl = rows.stl.mean()
        ax.axhline(stl, color="0.35", ls=":", lw=1, label="stl, separate tasks")
        for k, ((method, privacy, status), line) in enumerate(
            table.groupby(["method", "privacy", "status"], sort=False)
        ):
            colour = COLOURS[k % len(COLOURS)]
            if status == "none":
                if method != "stl":
                    level = line["mean"].iloc[0]
                    ax.axhline(level, color=colour, ls="--", lw=1, label=f"{method}, not private")
                continue
            line = line.sort_values("epsilon")
            ax.plot(
                line.epsilon,
                line["mean"],
                color=colour,
                marker=MARKERS[k % len(MARKERS)],
                label=f"{method}, {privacy} ({status})",
            )
            low, high = line["mean"] - line["std"], line["mean"] + line["std"]
            ax.fill_between(line.epsilon, low, high, color=colour, alpha=0.15, lw=0)
        if budgets:
            ax.set_xscale("log")
            ax.set_xticks(budgets, [f"{eps:g}" for eps in budgets], minor=False)
            ax.set_xticks([], minor=True)
        else:
            ax.set_xticks([])
        ax.set_xlabel("epsilon of one task, all rounds")
        ax.set_ylabel(METRICS.get(table.metric.iloc[0], table.metric.iloc[0]))
        ax.set_title(f"{dataset}: mean of {table['count'].max()} replicates, band +- 1 sd")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return Path(path)

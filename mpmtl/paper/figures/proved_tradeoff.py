"""Accuracy over epsilon for methods with equal budgets, one panel for each data set."""

import numpy as np

from mpmtl.experiments.reader import compared, needed, runs
from mpmtl.metrics import METRICS
from mpmtl.paper.comparison import compare
from mpmtl.paper.figures.privacy_accuracy import PAIRED
from mpmtl.paper.figures.style import (
    COLUMN,
    at_the_edge,
    budget_axis,
    figure,
    labels_at_lines,
    line_with_band,
    look,
)


def collect(results, reference="fl"):
    """`mpmtl.paper.comparison.compare` of the runs of experiment=proved_tradeoff.

    If there are none below `results`, of those without a tag.
    """
    finished = runs(results)
    own = "proved_tradeoff" if (finished.experiment == "proved_tradeoff").any() else ""
    chosen = needed(finished[finished.experiment == own], f"no run without a tag below {results}")
    return compare(compared(chosen), reference)


def draw(table, path):
    """Mean over replicates with bands, paired to separate tasks, and methods without noise.

    Names stand at the lines. What is far worse than separate tasks is drawn at the edge with its
    value.

    Parameters
    ----------
    table : DataFrame
        Of `collect`.
    path : Path
        Without suffix; PNG, PDF and CSV are written.
    """
    datasets = list(table.dataset.unique())
    columns = min(2, len(datasets))
    n_rows = -(-len(datasets) // columns)
    size = {"width": COLUMN * max(columns, 1.3), "height": 3 * n_rows + 0.3}
    with figure(path, table, squeeze=False, nrows=n_rows, ncols=columns, **size) as axes:
        for ax, dataset in zip(axes.ravel(), datasets, strict=False):
            panel(ax, table[table.dataset == dataset], dataset)
        for ax in axes.ravel()[len(datasets) :]:
            ax.set_axis_off()
        axes[0, 0].figure.suptitle(
            f"Mean over replicates, band: {PAIRED}.\nSolid: the budget covers every choice; "
            "dashed (*): not all of them; dotted: no budget.\n"
            "Open markers: beyond the axis, at its edge, with their values.",
            size=7,
        )


def _limits(rows):
    """Limits of a panel: failures far beyond separate tasks would hide the rest."""
    stl = rows.stl.mean()
    if METRICS[rows.metric.iloc[0]].higher_is_better:
        top = rows["mean"].max()
        gap = max(top - stl, 0.005)
        return top - 3 * gap, top + 0.2 * gap
    low, top = rows["mean"].min(), 1.15 * stl
    return low - 0.06 * (top - low), top


def panel(ax, rows, dataset):
    """The methods on one data set."""
    noisy = rows[np.isfinite(rows.epsilon)]
    low, high = _limits(rows)
    several = noisy.groupby("method").privacy.nunique() > 1
    ends, lines = [], []
    ax.set_ylim(low, high)
    for (method, privacy), line in noisy.groupby(["method", "privacy"]):
        line = line.sort_values("epsilon")
        status = " or ".join(sorted(line.status.unique()))
        name = f"{method}/{privacy}" if several[method] else method
        style = look(method, status, privacy if several[method] else None)
        line_with_band(ax, line.epsilon, line, style, name)
        lines.append((line.epsilon, line["mean"], style))
        end = np.clip(line["mean"].iloc[-1], low, high)
        ends.append((end, f"{name} ({status})", style["color"]))
    levels = [(rows.stl.mean(), "separate tasks", "stl")]
    free = rows[np.isinf(rows.epsilon) & (rows.method == rows.best)]
    levels += [
        (row["mean"], f"{row.method}, not private", row.method) for _, row in free.iterrows()
    ]
    for level, name, method in levels:
        style = look(method, "none")
        ax.axhline(level, color=style["color"], ls=style["ls"], lw=1)
        ends.append((level, name, style["color"]))
    if len(noisy):
        budget_axis(ax, sorted(noisy.epsilon.unique()))
    labels_at_lines(ax, ends)
    counts = dict.fromkeys((rows.n.min(), rows.n.max()))
    ax.set_title(f"{dataset}, {' to '.join(map(str, counts))} replicates")
    at_the_edge(ax, lines)
    ax.set_xlabel("epsilon (one task)")
    ax.set_ylabel(METRICS[rows.metric.iloc[0]].label)

"""How all figures look: width of a column, colours that colour-blind readers can tell apart."""

from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mpmtl.privacy.statements import MARK, MARK_WORDS

COLUMN = 3.5  # inches
#: Okabe and Ito's colours, in the order in which lines take them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def figure(path, table, width=COLUMN, height=2.6, **subplots):
    """Draw a figure and save it as PNG and PDF, with the CSV behind it.

    Parameters
    ----------
    path : Path
        Without suffix.
    table : DataFrame or list of dict
        What is drawn.
    width, height : float
        Inches.
    **subplots
        For `Figure.subplots`.

    Yields
    ------
    Axes, or an array of them
    """
    path = Path(path)
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn.subplots(**subplots)
        if "status" in table and table.status.str.endswith(MARK).any():
            drawn.supxlabel(MARK_WORDS, size=6, x=0.99, ha="right")
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path.with_suffix(".png"), dpi=200, metadata={"Software": None})
        drawn.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    pd.DataFrame(table).to_csv(path.with_suffix(".csv"), index=False)


def look(k):
    """Colour, marker and line of the k-th line of a figure; from the eighth on dashed."""
    n = len(COLOURS)
    marker = MARKERS[(k + k // n) % n]  # the second line of a colour has another marker
    return {"color": COLOURS[k % n], "marker": marker, "ls": "-" if k < n else "--"}


def budget_axis(ax, budgets):
    """A logarithmic axis with a tick at each epsilon, written as it was set."""
    ax.set_xscale("log")
    ax.set_xticks(budgets, [f"{eps:g}" for eps in budgets])
    ax.set_xticks([], minor=True)


def legend_words(method, privacy, status):
    """Name of a line: what it is, by which mechanism, and whether that is claimed or proved."""
    if status != "none":
        return f"{method}, {privacy} ({status})"
    return f"{method}, separate tasks" if method.startswith("stl") else f"{method}, not private"


def legend_below(axes, ncols=1):
    """One legend of all given axes below the whole figure, which makes room for it."""
    axes = np.ravel(axes)
    named = {}
    for ax in axes:
        named |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    axes[0].figure.legend(named.values(), named, loc="outside lower center", ncols=ncols)


def line_with_band(ax, x, table, k, label):
    """The k-th line of a figure: column `mean` over x, and a band of one `std`."""
    every = 1 + len(table) // 20  # markers stay apart
    ax.plot(x, table["mean"], label=label, markevery=every, **look(k))
    low, high = table["mean"] - table["std"], table["mean"] + table["std"]
    ax.fill_between(x, low, high, color=look(k)["color"], alpha=0.15, lw=0)


def line_with_bars(ax, x, table, k, label):
    """The k-th line of a figure: column `mean` over x, with bars of one `std`."""
    ax.errorbar(x, table["mean"], table["std"], capsize=2, label=label, **look(k))

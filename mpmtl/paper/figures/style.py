"""How all figures look: width of a column, colours that colour-blind readers can tell apart."""

from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from mpmtl.privacy.statements import MARK, MARK_WORDS

COLUMN = 3.5  # inches
#: Okabe and Ito's colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Colour and marker of each method, the same in all figures.
METHODS = {
    "lr": (COLOURS[0], "o"),
    "gs": (COLOURS[1], "s"),
    "fl": (COLOURS[2], "^"),
    "fedrep": (COLOURS[3], "D"),
    "fl_local": (COLOURS[4], "v"),
    "fl_shared": (COLOURS[5], "P"),
    "mr_mtl": (COLOURS[6], "X"),
    "dp_mtrl": ("#882255", "<"),
    "dp_aggr": ("#999933", ">"),
    "mtl": ("#332288", "h"),
    "mtl_lr": ("#6A3D9A", "p"),
    "mtl_gs": ("#661100", "H"),
    "mtrl": ("#44AA99", "d"),
    "stl": ("#595959", "."),
    "stl_best": ("#A6611A", "1"),
    "stl_local": ("#E7298A", "2"),
}
#: Dots of a line without a budget, where others than the usual ones tell two levels apart.
DOTS = {"stl_best": (0, (1, 3)), "stl_local": (0, (1, 3, 1, 1))}
OTHER = ("#BDA000", "*")  # a method of the user's own
#: Markers that tell the mechanisms of one method apart; one that is not here has the method's.
MECHANISMS = {"gaussian": "s", "two_sided_wishart": "D", "laplace": "^"}
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
    "legend.handlelength": 3.2,  # long enough to tell dashed from solid beside a marker
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
            if drawn.legends:  # at the figure's edge, where the words would lie over it
                drawn.legends[0].set_title(MARK_WORDS, {"size": 6})
            else:
                drawn.supxlabel(MARK_WORDS, size=6, x=0.99, ha="right")
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path.with_suffix(".png"), dpi=200, metadata={"Software": None})
        drawn.set_layout_engine("none")  # laid out already, which takes as long as to draw
        drawn.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    pd.DataFrame(table).to_csv(path.with_suffix(".csv"), index=False)


def look(method, status="", mechanism=None):
    """Colour, marker and line style of a method, the same in all figures.

    Dotted without a budget, dashed where the budget does not cover all choices, else solid. With a
    `mechanism` the marker is that of the mechanism, for figures with several of one method.
    """
    colour, marker = METHODS.get(method, OTHER)
    style = DOTS.get(method, ":") if status == "none" else "--" if status.endswith(MARK) else "-"
    return {"color": colour, "marker": MECHANISMS.get(mechanism, marker), "ls": style}


def labels_at_lines(ax, ends):
    """Write names at the right of the axes, each near the end of its line, apart from each other.

    Parameters
    ----------
    ax : Axes
        With its limits set.
    ends : list of (float, str, colour)
        Where a line ends, its name and its colour.
    """
    low, high = ax.get_ylim()
    ends = sorted(((y - low) / (high - low), name, colour) for y, name, colour in ends)
    gap = 0.075
    groups = []  # [mean of what its labels want for the lowest, number]: those that touch merge
    for y, *_ in ends:
        groups.append([y, 1])
        while len(groups) > 1 and groups[-2][0] + gap * groups[-2][1] > groups[-1][0]:
            (a, n), (b, k) = groups[-2:]
            groups[-2:] = [[(n * a + k * (b - gap * n)) / (n + k), n + k]]
            span = gap * (n + k - 1)
            groups[-1][0] = min(max(groups[-1][0], 0.0), 1 - span)
    places = [start + gap * k for start, n in groups for k in range(n)]
    for place, (y, name, colour) in zip(places, ends, strict=True):
        ax.annotate(
            name,
            (1.0, y),
            (1.06, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            size=6.5,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.5,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


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


def line_with_band(ax, x, table, style, label):
    """A line in a style (`look`): column `mean` over x, and a band of one `half_width`."""
    every = 1 + len(table) // 20  # markers stay apart
    ax.plot(x, table["mean"], label=label, markevery=every, **style)
    low, high = table["mean"] - table.half_width, table["mean"] + table.half_width
    ax.fill_between(x, low, high, color=style["color"], alpha=0.2, lw=0)


def line_with_bars(ax, x, table, style, label, aside=0.0):
    """A line in a style (`look`): column `mean` over x, with bars of one `half_width`.

    All of it `aside` by so many points, where bars of several lines would lie over each other.
    """
    drawn = ax.errorbar(x, table["mean"], table.half_width, capsize=2, label=label, **style)
    for artist in drawn.get_children() if aside else ():
        artist.set_transform(offset_copy(ax.transData, ax.figure, x=aside, units="points"))


def at_the_edge(ax, lines):
    """Draw what is beyond the axes at their edge, with its value: an open marker and a number.

    Call it when the limits and the title are set; title and ticks make room.

    Parameters
    ----------
    ax : Axes
    lines : list of (sequence of float, sequence of float, dict)
        x, values and style (`look`) of each line.
    """
    limits, stacks = ax.get_ylim(), {}
    for x, values, style in lines:
        for side, sign in enumerate((-1, 1)):
            points = zip(x, values, strict=True)
            beyond = [(a, v) for a, v in points if sign * v > sign * limits[side]]
            if beyond:
                stacks.setdefault(side, []).append((beyond, style))
    for side, stack in stacks.items():
        for k, (beyond, style) in enumerate(stack):
            _edge_points(ax, beyond, limits[side], side, k, len(stack), style)
        if side:
            ax.set_title(ax.get_title(), pad=10 + 7 * len(stack))
        else:
            ax.tick_params(axis="x", pad=6 + 7 * len(stack))


def _edge_points(ax, points, edge, side, k, n, style):
    """Points of the k-th of n lines at an edge: markers side by side, numbers below each other."""
    beside = offset_copy(ax.transData, ax.figure, x=4 * (k - (n - 1) / 2), units="points")
    marker = {"marker": style["marker"], "color": style["color"], "mfc": "white", "ms": 3.5}
    at = [x for x, _ in points]
    ax.plot(at, [edge] * len(at), ls="none", transform=beside, clip_on=False, zorder=3, **marker)
    away, va = ((6 + 7 * k), "bottom") if side else (-(6 + 7 * k), "top")
    for x, value in points:
        ax.annotate(
            f"{value:.{2 if abs(value) >= 0.1 else 3}f}",
            (x, edge),
            (0, away),
            textcoords="offset points",
            ha="center",
            va=va,
            color=style["color"],
            size=6,
            gid="beyond",
        )

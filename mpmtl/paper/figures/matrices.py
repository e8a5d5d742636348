"""Figs. 2 and 3: model matrices and task relations as pictures."""

import textwrap

import numpy as np
import pandas as pd

from mpmtl.data import LeakageExample, LowRank
from mpmtl.experiments.reader import needed, recorded_dataset, runs, saved_models
from mpmtl.paper.figures.style import COLUMN, figure

COLOURMAP = "PuOr"  # readable for the colour-blind, white at zero
DECIMALS = 4  # of entries in [-1, 1]: finer than a colour shows, and a third of the bytes


def columns_normalised(W):
    """The paper's d x m matrix with columns of length 1, from models as rows."""
    norms = np.linalg.norm(W, axis=1, keepdims=True)
    return (W / np.where(norms > 0, norms, 1)).T


def cosines(W):
    """Relation of the tasks: cosine between every two models, shape (m, m)."""
    V = columns_normalised(W)
    return V.T @ V


def _table(panels):
    """Panels (what a row is, matrix) below one another: a row for each row, a column for a task."""
    parts = []
    for panel, (rows, matrix) in panels.items():
        part = pd.DataFrame(matrix.round(DECIMALS) + 0.0)  # + 0.0: no -0.0
        part.columns = [str(task + 1) for task in part.columns]
        part.insert(0, "row", range(1, len(part) + 1))
        part.insert(0, "rows", rows)
        part.insert(0, "panel", panel)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


EPSILON = 0.1  # of what is protected in both figures


def _run(results, experiment, method, privacy, epsilon):
    """The one run of a results folder with these."""
    query = "experiment == @experiment and method == @method and privacy == @privacy"
    chosen = runs(results).query(f"{query} and epsilon == @epsilon")
    message = f"no {experiment} of {method} at eps = {epsilon:g} below {results}"
    return needed(chosen, message).iloc[0]


def collect_leakage(results):
    """Fig. 2: models before MTL, after it without noise (eps = 1e40), and with it (eps = 0.1)."""
    leaked, protected = (
        _run(results, "model_leakage", "lr", "wishart", epsilon) for epsilon in (1e40, EPSILON)
    )
    dataset, seed = recorded_dataset(protected, LeakageExample)
    data, _ = dataset.draw(None, seed, 0)
    models = {
        "(a) before": np.array(data.y),
        "(b) after, not protected, eps = 1e40": saved_models(leaked),
        "(c) after, claimed budget, eps = 0.1": saved_models(protected),
    }
    return _table({name: ("feature", columns_normalised(W)) for name, W in models.items()})


def collect_relations(results):
    """Fig. 3: cosines of the tasks' models, mean over replicates, and models of one replicate.

    The true models differ by replicate, so their mean would be zero: the lower row shows the first
    replicate, columns scaled to length 1. With separate tasks where they have been run.
    """
    dp_mtrl, lr = (
        _run(results, "task_relations", *pair, EPSILON)
        for pair in (("dp_mtrl", "output_perturbation"), ("lr", "wishart"))
    )
    replicates = range(lr.replicates)
    dataset, seed = recorded_dataset(lr, LowRank)
    models = {
        "true": [dataset.truth(seed, r)[0] for r in replicates],
        **_separate(results, replicates),
        "dp_mtrl (claimed)": [saved_models(dp_mtrl, r) for r in replicates],
        "lr (claimed)": [saved_models(lr, r) for r in replicates],
    }
    relations = {
        f"{name}: relation": ("task", np.mean([cosines(W) for W in Ws], axis=0))
        for name, Ws in models.items()
    }
    first = {
        f"{name}: models": ("feature", columns_normalised(Ws[0])) for name, Ws in models.items()
    }
    return _table(relations | first)


def _separate(results, replicates):
    """Models of separate tasks in the same replicates; nothing where these were not run."""
    stl = runs(results).query("experiment == 'task_relations' and method == 'stl'")
    if stl.empty:
        return {}
    return {"stl, separate tasks": [saved_models(stl.iloc[0], r) for r in replicates]}


def draw(table, path):
    """A picture for each panel, relations above models; a row has one scale of colours."""
    panels = list(table.groupby(["panel", "rows"], sort=False))
    kinds = list(dict.fromkeys(table.rows))  # a row of panels for each
    layout = {"nrows": len(kinds), "ncols": len(panels) // len(kinds), "squeeze": False}
    size = {"width": 2 * COLUMN * layout["ncols"] / 3, "height": 2.2 * len(kinds)}
    with figure(path, table, **size, **layout) as axes:
        for row, kind in zip(axes, kinds, strict=True):
            own = {title: _entries(part) for (title, rows), part in panels if rows == kind}
            largest = max(np.abs(matrix).max() for matrix in own.values()) or 1.0
            for ax, (title, matrix) in zip(row, own.items(), strict=True):
                image = _panel(ax, title, matrix, largest)
                ax.set_ylabel(kind)
            bar = row[0].figure.colorbar(image, ax=list(row), shrink=0.8)
            bar.set_label("cosine" if kind == "task" else "entry, columns\nof length 1")


def _entries(part):
    return part.drop(columns=["panel", "rows", "row"]).to_numpy(float)


def _panel(ax, title, matrix, largest):
    n_rows, n_columns = matrix.shape
    title = title.replace("(claimed):", f"(claimed, eps = {EPSILON:g}):")
    title = title.replace("eps = ", "eps\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    ax.set_title(textwrap.fill(title, 28))
    ax.locator_params(integer=True)
    ax.set_xlabel("task")
    return ax.imshow(
        matrix,
        cmap=COLOURMAP,
        vmin=-largest,
        vmax=largest,
        aspect="auto",
        interpolation="none",
        extent=(0.5, n_columns + 0.5, n_rows + 0.5, 0.5),  # counted from one
    )

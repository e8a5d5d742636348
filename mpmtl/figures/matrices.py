"""Figs. 2 and 3: model matrices and task relations as pictures."""

from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.data import LeakageExample, LowRank
from mpmtl.figures.style import COLUMN, figure
from mpmtl.figures.tables import recorded_dataset, run_table, saved_models

COLOURMAP = "PuOr"  # readable for the colour-blind, white at zero


def columns_normalised(W):
    """The paper's d x m matrix with columns of length 1, from models as rows."""
    norms = np.linalg.norm(W, axis=1, keepdims=True)
    return (W / np.where(norms > 0, norms, 1)).T


def cosines(W):
    """Relation of the tasks: cosine between every two models, shape (m, m)."""
    V = columns_normalised(W)
    return V.T @ V


def _long(panels):
    """The numbers behind the pictures: a row for each entry."""
    parts = []
    for panel, matrix in panels.items():
        row, column = np.indices(matrix.shape)
        words = {"panel": panel.replace("\n", " "), "row": row.ravel() + 1}
        parts.append(pd.DataFrame(words | {"column": column.ravel() + 1, "value": matrix.ravel()}))
    return pd.concat(parts)


def _pictures(path, panels, height, rows, labels):
    columns = len(panels) // rows
    layout = {"nrows": rows, "ncols": columns, "squeeze": False}
    with figure(path, _long(panels), width=2 * COLUMN, height=height, **layout) as axes:
        for ax, (title, matrix), (xlabel, ylabel) in zip(
            axes.ravel(), panels.items(), labels, strict=True
        ):
            size = np.abs(matrix).max() or 1.0
            n_rows, n_columns = matrix.shape
            image = ax.imshow(
                matrix,
                cmap=COLOURMAP,
                vmin=-size,
                vmax=size,
                aspect="auto",
                interpolation="none",
                extent=(0.5, n_columns + 0.5, n_rows + 0.5, 0.5),  # counted from one
            )
            ax.set_title(title)
            ax.locator_params(integer=True)
            ax.set_xlabel(xlabel)
            ax.set_ylabel(ylabel)
            ax.figure.colorbar(image, ax=ax, shrink=0.8)


def draw_leakage(results, path):
    """Fig. 2: models before MTL, after it without noise (eps = 1e40), and with it (eps = 0.1)."""
    root = Path(results) / "model_leakage/leakage_example/lr/wishart"
    leaked, protected = (saved_models(root / f"eps-{eps}") for eps in ("1e+40", "0.1"))
    dataset, seed = recorded_dataset(root / "eps-0.1", LeakageExample)
    data, _ = dataset.draw(None, seed, 0)
    panels = {
        "(a) before": columns_normalised(np.array(data.y)),
        "(b) after, eps = 1e40:\nno protection": columns_normalised(leaked),
        "(c) after, eps = 0.1\n(claimed)": columns_normalised(protected),
    }
    _pictures(path, panels, 2.2, 1, [("task", "feature")] * 3)


def draw_relations(results, path):
    """Fig. 3: cosines of the tasks' models, mean over replicates, and models of one replicate.

    The true models differ by replicate, so their mean would be zero: the lower row shows the first
    replicate, columns scaled to length 1.
    """
    root = Path(results) / "task_relations/low_rank"
    places = {
        "dp_mtrl": root / "dp_mtrl/output_perturbation/eps-0.1",
        "lr": root / "lr/wishart/eps-0.1",
    }
    replicates = sorted(run_table(places["lr"], "replicates").replicate.unique())
    dataset, seed = recorded_dataset(places["lr"], LowRank)
    truth = [dataset.truth(seed, int(r))[0] for r in replicates]
    found = {name: [saved_models(p, r) for r in replicates] for name, p in places.items()}
    models = {"true": truth, "dp_mtrl (claimed)": found["dp_mtrl"], "lr (claimed)": found["lr"]}
    panels = {
        f"{name}: relation": np.mean([cosines(W) for W in Ws], axis=0)
        for name, Ws in models.items()
    }
    panels |= {f"{name}: models": columns_normalised(Ws[0]) for name, Ws in models.items()}
    _pictures(path, panels, 4.4, 2, [("task", "task")] * 3 + [("task", "feature")] * 3)

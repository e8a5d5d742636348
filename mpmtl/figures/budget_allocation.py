"""Fig. 4: error of the cross-validation over how the budget is shared by the rounds."""

from pathlib import Path

import pandas as pd

from mpmtl.figures.style import figure, line_with_band
from mpmtl.figures.tables import run_table, summary

AXES = {"convex": ("alpha", "alpha, eps_t ~ t^alpha"), "strong": ("Q", "Q, eps_t ~ Q^-t")}


def draw(results, path, form):
    """The best error at each alpha (``form="convex"``) or Q ("strong"), with and without momentum.

    For each replicate the other settings are those that cross-validation finds best there.
    """
    root = Path(results) / f"budget_allocation_{form}" / "low_rank"
    key, label = AXES[form]
    cv = run_table(root / "lr/wishart/eps-0.1", "cv")
    best = cv.groupby(["replicate", "accelerated", key]).score.min().rename("value").reset_index()
    table = summary(best, ["accelerated", key])
    levels = []
    for method in ("stl", "mtl_lr"):
        scores = run_table(root / method / "none/eps-inf", "cv").groupby("replicate").score.min()
        levels.append({"method": method, "mean": scores.mean(), "std": scores.std(ddof=1)})
    everything = pd.concat([table.assign(method="lr"), pd.DataFrame(levels)])
    with figure(path, everything) as ax:
        for k, (accelerated, line) in enumerate(table.groupby("accelerated")):
            name = "accelerated" if accelerated else "basic"
            line = line.sort_values(key)
            words = f"lr, wishart (claimed), {name}"
            line_with_band(ax, line[key], line, k, words)
        stl, mtl = (level["mean"] for level in levels)
        ax.axhline(stl, color="0.35", ls=":", lw=1, label="stl, separate tasks")
        ax.plot([], [], " ", label=f"mtl_lr, not private: {mtl:.3f} (far below)")
        if form == "convex":
            ax.set_xscale("symlog", linthresh=1)
            ax.set_xticks([-8, -2, -1, 0, 1, 2, 8], ["-8", "-2", "-1", "0", "1", "2", "8"])
        ax.set_xlabel(label)
        ax.set_ylabel("nMSE on held-out folds")
        ax.set_title(f"eps = 0.1, mean of {table['count'].max()} replicates, band +- 1 sd")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))

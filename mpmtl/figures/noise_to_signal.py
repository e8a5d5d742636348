"""Fig. 5: how large the noise is beside the covariance, over the rounds."""

from pathlib import Path

import numpy as np
import pandas as pd

from mpmtl.figures.style import COLOURS, figure, line_with_band
from mpmtl.figures.tables import run_table, summary

PAPER_DP_MTRL = 0.2670  # printed in Section 5.4 for T = 1


def draw(results, path):
    """log10(||E||_F / ||Sigma~||_F) in each round of `lr`, and of `dp_mtrl` in its first round."""
    root = Path(results)
    parts = {
        "lr": run_table(root / "noise_to_signal/low_rank/lr/wishart/eps-0.1", "trace"),
        "dp_mtrl": run_table(root / "low_rank/dp_mtrl/output_perturbation/eps-0.1", "trace"),
    }
    for method, trace in parts.items():
        trace["value"] = np.log10(trace.noise_norm / trace.signal_norm)
        parts[method] = summary(trace, ["round"]).assign(method=method)
    lr, dp = parts["lr"], parts["dp_mtrl"].query("round == 1")
    with figure(path, pd.concat([lr, dp])) as ax:
        line_with_band(ax, lr["round"], lr, 0, "lr, wishart (claimed)")
        mine = dp["mean"].iloc[0]
        ax.axhline(mine, color=COLOURS[1], ls="--", lw=1, label=f"dp_mtrl (claimed): {mine:.2f}")
        words = f"dp_mtrl as the paper prints it: {PAPER_DP_MTRL}"
        ax.axhline(PAPER_DP_MTRL, color=COLOURS[1], ls=":", lw=1, label=words)
        ax.set_xlabel("round t")
        ax.set_ylabel("log10(noise / signal)")
        ax.set_title(f"eps = 0.1, mean of {lr['count'].max()} replicates, band +- 1 sd")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))

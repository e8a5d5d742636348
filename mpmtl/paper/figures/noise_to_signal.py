"""Fig. 5: how large the noise is beside the covariance, over the rounds."""

import numpy as np
import pandas as pd

from mpmtl.experiments.reader import needed, read_rows, runs
from mpmtl.paper.figures.style import figure, legend_below, legend_words, line_with_band, look
from mpmtl.paper.intervals import summary

PAPER_DP_MTRL = 0.2670  # printed in Section 5.4 for T = 1


def log_ratio(trace):
    """log10(||E||_F / ||Sigma~||_F) of each row of a trace."""
    return np.log10(trace.noise_norm / trace.signal_norm)


def collect(results):
    """log10(||E||_F / ||Sigma~||_F) in each round of `lr`, and of `dp_mtrl` in its first round."""
    at_budget = runs(results).query("dataset == 'low_rank' and epsilon == 0.1")
    queries = {
        "lr": "privacy == 'wishart' and experiment == 'noise_to_signal'",
        "dp_mtrl": "privacy == 'output_perturbation' and experiment == ''",
    }
    parts = []
    for method, query in queries.items():
        chosen = at_budget.query(f"method == '{method}' and {query}")
        needed(chosen, f"no run of {method} for Fig. 5 below {results}")
        trace = read_rows(chosen, "trace")
        trace["value"] = log_ratio(trace)
        parts.append(summary(trace, ["round"]).assign(method=method, status=chosen.status.iloc[0]))
    return pd.concat([parts[0], parts[1].query("round == 1")], ignore_index=True)


def draw(table, path):
    """A line over the rounds, with the one value of `dp_mtrl` and the paper's as levels."""
    lr, dp = (table[table.method == method] for method in ("lr", "dp_mtrl"))
    with figure(path, table) as ax:
        words = legend_words("lr", "wishart", lr.status.iloc[0])
        line_with_band(ax, lr["round"], lr, look("lr", lr.status.iloc[0]), words)
        colour = look("dp_mtrl")["color"]
        mine, status = dp["mean"].iloc[0], dp.status.iloc[0]
        ax.axhline(mine, color=colour, ls="--", lw=1, label=f"dp_mtrl ({status}): {mine:.2f}")
        words = f"dp_mtrl as the paper prints it: {PAPER_DP_MTRL}"
        ax.axhline(PAPER_DP_MTRL, color=colour, ls=":", lw=1, label=words)
        ax.set_xlabel("round t")
        ax.set_ylabel("log10(noise / signal),\nFrobenius norms")
        ax.set_title(
            f"low_rank, eps = 0.1, mean of {lr['count'].max()} replicates\nband: its 95 % interval"
        )
        legend_below(ax)

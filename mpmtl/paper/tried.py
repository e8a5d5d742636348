"""Other settings with which a statement of the paper was tried (docs/claims.md, second table)."""

import sys

from mpmtl.experiments.commands import command_parser
from mpmtl.experiments.config import build
from mpmtl.experiments.runner import execute
from mpmtl.experiments.sweep import attempt, jobs, report

_RATES = "grids.lr.Q=[0.8,0.96,0.98,0.9936,1.0,1.0032,1.2]"
_ALLOCATION = ("experiment=budget_allocation_strong", "method=lr", _RATES)
_LARGE = ("method=lr", "dataset=low_rank,group_sparse", "epsilon=10")
_DP_MTRL = ("method=dp_mtrl", "dataset=low_rank")
_ONE_ROUND = "method.grid.n_rounds=[1]"
_LARGE_RIDGE = "method.grid.lam1=[1e6,1e7,1e8]"

#: What each folder ``tried/<claim>/<label>`` is made of (behind it, an experiment's name); all else
#: that its check compares is that of the claim's own runs (`checks.Runs.tried`).
TRIED = {
    "Q/K-1/budget_allocation_strong": (*_ALLOCATION, "grids.lr.K=[1]"),
    "Q/T-20-100/budget_allocation_strong": (*_ALLOCATION, "grids.lr.n_rounds=[20,100]"),
    "dp-aggr-grows/noisy_ridge-1e-3-1e6": (
        *("method=dp_aggr", "dataset=group_sparse", "epsilon=0.1,10"),
        "method.grid.lam=[1e-3,1e-2,0.1,1,10,100,1e3,1e4,1e5,1e6]",
    ),
    "dp-mtrl-low-rank/T-1": (*_DP_MTRL, "epsilon=10", _ONE_ROUND),
    "dp-mtrl-low-rank/noisy_ridge-1e6-1e8": (*_DP_MTRL, "epsilon=10", _LARGE_RIDGE),
    "noise-dp-mtrl/T-1": (*_DP_MTRL, "epsilon=0.1", _ONE_ROUND),
    "noise-dp-mtrl/noisy_ridge-1e6-1e8": (*_DP_MTRL, "epsilon=0.1", _LARGE_RIDGE),
    "rivals-mtl/K-0.5": (*_LARGE, "method.grid.K=[0.5]"),
    "rivals-mtl/K-1": (*_LARGE, "method.grid.K=[1]"),
    "rivals-mtl/K-3": (*_LARGE, "method.grid.K=[3]"),
    "rivals-mtl/T-50-200": (*_LARGE, "method.grid.n_rounds=[50,100,200]"),
    "rivals-mtl/averaged-loss": (*_LARGE, "method.loss_average=true"),
    "rivals-mtl/blocks-2": ("method=lr,mtl", "dataset.blocks=2", "epsilon=10"),
    "rivals-mtl/clip-covariance": (*_LARGE, "method.clip=covariance"),
    "rivals-mtl/init-zero": (*_LARGE, "method.init=zero"),
}


def jobs_of(label, scale):
    """The runs of a folder, each once."""
    return jobs("config", build, [*TRIED[label], f"scale={scale}", f"tag=tried/{label}"])


def main():
    """Carry out what is left of the runs below ``tried``; `mpmtl-claims` reads them."""
    parser = command_parser("try_settings", "Other settings for statements that may depend on them")
    parser.add_argument(
        "--scale", default="paper", choices=["smoke", "laptop", "standard", "paper"]
    )
    options = parser.parse_args()
    done = {}
    outcomes = [
        attempt(run.label, lambda run=run: run, execute, done)
        for label in TRIED
        for run in jobs_of(label, options.scale)
    ]
    sys.exit(1 if report(outcomes) else 0)

"""Keep what figures and claims are made from: python scripts/keep_reference.py results/laptop.

Copies manifests, tables of replicates, and tables behind figures; leaves out journals, models and
all candidates of the cross-validation (but for Fig. 4).
"""

import argparse
import shutil
import sys
from pathlib import Path

#: Files below a results folder that are kept.
KEPT = (
    "**/manifest.json",
    "**/replicates.csv",
    "figures/*.csv",
    "times.csv",
    "utility_bounds.csv",
    "budget_allocation_*/low_rank/lr/*/*/cv.csv",
    "noise_to_signal/**/trace.csv",
    "low_rank/dp_mtrl/*/eps-0.1/trace.csv",
    "audit/**/bounds.csv",
    "tried/**/trace.csv",
)


def main():
    parser = argparse.ArgumentParser(description="Keep a results folder's tables and manifests.")
    parser.add_argument("results", help="folder of complete runs, such as results/laptop")
    parser.add_argument("--to", type=Path, default=Path("results/reference"), help="where")
    options = parser.parse_args()
    root = Path(options.results)
    files = {path for pattern in KEPT for path in root.glob(pattern)}
    if not files:
        print(f"error: nothing to keep in {root}: run make reproduce-paper first", file=sys.stderr)
        sys.exit(2)
    shutil.rmtree(options.to, ignore_errors=True)
    for path in sorted(files):
        target = options.to / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, in {options.to}")


if __name__ == "__main__":
    main()

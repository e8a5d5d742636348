"""Keep what figures and claims are made from: python scripts/keep_reference.py results/laptop.

Copies manifests, tables of replicates, and tables behind figures; leaves out journals, models and
all candidates of the cross-validation (but for Fig. 4).
"""

import argparse
import shutil
from pathlib import Path

from mpmtl.errors import exit_in_one_line, require

#: Files below a results folder that are kept.
KEPT = (
    "**/manifest.json",
    "**/replicates.csv",
    "figures/*.csv",
    "times.csv",
    "utility_bounds.csv",
    "**/budget_allocation_*/low_rank/lr/*/*/cv.csv",
    "noise_to_signal/**/trace.csv",
    "low_rank/dp_mtrl/*/eps-0.1/trace.csv",
    "audit/**/bounds.csv",
    "tried/**/trace.csv",
)


REFERENCE = Path("results/reference")


def main():
    parser = argparse.ArgumentParser(description="Keep a results folder's tables and manifests.")
    parser.add_argument("results", help="folder of complete runs, such as results/laptop")
    root = Path(parser.parse_args().results)
    with exit_in_one_line():
        files = {path for pattern in KEPT for path in root.glob(pattern)}
        require(files, f"nothing to keep in {root}: run make reproduce-paper first")
        source, kept = root.resolve(), REFERENCE.resolve()
        apart = not (source.is_relative_to(kept) or kept.is_relative_to(source))
        require(apart, f"{root} overlaps {REFERENCE}, which is replaced: give results/laptop")
    shutil.rmtree(REFERENCE, ignore_errors=True)
    for path in sorted(files):
        target = REFERENCE / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, in {REFERENCE}")


if __name__ == "__main__":
    main()

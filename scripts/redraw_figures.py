"""Draw all saved figures again from their tables: python scripts/redraw_figures.py RESULTS."""

import argparse
import sys
import time
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.paper.catalogue import kind_of
from mpmtl.paper.figures.command import redraw


def main():
    parser = argparse.ArgumentParser(description="Draw all saved figures again from their tables.")
    parser.add_argument("results", nargs="?", default="results/reference", help="results folder")
    folder = Path(parser.parse_args().results) / "figures"
    tables = [path for path in sorted(folder.glob("*.csv")) if kind_of(path.stem)]
    if not tables:
        print(f"error: no table of a figure in {folder}", file=sys.stderr)
        sys.exit(2)
    started, failures = time.perf_counter(), 0
    for path in tables:
        try:
            redraw(kind_of(path.stem).draw, path, path.with_suffix(""))
            print(f"{path.with_suffix('')}.png and .pdf")
        except ResultsError as error:
            failures += 1
            print(f"error: {error}", file=sys.stderr)
    drawn = len(tables) - failures
    print(f"{drawn} of {len(tables)} figures in {time.perf_counter() - started:.0f} s")
    sys.exit(2 if failures else 0)


if __name__ == "__main__":
    main()

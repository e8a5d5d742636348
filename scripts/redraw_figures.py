"""Draw all figures of a results folder: python scripts/redraw_figures.py RESULTS.

From its runs, or the tables made from them; where those of a figure are not there, from the CSV
that was saved beside it.
"""

import argparse
import sys
import time
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.paper.catalogue import FIGURES, KINDS, file_of, kind_of
from mpmtl.paper.figures.command import redraw


def collected(results):
    """Kind, path without suffix and table of each figure whose runs are there."""
    folder = results / "figures"
    for file, figure in {file_of(f.kind, f.values): f for f in FIGURES}.items():
        kind = KINDS[figure.kind]
        try:
            yield kind, folder / file, kind.collect(results, **figure.values)
        except ResultsError:  # not all of its runs
            continue


def main():
    parser = argparse.ArgumentParser(description="Draw all figures of a results folder.")
    parser.add_argument("results", nargs="?", default="results/reference", help="results folder")
    results = Path(parser.parse_args().results)
    started, failures, drawn = time.perf_counter(), 0, []
    for kind, path, table in collected(results):
        kind.draw(table, path)
        drawn.append(path)
        print(f"{path}.png, .pdf and .csv, from the runs")
    for path in sorted((results / "figures").glob("*.csv")):
        if path.with_suffix("") in drawn or not kind_of(path.stem):
            continue
        try:
            redraw(kind_of(path.stem).draw, path, path.with_suffix(""))
            drawn.append(path.with_suffix(""))
            print(f"{path.with_suffix('')}.png and .pdf, from its own table")
        except ResultsError as error:
            failures += 1
            print(f"error: {error}", file=sys.stderr)
    n = len(drawn) + failures
    if not n:
        print(f"error: no figure can be drawn from {results}", file=sys.stderr)
        sys.exit(2)
    print(f"{len(drawn)} of {n} figures in {time.perf_counter() - started:.0f} s")
    sys.exit(2 if failures else 0)


if __name__ == "__main__":
    main()

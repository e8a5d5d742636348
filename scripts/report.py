"""One page about a results folder: python scripts/report.py results/reference."""

import argparse
from pathlib import Path

from mpmtl.errors import exit_in_one_line
from mpmtl.experiments.store import write_atomic
from mpmtl.paper.report import page


def main():
    parser = argparse.ArgumentParser(description="One page about a results folder: report.html.")
    parser.add_argument("results", nargs="?", default="results/reference", help="results folder")
    results = Path(parser.parse_args().results)
    with exit_in_one_line():
        text = page(results)
    write_atomic(results / "report.html", text)
    print(f"{results / 'report.html'}, {len(text) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""Draw accuracy over epsilon: python scripts/plot_privacy_accuracy.py low_rank [--results results].

Reads every run of the data set below the results folder and writes PNG, PDF and CSV.
"""

import argparse
import sys
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.figures.privacy_accuracy import draw


def main():
    parser = argparse.ArgumentParser(description="Draw accuracy over epsilon.")
    parser.add_argument("dataset", help="name of the data set, as in the results folder")
    parser.add_argument("--results", default="results", help="results folder (results)")
    parser.add_argument("--methods", nargs="+", help="methods to draw; default: all")
    parser.add_argument("--out", help="figure without suffix; default <results>/<dataset>/accuracy")
    options = parser.parse_args()
    out = Path(options.out or Path(options.results) / options.dataset / "accuracy")
    try:
        draw(options.results, options.dataset, out, options.methods)
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{out}.png, .pdf and .csv")


if __name__ == "__main__":
    main()

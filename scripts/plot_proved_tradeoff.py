"""Compare methods over the same replicates: python scripts/plot_proved_tradeoff.py results.

Prints mean and sd, the share of the gap between separate tasks and the best method without noise
that is recovered, and a paired test against a reference method; draws accuracy over epsilon.
"""

import argparse
import sys
from pathlib import Path

from mpmtl.comparison import compare, read_replicates
from mpmtl.errors import InputError
from mpmtl.figures.proved_tradeoff import draw_tradeoff


def main():
    parser = argparse.ArgumentParser(description="Compare methods over the same replicates.")
    parser.add_argument("results_dir", help="folder of runs, such as results")
    parser.add_argument("--reference", default="fl", help="method of the paired tests")
    parser.add_argument("--out", type=Path, help="figure to draw, without suffix")
    options = parser.parse_args()
    try:
        table = compare(read_replicates(options.results_dir), options.reference)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(table.round(4).to_string(index=False, na_rep="-"))
    draw_tradeoff(table, options.out or Path(options.results_dir) / "proved_tradeoff")


if __name__ == "__main__":
    main()

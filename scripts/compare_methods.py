"""Table of methods over the same replicates: python scripts/compare_methods.py results/laptop.

Mean and sd, share of the gap between separate tasks and the best method without noise that is
recovered, paired test against a reference method. Prints the table; --out writes it as CSV.
"""

import argparse

from mpmtl.comparison import compare, read_replicates


def main():
    parser = argparse.ArgumentParser(description="Compare methods over the same replicates.")
    parser.add_argument("results_dir")
    parser.add_argument("--reference", default="fl", help="method of the paired tests")
    parser.add_argument("--out", help="CSV file to write")
    options = parser.parse_args()
    table = compare(read_replicates(options.results_dir), options.reference)
    print(table.round(4).to_string(index=False, na_rep="-"))
    if options.out:
        table.to_csv(options.out, index=False)


if __name__ == "__main__":
    main()

"""The paper's utility bounds: python scripts/utility_bounds.py [--results results].

Prints Table 2 recomputed, the optimal alpha and Q of the bounds beside the stated ones, Claim 3
and the bounds at the experiments' sizes; writes the optima to <results>/utility_bounds.csv.
"""

import argparse
from pathlib import Path

from mpmtl.paper.utility import claim_3, optima, sizes, table_2


def main():
    parser = argparse.ArgumentParser(description="Tables of the paper's utility bounds.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the CSV")
    parser.add_argument("--mu-over-L", type=float, nargs="+", default=[0.1, 0.001])
    parser.add_argument("--M", type=float, nargs="+", default=[1e-6, 0.001, 1.0, 644.0])
    parser.add_argument("--d", type=int, default=30)
    parser.add_argument("--m", type=int, default=320)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--K", type=float, default=1.0, help="norm bound of the models")
    options = parser.parse_args()

    def show(title, table):
        text = table.to_string(index=False, float_format=lambda value: f"{value:.4g}")
        print(f"{title}\n{text}\n")

    show("Table 2: exponents, printed and recomputed (mu/L = 0: convex)", table_2())
    table = optima(options.mu_over_L, options.M)
    show("Optimal alpha (convex) and Q, stated and numerical", table)
    claim = claim_3([*options.mu_over_L, 0.3819, 0.382])
    show("Claim 3: fewer rounds with acceleration for noise levels below M", claim)
    ranks = {"lr": 5, "gs": 4}  # of the models of low_rank and group_sparse
    table_of_sizes = sizes(options.d, options.m, options.epsilon, ranks, options.K)
    show("Convex bounds over K^2 L at the stated optimum, and the tasks they need", table_of_sizes)
    options.results.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.results / "utility_bounds.csv", index=False)
    print(options.results / "utility_bounds.csv")


if __name__ == "__main__":
    main()

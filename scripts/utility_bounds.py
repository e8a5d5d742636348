"""The paper's utility bounds: python scripts/utility_bounds.py [--results results].

Prints Table 2 recomputed, the optimal alpha and Q of the bounds beside the stated ones, Claim 3
and the bounds at the experiments' sizes; writes the optima to <results>/utility_bounds.csv.
"""

from mpmtl.paper.entry import bounds

if __name__ == "__main__":
    bounds()

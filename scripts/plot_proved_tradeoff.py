"""Compare methods over the same replicates: python scripts/plot_proved_tradeoff.py [--results R].

Prints mean and sd, the share of the gap between separate tasks and the best method without noise
that is recovered, and a paired test against a reference method; draws accuracy over epsilon.
"""

from mpmtl.paper.entry import figure


def show_table(table):
    print(table.round(4).to_string(index=False, na_rep="-"))


if __name__ == "__main__":
    reference = {"default": "fl", "help": "method of the paired tests (fl)"}
    figure(__doc__, "proved_tradeoff", show_table, reference=reference)

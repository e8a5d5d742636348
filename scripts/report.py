"""One page about a results folder: python scripts/report.py results/reference."""

from mpmtl.paper.entry import report

if __name__ == "__main__":
    report()

"""Draw all figures of a results folder: python scripts/redraw_figures.py RESULTS.

From its runs, or the tables made from them; where those of a figure are not there, from the CSV
that was saved beside it.
"""

from mpmtl.paper.entry import figures

if __name__ == "__main__":
    figures()

"""Draw Fig. 8: python scripts/plot_task_number.py [--results results]."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(__doc__, "task_number")

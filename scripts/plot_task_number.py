"""Draw Fig. 8: python scripts/plot_task_number.py [--results results]."""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(__doc__, "task_number")

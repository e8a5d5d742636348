"""Draw Fig. 8: python scripts/plot_task_number.py [--results results]."""

from mpmtl.figures.command import main
from mpmtl.figures.task_number import collect, draw

if __name__ == "__main__":
    main(__doc__, collect, draw, "task_number")

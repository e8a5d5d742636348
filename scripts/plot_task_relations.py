"""Draw Fig. 3: python scripts/plot_task_relations.py [--results results]."""

from mpmtl.figures.command import main
from mpmtl.figures.matrices import collect_relations, draw

if __name__ == "__main__":
    main(__doc__, collect_relations, draw, "task_relations")

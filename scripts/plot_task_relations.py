"""Draw Fig. 3: python scripts/plot_task_relations.py [--results results]."""

from mpmtl.figures.command import main
from mpmtl.figures.matrices import draw_relations

if __name__ == "__main__":
    main(__doc__, draw_relations, "task_relations")

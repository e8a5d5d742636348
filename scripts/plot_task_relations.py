"""Draw Fig. 3: python scripts/plot_task_relations.py [--results results]."""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(__doc__, "task_relations")

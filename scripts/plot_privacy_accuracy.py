"""Draw accuracy over epsilon: python scripts/plot_privacy_accuracy.py low_rank [--results R]."""

from mpmtl.figures.command import main
from mpmtl.figures.privacy_accuracy import collect, draw

if __name__ == "__main__":
    main(
        __doc__,
        collect,
        draw,
        lambda dataset, methods: f"privacy_accuracy_{dataset}",
        dataset={"nargs": "?", "default": "low_rank", "help": "name of the data set (low_rank)"},
        methods={"nargs": "*", "help": "methods to draw, as lr or lr/wishart; default: all"},
    )

"""Draw Fig. S1 or S2: python scripts/plot_training_percentage.py school|lsoa2."""

from mpmtl.figures.command import main
from mpmtl.figures.training_percentage import collect, draw

if __name__ == "__main__":
    main(
        __doc__,
        collect,
        draw,
        lambda dataset: f"training_percentage_{dataset}",
        dataset={
            "nargs": "?",
            "default": "school",
            "choices": ["school", "lsoa2"],
            "help": "data set",
        },
    )

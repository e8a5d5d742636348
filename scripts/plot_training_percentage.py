"""Draw Fig. S1 or S2: python scripts/plot_training_percentage.py school|lsoa2."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(
        __doc__,
        "training_percentage",
        dataset={
            "nargs": "?",
            "default": "school",
            "choices": ["school", "lsoa2"],
            "help": "data set",
        },
    )

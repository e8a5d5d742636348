"""Draw accuracy over epsilon: python scripts/plot_privacy_accuracy.py low_rank [--results R]."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(
        __doc__,
        "privacy_accuracy",
        dataset={"nargs": "?", "default": "low_rank", "help": "name of the data set (low_rank)"},
        methods={"nargs": "*", "help": "methods to draw, as lr or lr/wishart; default: all"},
    )

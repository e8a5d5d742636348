"""Draw Fig. 2: python scripts/plot_model_leakage.py [--results results]."""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(__doc__, "model_leakage")

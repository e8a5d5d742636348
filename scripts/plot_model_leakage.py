"""Draw Fig. 2: python scripts/plot_model_leakage.py [--results results]."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(__doc__, "model_leakage")

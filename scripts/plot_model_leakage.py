"""Draw Fig. 2: python scripts/plot_model_leakage.py [--results results]."""

from mpmtl.figures.command import main
from mpmtl.figures.matrices import collect_leakage, draw

if __name__ == "__main__":
    main(__doc__, collect_leakage, draw, "model_leakage")

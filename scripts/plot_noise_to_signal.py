"""Draw Fig. 5: python scripts/plot_noise_to_signal.py [--results results]."""

from mpmtl.figures.command import main
from mpmtl.figures.noise_to_signal import collect, draw

if __name__ == "__main__":
    main(__doc__, collect, draw, "noise_to_signal")

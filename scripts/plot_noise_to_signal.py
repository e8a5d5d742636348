"""Draw Fig. 5: python scripts/plot_noise_to_signal.py [--results results]."""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(__doc__, "noise_to_signal")

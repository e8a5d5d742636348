"""Draw Fig. 5: python scripts/plot_noise_to_signal.py [--results results]."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(__doc__, "noise_to_signal")

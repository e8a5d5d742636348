"""Fetch the real data sets: python scripts/fetch_data.py [--data-dir data]."""

from mpmtl.experiments.entry import data

if __name__ == "__main__":
    data()

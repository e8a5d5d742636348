"""Experiments: configs, runs, tuning, results folders and the terminal."""

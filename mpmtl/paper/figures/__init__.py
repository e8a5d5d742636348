"""Figures: each is drawn from a table that is saved beside it."""

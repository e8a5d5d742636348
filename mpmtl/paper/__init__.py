"""The paper: its figures, its statements, and what is measured of them."""

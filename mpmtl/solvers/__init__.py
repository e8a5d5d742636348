"""Solvers: batched proximal rounds (Algorithms 2 and 3) and separate tasks."""

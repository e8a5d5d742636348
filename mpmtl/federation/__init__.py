"""Owners apart: the same fit with the curator and every owner in a process of its own."""

"""Budgets, their composition over rounds, and the mechanisms with what each one gives."""

"""Measurements: what Steno costs and how well it counts."""

"""Benchmarks: what Steno costs and how well it counts. Run from a checkout; not installed."""

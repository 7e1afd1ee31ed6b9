"""Mutants: whether the tests notice a small change of the code. `python -m lab.benchmarks.mutants`."""

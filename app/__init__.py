"""Steno: a proxy that keeps long conversations inside the model's context window."""

__version__ = "0.1.0"

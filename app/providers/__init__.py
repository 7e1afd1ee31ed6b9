"""Upstreams: connections, windows, calibrations of token counts, prices, and records of calls."""

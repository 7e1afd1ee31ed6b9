"""Metrics: numbers that Steno counts, added up over all its processes, in Prometheus' text format (docs/metrics.md)."""

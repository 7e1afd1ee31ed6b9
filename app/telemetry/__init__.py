"""Telemetry: metrics of all processes (docs/metrics.md), and traces (docs/traces.md)."""

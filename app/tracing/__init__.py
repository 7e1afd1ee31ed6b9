"""Tracing: each chat request and each summary call as a span, where the operator wants traces (docs/traces.md)."""

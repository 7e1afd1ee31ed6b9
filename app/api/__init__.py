"""Steno's own REST interface under `/context`, health checks and MCP. The JSON format is Steno's own."""

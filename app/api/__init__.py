"""Steno's own REST interface under `/context`, health checks and MCP. Its JSON is not in a provider's format."""

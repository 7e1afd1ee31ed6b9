"""REST interface under `/context`, health checks and MCP. Their JSON format is Steno's own."""

"""Proxy: a request's way through gate, exchange, intake, forwarding, relaying, learning; the passthrough beside it."""

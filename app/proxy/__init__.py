"""The way of one request: gate, exchange, intake, forwarding, relaying, learning; the passthrough beside it."""

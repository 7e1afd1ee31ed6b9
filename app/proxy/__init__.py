"""Proxy: chat requests pass router, endpoint, request, recovery and reply; all other requests pass passthrough."""

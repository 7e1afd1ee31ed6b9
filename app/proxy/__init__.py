"""Proxy: chat requests pass router, endpoint, request, recovery and reply, other requests only some of them."""

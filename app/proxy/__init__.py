"""Proxy: a request's way from the router through endpoint, request, recovery and reply; the passthrough beside it."""

"""Proxy: the path of a request through router, endpoint, request, recovery and reply. Some requests skip steps."""

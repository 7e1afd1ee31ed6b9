"""Proxy: a request passes the modules `router`, `endpoint`, `request`, `recovery` and `reply`, or some of them."""

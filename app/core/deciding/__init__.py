"""Deciding: what is sent for a request, as a generator of effects that a driver acts on or imagines."""

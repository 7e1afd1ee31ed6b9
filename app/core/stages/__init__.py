"""Stages: each does one thing to a view, and the ladder goes through them."""

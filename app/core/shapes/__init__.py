"""Shapes: what a tool's result looks like, and what of it says most in a few hundred characters."""

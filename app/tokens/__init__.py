"""Tokens of a prompt by our estimate and by the provider, and what they cost."""

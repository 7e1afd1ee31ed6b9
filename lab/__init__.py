"""Steno's lab: a provider that is scripted and strict, recorded conversations and a judge, benchmarks.

Tools to try and measure Steno. They use `app`, which never imports them.
"""

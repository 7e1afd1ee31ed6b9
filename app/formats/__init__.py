"""Conversion between providers' JSON and Steno's messages, and the reading and writing of raw JSON and events."""

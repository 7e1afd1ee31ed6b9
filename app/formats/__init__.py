"""Conversion between providers' JSON and Steno's messages, with readers and writers of raw JSON and events."""

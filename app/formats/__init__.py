"""Conversion between providers' JSON and Steno's messages, and readers and writers of raw JSON and events."""

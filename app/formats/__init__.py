"""Conversion between providers' JSON and Steno's messages. Its modules also read and write raw JSON and events."""

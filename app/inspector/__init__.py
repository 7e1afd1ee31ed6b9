"""The inspector: Steno's own web pages, rendered on the server from stored data."""

"""The inspector: Steno's own pages, made on the server from what is stored. They change nothing of a request."""

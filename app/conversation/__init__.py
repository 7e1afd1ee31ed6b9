"""Messages of a conversation: text, authorship and digests. Without I/O, and below all other packages."""

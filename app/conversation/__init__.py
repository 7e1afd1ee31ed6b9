"""Messages of a conversation: text, authorship and digests. No I/O, and no imports of other packages of Steno."""

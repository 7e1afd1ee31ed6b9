"""Messages of a conversation: their text, whose words it is, and their digests. Pure, and below all other packages."""

"""Messages as core sees them, who they are (digests), and which conversation they continue."""

"""What of the messages that a view leaves out the current message is about, and how it is quoted."""

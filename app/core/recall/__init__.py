"""Recall: messages that a view leaves out and the current message is about, and how they are quoted."""

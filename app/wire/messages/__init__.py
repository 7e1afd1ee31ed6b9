"""Messages, Anthropic's API for conversations."""

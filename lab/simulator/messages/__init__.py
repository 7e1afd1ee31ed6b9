"""Messages, as Anthropic serves it."""

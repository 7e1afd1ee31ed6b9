"""Messages, Anthropic's API for conversations, which Claude Code speaks and some other providers too."""

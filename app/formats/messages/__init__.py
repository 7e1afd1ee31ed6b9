"""Messages, Anthropic's API for conversations. Claude Code calls this API, and some other providers offer it."""

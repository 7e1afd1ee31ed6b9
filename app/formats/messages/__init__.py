"""Messages, Anthropic's API for conversations. Claude Code and some other providers use it, too."""

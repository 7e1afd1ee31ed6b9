"""Chat Completions, OpenAI's first API for conversations. Most other providers offer it, too."""

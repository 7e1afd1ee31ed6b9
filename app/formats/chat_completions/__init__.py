"""Chat Completions, OpenAI's first API for conversations, which most other providers speak too."""

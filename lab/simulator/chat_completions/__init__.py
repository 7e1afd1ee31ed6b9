"""Chat Completions, as OpenAI serves it."""

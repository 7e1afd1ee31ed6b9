"""Responses, as OpenAI serves it."""

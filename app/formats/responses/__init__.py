"""Responses, OpenAI's second API for conversations."""

"""Gemini's `generateContent`, Google's API for conversations."""

"""Replay: recorded conversations, turn by turn through the official SDK, and a judge of what the provider received."""

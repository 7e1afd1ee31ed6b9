"""Usage: what a provider says a prompt cost."""

from __future__ import annotations

from app.core.budget import MOST_TOKENS

CACHE_PARTS = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's own counts: tokens beside `input_tokens`, not among them."""


def prompt_tokens(usage: object) -> int | None:
    """All tokens of the prompt, cached ones too; None where the usage does not say so clearly.

    OpenAI's `prompt_tokens` includes what came from a cache. Anthropic's `input_tokens` does not: its cache parts are
    added. Where both shapes are mixed nobody knows which holds, so nothing is read from it, nor where the sum is beyond
    all prompts.
    """
    if not isinstance(usage, dict):
        return None
    cached = sum(_count(usage.get(part)) for part in CACHE_PARTS)
    if "prompt_tokens" in usage:
        tokens = 0 if cached else _count(usage["prompt_tokens"])
    else:
        tokens = _count(usage.get("input_tokens")) + cached
    return tokens if 0 < tokens <= MOST_TOKENS else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

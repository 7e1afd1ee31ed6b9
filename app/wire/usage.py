"""Usage: what a provider says a call took, in the shapes that are seen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from app.core.limits.budget import MOST_TOKENS
from app.core.tokens.usage import Tokens
from app.core.values import value

Members = dict[Any, Any]

CACHE_PARTS = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's own counts: tokens beside `input_tokens`, not among them."""
CACHED = ("prompt_cache_hit_tokens", CACHE_PARTS[0])
WRITTEN = (CACHE_PARTS[1],)
COMPLETION = ("completion_tokens", "output_tokens")
INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
CACHED_DETAILS = ("cached_tokens",)
WRITTEN_DETAILS = ("cache_write_tokens", "cache_creation_tokens")
"""What was written to the cache, among the details of the input: OpenAI's and OpenRouter's name, and LiteLLM's."""
OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
REASONING = ("reasoning_tokens",)
_WINDOW_FULL = re.compile(r"context\w*(exceed|overflow|limit|reached|full)|model_length$", re.IGNORECASE)
"""Bedrock and Anthropic, Mistral. What OpenAI calls `length` may be the caller's own bound."""
LONGEST_USAGE = 64 << 10
"""Bytes that are read of what an answer says of its tokens."""
LONGEST_REASON = 100
"""Characters of a reason to finish that are read."""


@value
class Usage:
    """What an answer said of the tokens it cost."""

    tokens: Tokens
    """All that was said, for the ledger."""
    prompt: int | None
    """The whole prompt, where that is said clearly: nothing else is learnt from."""


def usage_of(said: object) -> Usage | None:
    """None where nothing was said. Where the model read several prompts for one answer, none of them is the one that
    was sent: nothing is learnt from them."""
    if not said:
        return None
    prompt = prompt_tokens(said)
    if not isinstance(said, dict) or "iterations" not in said:
        return Usage(_read(said, prompt), prompt)
    calls = _iterations(said)
    if any(call.get("type") == "compaction" for call in calls):
        # What it says of the whole is the last call's alone.
        return Usage(_sum([read_usage(call) for call in calls]), None)
    return Usage(_read(said, prompt), prompt if len(calls) <= 1 else None)


def _iterations(said: Members) -> list[Members]:
    """The calls that the provider made of one."""
    calls = said["iterations"]
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _sum(calls: Iterable[Tokens]) -> Tokens:
    """Of what each reports; what none of them does is not known of all."""
    reported = {
        name: [n for call in calls if (n := getattr(call, name)) is not None] for name in Tokens.__annotations__
    }
    return Tokens(**{name: sum(numbers) if numbers else None for name, numbers in reported.items()})


def says_window_full(finish: object) -> bool:
    """Whether an answer that finished for this reason was cut off by the model's window."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and _WINDOW_FULL.search(finish) is not None


def read_usage(usage: object) -> Tokens:
    """What the provider reported, for the ledger: nothing that it did not say, and nothing that cannot be.

    Beside `prompt_tokens` the cache parts of another shape are among them, unless they are more than there is room for.
    """
    return _read(usage, prompt_tokens(usage))


def _read(usage: object, prompt: int | None) -> Tokens:
    """`prompt`: where that is said clearly."""
    if not isinstance(usage, dict):
        return Tokens()
    if prompt is None and (reported := _told(usage.get("prompt_tokens"))) is not None:
        parts = sum(_count(usage.get(part)) for part in CACHE_PARTS)
        prompt = _told(reported + parts if parts > reported else reported)
    inputs, outputs, itself = _details(usage, INPUT_DETAILS), _details(usage, OUTPUT_DETAILS), (usage,)
    cached = _first(inputs, CACHED_DETAILS)
    if cached is None:
        cached = _first(itself, CACHED)
    written = _first(inputs, WRITTEN_DETAILS)
    if written is None:
        written = _first(itself, WRITTEN)
    if written is None and "cache_creation" in usage:
        written = _written_by_age(usage["cache_creation"])
    cached = _part_of(prompt, cached)
    written = _part_of(None if prompt is None else prompt - (cached or 0), written)
    return Tokens(prompt, _first(itself, COMPLETION), cached, _first(outputs, REASONING), written)


def prompt_tokens(usage: object) -> int | None:
    """All tokens of the prompt, cached ones too; None where the usage does not say so clearly.

    OpenAI's `prompt_tokens` includes what came from a cache. Anthropic's `input_tokens` does not: its cache parts are
    added. Where both shapes are mixed nobody knows which holds, so nothing is read from it, nor where the sum is beyond
    all prompts.
    """
    if not isinstance(usage, dict):
        return None
    cached = 0
    for part in CACHE_PARTS:
        if part in usage:
            cached += _count(usage[part])
    if "prompt_tokens" in usage:
        tokens = 0 if cached else _count(usage["prompt_tokens"])
    else:
        tokens = _count(usage.get("input_tokens")) + cached
    return tokens if 0 < tokens <= MOST_TOKENS else None


def _part_of(whole: int | None, part: int | None) -> int | None:
    """None where there is no room for it: then nobody knows what it is a part of."""
    return None if whole is None or part is None or part > whole else part


def _written_by_age(parts: object) -> int | None:
    """Anthropic's writes, separated by how long they are kept."""
    numbers = [_told(value) for value in parts.values()] if isinstance(parts, dict) else []
    return sum(number or 0 for number in numbers) if numbers else None


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _details(usage: Members, places: tuple[str, ...]) -> tuple[Members, ...]:
    details: tuple[Members, ...] = ()
    for place in places:
        if isinstance(detail := usage.get(place), dict):
            details = (*details, detail)
    return details


def _told(value: object) -> int | None:
    """A number of tokens, 0 too."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def _first(members: Iterable[Members], names: tuple[str, ...]) -> int | None:
    """The first number of tokens that is given in some members, the first name first."""
    for name in names:
        for said in members:
            number = said.get(name)
            if type(number) is int and 0 <= number <= MOST_TOKENS:
                return number
    return None

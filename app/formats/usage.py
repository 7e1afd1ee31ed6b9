"""Usage: what a provider says a call took, in the shapes that are seen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from app.formats.raw_json import RawObject, objects_in
from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import MOST_TOKENS, UNBILLED, Bill, Tokens

Members = dict[Any, Any]

CACHE_PARTS = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's own counts: tokens beside `input_tokens`, not among them."""
CACHED = ("prompt_cache_hit_tokens", CACHE_PARTS[0], "cached_tokens")
WRITTEN = (CACHE_PARTS[1],)
COMPLETION = ("completion_tokens", "output_tokens")
INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
CACHED_DETAILS = ("cached_tokens",)
WRITTEN_DETAILS = ("cache_write_tokens", "cache_creation_tokens")
"""Names of the tokens written to the cache, among the details of the input: OpenAI's and OpenRouter's name, and
LiteLLM's."""
OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
REASONING = ("reasoning_tokens", "thinking_tokens")
SOUND = ("audio_tokens",)
_THINKS_BESIDE = re.compile(r"gemini", re.IGNORECASE)
"""Models whose thoughts are in the total alone, where nothing else says how many they are."""
_WINDOW_FULL = re.compile(r"context\w*(exceed|overflow|limit|reached|full)|model_length$", re.IGNORECASE)
"""Bedrock and Anthropic, Mistral. What OpenAI calls `length` may be the caller's own bound."""
LONGEST_USAGE = 64 << 10
"""Bytes that are read of what an answer says of its tokens."""
LONGEST_REASON = 100
"""Characters of a reason to finish that are read."""
LONGEST_WORD = 64
"""Characters of what an answer calls its service tier or its region."""
TICKS = 10_000_000_000
"""Ticks in a US dollar, as xAI counts."""
MOST_CHARGED = 1_000_000.0
"""US dollars; what is more is no bill of one call."""


class Usage(Struct, frozen=True):
    """Tokens and price of an answer, as it gave them."""

    tokens: Tokens
    """Tokens as they were given, for the ledger."""
    prompt: int | None
    """The whole prompt, where that is said clearly: nothing else is learnt from."""
    bill: Bill = UNBILLED


def usage_of(said: object, model: str = "", tier: str = "", searches: int = 0) -> Usage | None:
    """The usage in an answer; None where it says nothing of its tokens.

    Where the model read several prompts for one answer, none of them is the one that was sent: nothing is learnt then.
    `model`, `tier` and `searches` are what the answer says beside its usage.
    """
    if not said:
        return None
    prompt, bill = prompt_tokens(said), bill_of(said, model, tier, searches)
    if not isinstance(said, dict) or "iterations" not in said:
        return Usage(_read(said, prompt, model), prompt, bill)
    calls = _iterations(said)
    if any(call.get("type") == "compaction" for call in calls):
        # What it says of the whole is the last call's alone.
        return Usage(_sum([read_usage(call) for call in calls]), None, bill)
    return Usage(_read(said, prompt, model), prompt if len(calls) <= 1 else None, bill)


def bill_of(usage: object, model: str = "", tier: str = "", searches: int = 0) -> Bill:
    """The price in an answer, beside its tokens."""
    said = usage if isinstance(usage, dict) else {}
    searched = said.get("server_tool_use")
    searches += _told(searched.get("web_search_requests")) or 0 if isinstance(searched, dict) else 0
    tier = "fast" if said.get("speed") == "fast" else _word(said.get("service_tier")) or _word(tier)
    return Bill(model[:LONGEST_MODEL], tier, _word(said.get("inference_geo")), searches, _charged(said))


def text_of(answer: RawObject, name: str) -> str:
    """A short text among an answer's members; empty where it has none."""
    text = answer.value(name) if 0 < len(answer.raw(name) or b"") <= 2 * LONGEST_MODEL else None
    return text if isinstance(text, str) else ""


def _word(said: object) -> str:
    return said.lower() if isinstance(said, str) and len(said) <= LONGEST_WORD else ""


def _charged(usage: Members) -> float | None:
    """The provider's charge, in US dollars. With a key of the caller's own at another provider that is not all: what
    that one charged is added, and where it is not said nobody knows the sum."""
    if (ticks := _amount(usage.get("cost_in_usd_ticks"), MOST_CHARGED * TICKS)) is not None:
        return ticks / TICKS
    cost = usage.get("cost", usage.get("estimated_cost"))
    cost = _amount(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if cost is None:
        return None
    details, own_key = usage.get("cost_details"), usage.get("is_byok")
    upstream = _amount(details.get("upstream_inference_cost")) if isinstance(details, dict) else None
    if own_key is None:
        own_key = upstream is not None and upstream > cost
    if not own_key:
        return cost
    return None if upstream is None else cost + upstream


def _amount(said: object, most: float = MOST_CHARGED) -> float | None:
    """A number that can be one of money, also where it is written as text."""
    try:
        amount = float(said) if type(said) in (int, float, str) and len(str(said)) <= LONGEST_WORD else -1.0  # type: ignore[arg-type]
    except ValueError:
        return None
    return amount if 0 <= amount <= most else None


def _iterations(said: Members) -> list[Members]:
    """The calls that the provider made of one."""
    return objects_in(said["iterations"])


def _sum(calls: Iterable[Tokens]) -> Tokens:
    """Sum of what each reports; a number that none of them reports is not known."""
    reported = {
        name: [n for call in calls if (n := getattr(call, name)) is not None] for name in Tokens.__annotations__
    }
    return Tokens(**{name: sum(numbers) if numbers else None for name, numbers in reported.items()})


def says_window_full(finish: object) -> bool:
    """Whether an answer that finished for this reason was cut off by the model's window."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and _WINDOW_FULL.search(finish) is not None


def read_usage(usage: object, model: str = "") -> Tokens:
    """Tokens that the provider reported, for the ledger: nothing that it did not say, and nothing that cannot be.

    Beside `prompt_tokens` the cache parts of another shape are among them, unless they are more than there is room for.
    """
    return _read(usage, prompt_tokens(usage), model)


def _read(usage: object, prompt: int | None, model: str = "") -> Tokens:
    """`prompt`: where that is said clearly; `model`: the one that answered."""
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
    completion, reasoning = _with_reasoning(
        prompt, _first(itself, COMPLETION), _first((*outputs, *itself), REASONING), usage.get("total_tokens"), model
    )
    sound = None if prompt is None else prompt - (cached or 0) - (written or 0)
    return Tokens(
        prompt,
        completion,
        cached,
        reasoning,
        written,
        # Nearly every answer says that these are 0, and few that they are not.
        _part_of(written, _kept_for_an_hour(usage.get("cache_creation"))) or None,
        _part_of(sound, _first(inputs, SOUND)) or None,
        _part_of(completion, _first(outputs, SOUND)) or None,
    )


def _with_reasoning(
    prompt: int | None, completion: int | None, reasoning: int | None, total: object, model: str
) -> tuple[int | None, int | None]:
    """The completion with the tokens of its reasoning, and those. Some providers tell it without them: then they are
    more than it, or the total is the sum of all three."""
    if completion is None:
        return None, reasoning
    rest = total - prompt - completion if type(total) is int and prompt is not None else 0
    if reasoning:
        beside = reasoning > completion or rest == reasoning
        return (completion + reasoning if beside else completion), reasoning
    if reasoning is None and 0 < rest <= MOST_TOKENS and _THINKS_BESIDE.search(model):
        return completion + rest, rest
    return completion, reasoning


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


def _kept_for_an_hour(parts: object) -> int | None:
    return _told(parts.get("ephemeral_1h_input_tokens")) if isinstance(parts, dict) else None


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

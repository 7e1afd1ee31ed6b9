"""Usage: what a provider says a call took, in the shapes that are seen.

`MEMBERS` has the names; a new or a renamed one goes there. Nothing is read that cannot be: a part larger than its whole
is not known, nor a number beyond all prompts.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from app.formats.raw_json import RawObject, as_text, object_of, objects_in
from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import MOST_TOKENS, UNBILLED, Bill, Tokens

CACHE_PARTS = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's own counts: tokens beside `input_tokens`, not among them."""
_INPUT, _OUTPUT = (
    ("prompt_tokens_details", "input_tokens_details"),
    ("completion_tokens_details", "output_tokens_details"),
)
MEMBERS: dict[str, tuple[tuple[str, str], ...]] = {
    "prompt": (("", "prompt_tokens"), ("", "promptTokenCount")),
    "completion": (("", "completion_tokens"), ("", "output_tokens"), ("", "candidatesTokenCount")),
    "cached": (
        ("", "cachedContentTokenCount"),
        *((details, "cached_tokens") for details in _INPUT),
        *(("", name) for name in ("prompt_cache_hit_tokens", CACHE_PARTS[0], "cached_tokens")),
    ),
    # OpenAI's and OpenRouter's name, LiteLLM's, Anthropic's.
    "written": (
        *((details, name) for name in ("cache_write_tokens", "cache_creation_tokens") for details in _INPUT),
        ("", CACHE_PARTS[1]),
    ),
    "written_hour": (("cache_creation", "ephemeral_1h_input_tokens"),),
    "reasoning": (
        *((details, name) for name in ("reasoning_tokens", "thinking_tokens") for details in (*_OUTPUT, "")),
        ("", "thoughtsTokenCount"),
    ),
    "audio": tuple((details, "audio_tokens") for details in _INPUT),
    "speech": tuple((details, "audio_tokens") for details in _OUTPUT),
    "searches": (("server_tool_use", "web_search_requests"),),
}
"""Members that may hold each number, with the object that they stand in; the first that is given counts."""
_THINKS_BESIDE = re.compile(r"gemini", re.IGNORECASE)
"""Models whose thoughts are in the total alone, where nothing else says how many they are."""
_WINDOW_FULL = re.compile(r"context\w*(exceed|overflow|limit|reached|full)|model_length$", re.IGNORECASE)
"""Bedrock and Anthropic, Mistral. What OpenAI calls `length` may be the caller's own bound."""
LONGEST_USAGE = 64 << 10
LONGEST_REASON = 100
LONGEST_WORD = 64
"""Characters of what an answer calls its service tier or its region."""
TICKS = 10_000_000_000
MOST_CHARGED = 1_000_000.0
"""US dollars; what is more is no bill of one call."""


class Usage(Struct, frozen=True):
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
    calls = objects_in(object_of(said).get("iterations"))
    prompt = prompt_tokens(said) if len(calls) <= 1 else None
    tokens = read_usage(said, model)
    if any(call.get("type") == "compaction" for call in calls):
        # What it says of the whole is the last call's alone; a number that no call reports is not known.
        prompt, each = None, [read_usage(call) for call in calls]
        reported = {
            name: [n for call in each if (n := getattr(call, name)) is not None] for name in Tokens.__annotations__
        }
        tokens = Tokens(**{name: sum(numbers) if numbers else None for name, numbers in reported.items()})
    return Usage(tokens, prompt, bill_of(said, model, tier, searches))


def bill_of(usage: object, model: str = "", tier: str = "", searches: int = 0) -> Bill:
    """The price in an answer, beside its tokens.

    With a key of the caller's own at another provider the charge is not all: what that one charged is added, and where
    it is not given the sum is unknown.
    """
    said = object_of(usage)
    cost = said.get("cost", said.get("estimated_cost"))
    cost = _amount(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if (ticks := _amount(said.get("cost_in_usd_ticks"), MOST_CHARGED * TICKS)) is not None:
        cost = ticks / TICKS
    elif cost is not None:
        upstream = _amount(object_of(said.get("cost_details")).get("upstream_inference_cost"))
        own_key = said.get("is_byok")
        if own_key is None:
            own_key = upstream is not None and upstream > cost
        if own_key:
            cost = None if upstream is None else cost + upstream
    words = (as_text(said.get("service_tier")), tier, as_text(said.get("inference_geo")))
    given, beside, region = (word.lower() if len(word) <= LONGEST_WORD else "" for word in words)
    tier = "fast" if said.get("speed") == "fast" else given or beside
    return Bill(model[:LONGEST_MODEL], tier, region, searches + (_number(said, "searches") or 0), cost)


def _amount(said: object, most: float = MOST_CHARGED) -> float | None:
    """A number that can be one of money, also where it is written as text."""
    try:
        amount = float(said) if type(said) in (int, float, str) and len(str(said)) <= LONGEST_WORD else -1.0  # type: ignore[arg-type]
    except ValueError:
        return None
    return amount if 0 <= amount <= most else None


def text_of(answer: RawObject, name: str) -> str:
    """A short text among an answer's members; empty where it has none."""
    return as_text(answer.value(name)) if len(answer.raw(name) or b"") <= 2 * LONGEST_MODEL else ""


def says_window_full(finish: object) -> bool:
    """Whether an answer that finished for this reason was cut off by the model's window."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and _WINDOW_FULL.search(finish) is not None


def read_usage(usage: object, model: str = "") -> Tokens:
    """Tokens that the provider reported, for the ledger: nothing that it did not say, and nothing that cannot be.

    Beside `prompt_tokens` the cache parts of another shape are among them, unless they are more than there is room for.
    Some providers tell the completion without its reasoning: then that is more than it, or the total is the sum of all
    three. `model`: the one that answered.
    """
    if not isinstance(usage, dict):
        return Tokens()
    prompt = prompt_tokens(usage)
    if prompt is None and (reported := _number(usage, "prompt")) is not None:
        parts = sum(_count(usage.get(part)) for part in CACHE_PARTS)
        prompt = reported + parts if parts > reported else reported
        prompt = prompt if prompt <= MOST_TOKENS else None
    cached = _part_of(prompt, _number(usage, "cached"))
    written = _number(usage, "written")
    if written is None and (ages := object_of(usage.get("cache_creation"))):
        written = sum(number for number in map(_count, ages.values()) if number <= MOST_TOKENS)
    written = _part_of(None if prompt is None else prompt - (cached or 0), written)
    completion, reasoning = _number(usage, "completion"), _number(usage, "reasoning")
    if completion is None and "promptTokenCount" in usage:  # Google leaves out what is zero.
        completion = 0
    if "thoughtsTokenCount" in usage and completion is not None:
        completion += reasoning or 0
    elif completion is not None:
        total = usage.get("total_tokens")
        rest = total - prompt - completion if type(total) is int and prompt is not None else 0
        if reasoning and (reasoning > completion or rest == reasoning):
            completion += reasoning
        elif reasoning is None and 0 < rest <= MOST_TOKENS and _THINKS_BESIDE.search(model):
            completion, reasoning = completion + rest, rest
    return Tokens(
        prompt,
        completion,
        cached,
        reasoning,
        written,
        # Nearly every answer says that these are 0, and few that they are not.
        _part_of(written, _number(usage, "written_hour")) or None,
        _part_of(None if prompt is None else prompt - (cached or 0) - (written or 0), _number(usage, "audio")) or None,
        _part_of(completion, _number(usage, "speech")) or None,
    )


def prompt_tokens(usage: object) -> int | None:
    """All tokens of the prompt, cached ones too; None where the usage does not say so clearly.

    OpenAI's `prompt_tokens` includes what came from a cache. Anthropic's `input_tokens` does not: its cache parts are
    added. Where both shapes are mixed it is unknown which holds, so nothing is read, nor where the sum is beyond all
    prompts.
    """
    if not isinstance(usage, dict):
        return None
    cached = sum(_count(usage.get(part)) for part in CACHE_PARTS)
    if (whole := next((name for name in ("prompt_tokens", "promptTokenCount") if name in usage), None)) is not None:
        tokens = 0 if cached else _count(usage[whole])
    else:
        tokens = _count(usage.get("input_tokens")) + cached
    return tokens if 0 < tokens <= MOST_TOKENS else None


def _part_of(whole: int | None, part: int | None) -> int | None:
    """None where there is no room for it: then it is unknown what it is a part of."""
    return None if whole is None or part is None or part > whole else part


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _number(usage: dict[str, Any], name: str) -> int | None:
    """The first of a number's `MEMBERS` that is given, 0 too."""
    for holder, member in MEMBERS[name]:
        held = usage.get(holder) if holder else usage
        if type(held) is dict and type(number := held.get(member)) is int and 0 <= number <= MOST_TOKENS:
            return number
    return None

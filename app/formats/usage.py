"""Usage: read the tokens and the price that a provider reports for a call, in the forms of all known providers.

Add new or renamed members to `MEMBERS`. A number is unknown if it is impossible: above `MOST_TOKENS`, or a part that is
larger than its whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from app.formats.raw_json import object_of, objects_in, text_at
from app.formats.spec import FormatSpec
from app.tokens.costs import MOST_TOKENS, UNBILLED, Bill, Tokens
from app.tokens.counting_rules import LONGEST_MODEL

PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""Members whose sum is the size of a prompt at Anthropic. At OpenAI, `input_tokens` is the whole prompt."""
CACHE_PARTS = PROMPT_PARTS[1:]
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
        *(("", name) for name in ("prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")),
    ),
    # The names of OpenAI and OpenRouter, of LiteLLM, and of Anthropic.
    "written": (
        *((details, name) for name in ("cache_write_tokens", "cache_creation_tokens") for details in _INPUT),
        ("", "cache_creation_input_tokens"),
    ),
    "written_hour": (("cache_creation", "ephemeral_1h_input_tokens"),),
    "reasoning": (
        *((details, name) for name in ("reasoning_tokens", "thinking_tokens") for details in (*_OUTPUT, "")),
        ("", "thoughtsTokenCount"),
    ),
    "audio": tuple((details, "audio_tokens") for details in _INPUT),
    "speech": tuple((details, "audio_tokens") for details in _OUTPUT),
    "total": (("", "total_tokens"),),
}
"""Members that may hold each number, in order of preference: name of the containing object, name of the member."""
_PREFERRED_LAST = tuple((name, place) for name, places in MEMBERS.items() for place in reversed(places))
_THINKS_BESIDE = re.compile(r"gemini", re.IGNORECASE)
"""Pattern of models for which the total in the usage may include reasoning that no other number includes."""
LONGEST_WORD = 64
"""Maximum characters of the name of a service tier or a region."""
TICKS = 10_000_000_000
MOST_CHARGED = 1_000_000.0
"""Maximum US dollars for one call. Steno ignores larger charges."""


class Usage(Struct, frozen=True):
    tokens: Tokens
    """Reported tokens, for the ledger."""
    prompt: int | None
    """Tokens of the whole prompt; None if ambiguous. Calibration learns from this number only."""
    bill: Bill = UNBILLED


def usage_of(said: dict[str, Any], model: str = "", tier: str = "", searches: int = 0) -> Usage | None:
    """Return the usage in an answer; None if the answer reports no usage.

    If the model read several prompts for one answer (`iterations`), `prompt` is None, because none of them is the
    prompt that Steno sent. `model`, `tier` and `searches` come from other members of the answer.
    """
    if not said:
        return None
    calls = objects_in(said.get("iterations"))
    prompt = prompt_tokens(said) if len(calls) <= 1 else None
    tokens = read_usage(said, model)
    if any(call.get("type") == "compaction" for call in calls):
        # The numbers outside of `iterations` are those of the last call. A number that no call reports is unknown.
        prompt, each = None, [read_usage(call) for call in calls]
        reported = {
            name: [n for call in each if (n := getattr(call, name)) is not None] for name in Tokens.__annotations__
        }
        tokens = Tokens(**{name: sum(numbers) if numbers else None for name, numbers in reported.items()})
    return Usage(tokens, prompt, bill_of(said, model, tier, searches))


def bill_of(said: dict[str, Any], model: str = "", tier: str = "", searches: int = 0) -> Bill:
    """Return the parts of an answer that determine its price.

    If a gateway calls another provider with the client's own key, the cost includes this provider's charge. If the
    answer does not report this charge, the cost is unknown.
    """
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
    tier = "fast" if said.get("speed") == "fast" else _word(said.get("service_tier")) or _word(tier)
    searched = _count(object_of(said.get("server_tool_use")).get("web_search_requests"))
    searches += searched if searched <= MOST_TOKENS else 0
    return Bill(model[:LONGEST_MODEL], tier, _word(said.get("inference_geo")), searches, cost)


def _word(said: object) -> str:
    return said.lower() if isinstance(said, str) and len(said) <= LONGEST_WORD else ""


def _amount(said: object, most: float = MOST_CHARGED) -> float | None:
    """Return an amount of money from a number or a numeric text; None unless it is between 0 and `most`."""
    try:
        amount = float(said) if type(said) in (int, float, str) and len(str(said)) <= LONGEST_WORD else -1.0  # type: ignore[arg-type]
    except ValueError:
        return None
    return amount if 0 <= amount <= most else None


def usage_members(spec: FormatSpec, said: Mapping[str, Any]) -> tuple[dict[str, Any], str, str]:
    """Return usage members, model and service tier from a frame or an unstreamed answer."""
    usage: dict[str, Any] = {}
    model = tier = ""
    for held in (said, *map(object_of, map(said.get, spec.answer_members))):
        usage |= {name: value for name, value in object_of(held.get(spec.usage)).items() if value is not None}
        model, tier = text_at(held, spec.model) or model, text_at(held, "service_tier") or tier
    return usage, model, tier


def read_usage(usage: object, model: str = "") -> Tokens:
    """Return the tokens that the provider reported, for the ledger; impossible numbers are None.

    Steno assumes that `prompt_tokens` includes Anthropic's cache parts, unless it is smaller than their sum. Steno adds
    reasoning to the completion in two cases: reasoning exceeds the completion, or the total is the sum of prompt,
    completion and reasoning. `model` is the model that answered.
    """
    if not isinstance(usage, dict):
        return Tokens()
    prompt, numbers = prompt_tokens(usage), _numbers(usage)
    if prompt is None and (reported := numbers.get("prompt")) is not None:
        parts = sum(_count(usage.get(part)) for part in CACHE_PARTS)
        prompt = reported + parts if parts > reported else reported
        prompt = prompt if prompt <= MOST_TOKENS else None
    cached = _part_of(prompt, numbers.get("cached"))
    written = numbers.get("written")
    if written is None and (ages := object_of(usage.get("cache_creation"))):
        written = sum(number for number in map(_count, ages.values()) if number <= MOST_TOKENS)
    written = _part_of(None if prompt is None else prompt - (cached or 0), written)
    completion, reasoning = numbers.get("completion"), numbers.get("reasoning")
    if completion is None and "promptTokenCount" in usage:  # Google leaves out numbers that are zero.
        completion = 0
    if "thoughtsTokenCount" in usage and completion is not None:
        completion += reasoning or 0
    elif completion is not None:
        total = numbers.get("total")
        rest = total - prompt - completion if total is not None and prompt is not None else 0
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
        # Nearly every answer reports 0 here.
        _part_of(written, numbers.get("written_hour")) or None,
        _part_of(None if prompt is None else prompt - (cached or 0) - (written or 0), numbers.get("audio")) or None,
        _part_of(completion, numbers.get("speech")) or None,
    )


def prompt_tokens(usage: object) -> int | None:
    """Return all tokens of the prompt, including cached tokens; None if the usage is ambiguous.

    OpenAI's `prompt_tokens` includes cached tokens. Anthropic's `input_tokens` does not, so Steno adds Anthropic's
    cache parts. A usage with members of both providers is ambiguous.
    """
    if not isinstance(usage, dict):
        return None
    if whole := [usage[name] for _, name in MEMBERS["prompt"] if name in usage]:
        tokens = 0 if any(map(_count, map(usage.get, CACHE_PARTS))) else _count(whole[0])
    else:
        tokens = sum(map(_count, map(usage.get, PROMPT_PARTS)))
    return tokens if 0 < tokens <= MOST_TOKENS else None


def _part_of(whole: int | None, part: int | None) -> int | None:
    """Return the part; None if it is larger than the whole, or the whole is unknown."""
    return None if whole is None or part is None or part > whole else part


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _numbers(usage: dict[str, Any]) -> dict[str, int]:
    """Return the numbers from 0 to `MOST_TOKENS` by name in `MEMBERS`. For each name, the first number counts."""
    objects = {name: held for name, held in {**usage, "": usage}.items() if type(held) is dict}
    return {
        name: number
        for name, (holder, member) in _PREFERRED_LAST
        if holder in objects and type(number := objects[holder].get(member)) is int and 0 <= number <= MOST_TOKENS
    }

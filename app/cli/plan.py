"""Plan of a request in words, for `steno plan`. Providers are asked for their models, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.cli.inside import asking, at_window
from app.cli.models import SOURCES
from app.settings import Settings

PARTS = {
    "instructions": "instructions and tools",
    "summarized": "summarised",
    "carried": "kept beside a summary",
    "masked": "tool results, masked",
    "shortened": "shortened",
    "verbatim": "verbatim",
    "recalled": "quoted again",
    "exact_values": "exact values",
    "state": "state of the work",
    "client_instructions": "the client's instructions, said again",
}
STATUSES = {
    "full": "Steno would forward it as it is.",
    "summarized": "Steno would replace older turns with summaries.",
    "trimmed": "Steno would shorten or leave out parts of it.",
}


class UnusableRequest(Exception):
    """The input is not a request that Steno can plan."""


class Planned(Struct, frozen=True):
    model: str | None
    answer: dict[str, Any]
    """Answer of `POST /context/plan`."""


def plan(settings: Settings, body: bytes, written: str | None, window: int | None) -> Planned:
    """Return the plan of a request. Raises `UnusableRequest` and `ConfigurationError`.

    `written` is the name of the format; None: Responses where there is an `input`, otherwise Chat Completions.
    """
    try:
        request = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UnusableRequest(f"The request must be a JSON object: {error}.") from error
    request["format"] = written or request.get("format") or ("responses" if "input" in request else "chat_completions")
    with asking(at_window(settings, window) if window else settings) as client:
        answer = client.post("/context/plan", json=request)
    planned = answer.json()
    if answer.status_code != 200:
        raise UnusableRequest(planned["error"]["message"])
    return Planned(request.get("model"), planned)


def in_words(of: Planned) -> Iterator[str]:
    planned = of.answer
    context, budget = planned["context"], planned["budget"]
    tokens = context["tokens"]
    over = "over" if tokens["estimated"] > budget["trigger"] else "within"
    yield STATUSES[planned["context_status"]]
    yield ""
    yield f"  request    {tokens['estimated']:>9,} tokens, {over} the trigger of {budget['trigger']:,}"
    yield f"  forwarded  {tokens['forwarded']:>9,} tokens, {tokens['saved']:,} saved"
    source = SOURCES[budget["window_source"]]
    yield f"  window     {budget['window']:>9,} tokens for {of.model} (from: {source})"
    yield f"  limit      {budget['limit']:>9,} tokens for the prompt; a compaction aims at {budget['target']:,}"
    if made := planned["summaries_to_make"]:
        messages = f"{planned['messages_to_summarize']} messages"
        yield f"  summaries  {made:>9,} to be made of {messages}, counted here at their largest"
    if context["actions"]:
        yield f"  actions    {', '.join(context['actions'])}"
    if context["reason"]:
        yield f"  reason     {context['reason']}"
    yield ""
    yield "  The payload in order:"
    for part in planned["parts"]:
        yield f"  {part['tokens']:>9,}  {PARTS.get(part['kind'], part['kind'])}{_range(part)}"


def _range(part: Mapping[str, Any]) -> str:
    """Range of messages, numbered from 1, as summaries number them to the model."""
    first, last = part.get("first_index"), part.get("last_index")
    if first is None or last is None:
        return ""
    return f", message {first + 1}" if first == last else f", messages {first + 1} to {last + 1}"

"""Coverage: how a payload accounts for every message, as data that can be shown."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from app.compaction.view import Altered, Carried, Conversation, Note, Pinned, Pruned, Recalled, Summary, View
from app.tokens.calibration import ONE_TO_ONE, Line
from app.tokens.estimate import Cost


def coverage_of(
    conversation: Conversation, view: View | None, line: Line = ONE_TO_ONE, cost: Cost | None = None
) -> list[dict[str, Any]]:
    """The payload in order. Indexes count the messages after the leading instructions, from 0, both ends inclusive.
    `cost` counts a message; a view without some of the history's thinking needs it.

    Tokens are the provider's, and add up to the whole: the instructions bear what stands in no message, which is tools,
    response format, the reply's priming, and what the provider adds. `tools_tokens` of them are no instructions.
    """
    if view is None:
        return _untouched(conversation, line)
    parts = _parts(conversation, view)
    spared = _spared(conversation, view, cost)
    for shown in parts:
        if shown["kind"] not in ("summarized", "pruned"):
            shown["tokens"] -= sum(tokens for index, tokens in spared.items() if _holds(shown, index))
        for name in shown.keys() & {"tokens", "user_words_tokens"}:
            shown[name] = round(line.ratio * shown[name])
    left = line.to_provider_tokens(view.tokens) - sum(shown["tokens"] for shown in parts)
    return [_instructions(conversation, line, left), *parts]


def _parts(conversation: Conversation, view: View) -> list[dict[str, Any]]:
    """Entries of a view's parts, with our tokens."""
    transcript = conversation.transcript
    parts: list[dict[str, Any]] = []
    for part in view.parts:
        match part:
            case Summary(chunk):
                place = _place(chunk.first_index, chunk.last_index)
                said = {"user_words_tokens": chunk.user_words_tokens} if chunk.user_words else {}
                parts.append({"kind": "summarized", **place, "summary_id": chunk.id, "tokens": chunk.tokens, **said})
            case Carried(index):
                parts.append({"kind": "carried", **_place(index, index), "tokens": transcript.tokens_of(index)})
            case Altered(index, _, tokens, by):
                parts.append({"kind": by, **_place(index, index), "tokens": tokens})
            case Pruned(start, stop, by):
                parts.append({"kind": "pruned", "by": by, **_place(start, stop - 1), "tokens": 0})
            case Pinned(start, stop):
                parts.append({"kind": "pinned", **_place(start, stop - 1), "tokens": transcript.tokens(start, stop)})
            case Note(kind, _, tokens):
                parts.append({"kind": kind, "tokens": tokens})
            case Recalled(quoted, _, tokens):
                parts.append({"kind": "recalled", "messages": list(quoted), "tokens": tokens})
            case _:
                place = _place(part.start, part.stop - 1)
                parts.append({"kind": "verbatim", **place, "tokens": transcript.tokens(part.start, part.stop)})
    return parts


def _spared(conversation: Conversation, view: View, cost: Cost | None) -> dict[int, int]:
    """Tokens of the thinking that is left out, by message."""
    messages = conversation.transcript.messages
    if cost is None:
        return {}
    return {at: cost(messages[at]) - cost(replace(messages[at], thoughts=())) for at in view.without_thinking}


def _holds(part: dict[str, Any], index: int) -> bool:
    return bool(part.get("first_index", index + 1) <= index <= part.get("last_index", -1))


def _untouched(conversation: Conversation, line: Line) -> list[dict[str, Any]]:
    total, messages = conversation.tokens, len(conversation.transcript.messages)
    reported = line.to_provider_tokens(total)
    if not messages:
        return [_instructions(conversation, line, reported)]
    tokens = round(line.ratio * (total - conversation.instruction_tokens))
    verbatim = {"kind": "verbatim", "first_index": 0, "last_index": messages - 1, "tokens": tokens}
    return [_instructions(conversation, line, reported - tokens), verbatim]


def _instructions(conversation: Conversation, line: Line, left: int) -> dict[str, Any]:
    """Entry of the instructions: they bear what is left of the whole, as the provider counts it."""
    tools = max(0, min(left, round(line.ratio * conversation.costs.fixed)))
    return {"kind": "instructions", "messages": len(conversation.instructions), "tools_tokens": tools, "tokens": left}


def _place(first: int, last: int) -> dict[str, int]:
    return {"first_index": first, "last_index": last}

"""Coverage: how a payload accounts for every message, as data that can be shown."""

from __future__ import annotations

from typing import Any

from app.core.view import Carried, Conversation, Shortened, Summary, View, whole


def coverage_of(conversation: Conversation, view: View | None, ratio: float = 1.0) -> list[dict[str, Any]]:
    """The payload in order. Indexes count the messages after the leading instructions, from 0, both ends inclusive.

    `ratio`: the provider's tokens for each one of our estimate.
    """
    transcript = conversation.transcript
    parts: list[dict[str, Any]] = [
        {
            "kind": "instructions",
            "messages": len(conversation.instructions),
            "tokens": sum(conversation.costs.messages[: len(conversation.instructions)]),
        }
    ]
    for part in (view or whole(conversation)).parts:
        match part:
            case Summary(chunk):
                place = _place(chunk.first_index, chunk.last_index)
                parts.append({"kind": "summarized", **place, "summary_id": chunk.id, "tokens": chunk.tokens})
            case Carried(index):
                parts.append({"kind": "carried", **_place(index, index), "tokens": transcript.tokens_of(index)})
            case Shortened(index, _, tokens):
                parts.append({"kind": "shortened", **_place(index, index), "tokens": tokens})
            case _:
                place = _place(part.start, part.stop - 1)
                parts.append({"kind": "verbatim", **place, "tokens": transcript.tokens(part.start, part.stop)})
    return [{**part, "tokens": round(ratio * part["tokens"])} for part in parts]


def _place(first: int, last: int) -> dict[str, int]:
    return {"first_index": first, "last_index": last}

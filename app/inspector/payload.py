"""The payload: the messages of the latest request as they went out, put together from what is stored.

The store knows the payload by its shape, which is the coverage. Where a part of it is a stored message or a summary,
it is shown letter by letter. What Steno wrote for that one request, and what it left of a message that it cut, is
stored nowhere: of these the shape is shown, and that it is no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunks import SummaryChunk
from app.compaction.prompts import chunk_text
from app.inspector.said import LONGEST, Formats, Said, said_in
from app.inspector.timeline import WORDS
from app.store import StoredMessage

_WHOLE = ("instructions", "verbatim", "carried", "pinned")
"""Kinds of parts whose messages went as they came."""
_NOTES = {
    "tools": "Tools, the response format and what the provider adds. Messages are stored, and none of these.",
    "stub": "A line of Steno's own that says messages were left out.",
    "user_words": "What the user said in messages that are left out. It is worked out for each request and not stored.",
    "pinned_text": "The operator's pinned text.",
    "client_instructions": (
        "What the client put into its messages for good, said again. It is worked out for each request and not stored."
    ),
    "exact_values": "Exact values of messages that are left out. They are worked out for each request and not stored.",
    "state": (
        "State of the agent's work in messages that are left out: its plan, what failed last, its files. It is worked"
        " out for each request and not stored."
    ),
}


class Entry(Struct, frozen=True):
    """Message of the payload, or a part of it of which only the shape is known."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int | None
    """Tokens of the part; None where it holds several messages."""
    index: int | None = None
    """Index of the message, where it is one of the client's."""
    said: Said | None = None
    note: str | None = None
    """Remark about the entry."""
    summary_id: str | None = None

    @property
    def word(self) -> str:
        return {"summarized": "summary"}.get(self.kind, WORDS.get(self.kind, self.kind).replace("_", " "))


class Place(Struct, frozen=True):
    """Place of an entry: its part, and its index where it is one of the client's messages."""

    part: Mapping[str, Any]
    index: int | None = None


def places_of(parts: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Places of all entries, in the order of the payload."""
    return [place for part in parts for place in _places(part)]


def _places(part: Mapping[str, Any]) -> Iterator[Place]:
    kind = part["kind"]
    if kind == "instructions":
        yield from (Place(part, index) for index in range(-part["messages"], 0))
        if tools := part.get("tools_tokens"):
            yield Place({"kind": "tools", "tokens": tools})
    elif "first_index" in part and kind not in ("summarized", "pruned"):
        yield from (Place(part, index) for index in range(part["first_index"], part["last_index"] + 1))
    else:
        yield Place(part)


def stretches_of(places: Sequence[Place]) -> list[tuple[int, int]]:
    """First and last index of each run of the client's messages in a row; instructions are negative."""
    stretches: list[tuple[int, int]] = []
    for index in (place.index for place in places if place.index is not None):
        if stretches and index and stretches[-1][1] == index - 1:
            stretches[-1] = (stretches[-1][0], index)
        else:
            stretches.append((index, index))
    return stretches


def entry_of(
    place: Place, messages: Mapping[int, StoredMessage], chunks: Mapping[str, SummaryChunk], formats: Formats
) -> Entry:
    """Entry at a place. `messages`: those that are stored, by index."""
    part, index = place.part, place.index
    kind = part["kind"]
    if index is not None:
        shown = _stored(kind, index, messages, formats)
        return shown if kind in _WHOLE else _cut(part, shown)
    if kind == "summarized":
        return _summary(part, chunks.get(part["summary_id"]))
    if kind == "pruned":
        return Entry(kind, 0, part["first_index"], note=_range(part, "nothing stands in their place"))
    if kind == "recalled":
        quoted = ", ".join(f"#{message + 1}" for message in part["messages"])
        note = f"Passages of {quoted}, quoted for this request. They are worked out anew for each and not stored."
        return Entry(kind, part["tokens"], note=note)
    return Entry(kind, part["tokens"], note=_NOTES.get(kind))


def _summary(part: Mapping[str, Any], chunk: SummaryChunk | None) -> Entry:
    summary_id, tokens = part["summary_id"], part["tokens"]
    if chunk is None:
        return Entry("summarized", tokens, summary_id=summary_id, note="This summary is not stored any more.")
    text = chunk_text(chunk)
    return Entry(
        "summarized", tokens, said=Said("user", text[:LONGEST], left=max(0, len(text) - LONGEST)), summary_id=summary_id
    )


def _cut(part: Mapping[str, Any], original: Entry) -> Entry:
    note = f"Sent cut to about {part['tokens']:,} tokens; what was left of it is not stored. This is the original."
    return replace(original, tokens=part["tokens"], note=note if original.said else _ONLY_SHAPE)


_ONLY_SHAPE = "Only its shape is known: this message is not stored."


def _stored(kind: str, index: int, messages: Mapping[int, StoredMessage], formats: Formats) -> Entry:
    stored = messages.get(index)
    if stored is None:
        return Entry(kind, None, index, note=_ONLY_SHAPE)
    return Entry(kind, stored.tokens, index, said_in(stored, formats))


def _range(part: Mapping[str, Any], rest: str) -> str:
    first, last = part["first_index"] + 1, part["last_index"] + 1
    return f"Message #{first} is left out: {rest}." if first == last else f"#{first} to #{last} are left out: {rest}."

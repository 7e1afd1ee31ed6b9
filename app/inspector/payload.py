"""The payload: the messages of the latest request as they went out, put together again from archive and summaries.

The store knows the payload by its shape, which is the coverage. Where a part of it is in the archive or in a summary,
it is shown letter by letter. What Steno wrote for that one request, and what it left of a message that it cut, is
stored nowhere: of these the shape is shown, and that it is no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.core.summary.prompts import chunk_text
from app.core.values import value
from app.core.view.chunks import SummaryChunk
from app.inspector.said import LONGEST, Formats, Said, said_in
from app.inspector.timeline import WORDS
from app.store import StoredMessage

_WHOLE = ("verbatim", "carried", "pinned")
"""Kinds of parts whose messages went as they came."""
_NOTES = {
    "stub": "A line of Steno's own that says messages were left out.",
    "pinned_text": "The operator's pinned text.",
    "client_instructions": (
        "What the client put into its messages for good, said again. It is worked out for each request and not stored."
    ),
    "exact_values": "Exact values of messages that are left out. They are worked out for each request and not stored.",
}


@value
class Entry:
    """A message of the payload, or a part of it of which only the shape is known."""

    kind: str
    """As in the coverage."""
    tokens: int | None
    """Of the part; None where it holds several messages."""
    index: int | None = None
    """Of the message, where it is one of the client's."""
    said: Said | None = None
    note: str | None = None
    """What is to be known about it."""
    summary_id: str | None = None

    @property
    def word(self) -> str:
        return {"summarized": "summary"}.get(self.kind, WORDS.get(self.kind, self.kind).replace("_", " "))


def indexes_of(parts: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The stretches of messages that stand in the payload, first and last; instructions are negative."""
    leading = [(-part["messages"], -1) for part in parts if part["kind"] == "instructions" and part["messages"]]
    return leading + [
        (part["first_index"], part["last_index"])
        for part in parts
        if "first_index" in part and part["kind"] not in ("summarized", "pruned")
    ]


def entries_of(
    parts: Sequence[Mapping[str, Any]],
    archived: Mapping[int, StoredMessage],
    chunks: Mapping[str, SummaryChunk],
    formats: Formats,
) -> Iterator[Entry]:
    """In the order of the payload. `archived`: what was kept, by position."""
    for part in parts:
        kind = part["kind"]
        if kind == "instructions":
            yield from _instructions(part, archived, formats)
        elif kind == "summarized":
            yield _summary(part, chunks.get(part["summary_id"]))
        elif kind in _WHOLE:
            yield from _whole(part, archived, formats)
        elif kind == "pruned":
            yield Entry(kind, 0, part["first_index"], note=_range(part, "nothing stands in their place"))
        elif kind == "recalled":
            quoted = ", ".join(f"#{index}" for index in part["messages"])
            note = f"Passages of {quoted}, quoted for this request. They are worked out anew for each and not stored."
            yield Entry(kind, part["tokens"], note=note)
        elif kind in _NOTES:
            yield Entry(kind, part["tokens"], note=_NOTES[kind])
        else:
            yield from _cut(part, archived, formats)


def _instructions(part: Mapping[str, Any], archived: Mapping[int, StoredMessage], formats: Formats) -> Iterator[Entry]:
    for index in range(-part["messages"], 0):
        yield _archived("instructions", index, archived, formats)
    if tools := part.get("tools_tokens"):
        note = "Tools, the response format and what the provider adds. The archive keeps messages, and none of these."
        yield Entry("tools", tools, note=note)


def _summary(part: Mapping[str, Any], chunk: SummaryChunk | None) -> Entry:
    summary_id, tokens = part["summary_id"], part["tokens"]
    if chunk is None:
        return Entry("summarized", tokens, summary_id=summary_id, note="This summary is not stored any more.")
    text = chunk_text(chunk)
    return Entry(
        "summarized", tokens, said=Said("user", text[:LONGEST], left=max(0, len(text) - LONGEST)), summary_id=summary_id
    )


def _whole(part: Mapping[str, Any], archived: Mapping[int, StoredMessage], formats: Formats) -> Iterator[Entry]:
    for index in range(part["first_index"], part["last_index"] + 1):
        yield _archived(part["kind"], index, archived, formats)


def _cut(part: Mapping[str, Any], archived: Mapping[int, StoredMessage], formats: Formats) -> Iterator[Entry]:
    for index in range(part["first_index"], part["last_index"] + 1):
        entry = _archived(part["kind"], index, archived, formats)
        note = f"Sent cut to about {part['tokens']:,} tokens; what was left of it is not stored. This is the original."
        yield Entry(part["kind"], part["tokens"], index, entry.said, note if entry.said else _ONLY_SHAPE)


_ONLY_SHAPE = "Only its shape is known: the archive does not hold this message."


def _archived(kind: str, index: int, archived: Mapping[int, StoredMessage], formats: Formats) -> Entry:
    stored = archived.get(index)
    if stored is None:
        return Entry(kind, None, index, note=_ONLY_SHAPE)
    return Entry(kind, stored.tokens, index, said_in(stored, formats))


def _range(part: Mapping[str, Any], rest: str) -> str:
    first, last = part["first_index"], part["last_index"]
    return f"Message #{first} is left out: {rest}." if first == last else f"#{first} to #{last} are left out: {rest}."

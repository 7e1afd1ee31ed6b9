"""Messages of a conversation on its pages: the treatment of each message, and the latest payload.

The store has the coverage of the payload: the kind and size of each part. Stored messages and summaries are shown with
their text. Steno does not store notes that it wrote for one request or the rest of a cut message: the page shows only
their kind and size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from msgspec import Struct

from app.api.conversations import coverage_at, message_in
from app.compaction.chunks import SummaryChunk
from app.compaction.prompts import chunk_text
from app.conversation.messages import Kind
from app.store import StoredMessage

FATES: Mapping[str, str] = {"summarized": "in a summary", "pruned": "left out"}
"""Displayed words for kinds of parts; all others are displayed by their names."""
LONGEST = 20_000
"""Maximum characters of a message on a page."""
GLANCE = 320
"""Characters of a message in its preview."""
KINDS = {Kind.CLIENT: "user's program", Kind.RESULT: "tool result"}
"""Displayed words for kinds of messages; all others are displayed by their names."""

Part = Mapping[str, Any]


class Stretch(Struct, frozen=True):
    """Consecutive messages with the same treatment in the payload."""

    first: int
    last: int
    kind: str
    """Kind of the part, as in the coverage."""
    summary_id: str | None
    """Id of the summary of the messages."""
    pinned: bool
    """True if the payload also contains a verbatim copy."""
    recalled: bool
    """True if the payload quotes passages of the messages."""
    tokens: int
    """Tokens of the stretch in the payload."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def word(self) -> str:
        return FATES.get(self.kind, self.kind)


def message_count(parts: Sequence[Part]) -> int:
    """Return the number of messages after the leading instructions."""
    return 1 + max((part["last_index"] for part in parts if "last_index" in part), default=-1)


def stretches_of(parts: Sequence[Part]) -> list[Stretch]:
    """Split all messages into stretches, in order. Parts and quoted messages begin and end a stretch. A part with the
    message itself takes precedence over its summary."""
    count = message_count(parts)
    edges = {0, count}
    for part in parts:
        if "first_index" in part:
            edges |= {part["first_index"], part["last_index"] + 1}
        elif part["kind"] == "recalled":
            edges |= {edge for index in part["messages"] for edge in (index, index + 1)}
    starts = pairwise(sorted(edge for edge in edges if 0 <= edge <= count))
    return [_stretch(parts, first, stop) for first, stop in starts]


def _stretch(parts: Sequence[Part], first: int, stop: int) -> Stretch:
    others = [part for part in parts if part["kind"] not in ("pinned", "recalled")]
    shown = coverage_at(others, first)
    return Stretch(
        first,
        stop - 1,
        kind=shown.kind if shown else "unknown",
        summary_id=shown.summary_id if shown else None,
        pinned=coverage_at([part for part in parts if part["kind"] == "pinned"], first) is not None,
        recalled=any(part["kind"] == "recalled" and first in part["messages"] for part in parts),
        # The tokens of a summary count for the stretch with its first message.
        tokens=sum(part["tokens"] for part in others if first <= part.get("first_index", -1) < stop),
    )


def folded(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Group stretches into rows of a page: one row for each summary, and one for each other stretch."""

    def row(each: Stretch) -> object:
        return each.summary_id if each.kind == "summarized" else each.first

    return [list(group) for _, group in groupby(stretches, row)]


class Said(Struct, frozen=True):
    """Message on a page."""

    kind: str
    text: str
    beside: str = ""
    """Names of parts other than text."""
    left: int = 0
    """Number of omitted characters."""

    @property
    def glance(self) -> str:
        """Return the preview of the text; empty if the text is short."""
        return self.text[:GLANCE].rstrip() if len(self.text) > GLANCE or self.text.count("\n") > 5 else ""


def said_in(stored: StoredMessage) -> Said:
    """Return a stored message for display; an unreadable one as JSON."""
    if (message := message_in(stored.sent, stored.format)) is None:
        return _cut("other", stored.sent)
    lines = [text for text in message.texts if text] + [f"{call.name}({call.arguments})" for call in message.calls]
    beside = [f"{len(message.media)} attachment{'s' * (len(message.media) > 1)}"] if message.media else []
    beside += ["reasoning"] if message.thoughts or message.encrypted else []
    return _cut(KINDS.get(message.kind, message.kind.name.lower()), "\n".join(lines), ", ".join(beside))


def _cut(kind: str, text: str, beside: str = "") -> Said:
    return Said(kind, text[:LONGEST], beside, max(0, len(text) - LONGEST))


_WHOLE = ("instructions", "verbatim", "carried", "pinned")
"""Kinds of parts with unchanged messages."""
_ONLY_SHAPE = "Only its shape is known: this message is not stored."
_NOT_STORED = "It is worked out for each request and not stored."
_NOTES = {
    "tools": "Tools, the response format and additions of the provider. Steno never stores their text.",
    "stub": "A line of Steno's own that says messages were left out.",
    "user_words": f"What the user said in messages that are left out. {_NOT_STORED}",
    "client_instructions": f"What the client put into its messages for good, said again. {_NOT_STORED}",
    "exact_values": f"Exact values of messages that are left out. {_NOT_STORED}",
    "state": f"The agent's plan, its last failure and its files, from messages that are left out. {_NOT_STORED}",
}


Place = tuple[Part, int | None]
"""Place in the payload: a part of the coverage, and a message's index if it is a message of the client."""


class Entry(Struct, frozen=True):
    """A message of the payload, or another part with its kind and size alone."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int | None
    """Tokens; None for an unchanged message that is not stored."""
    index: int | None = None
    said: Said | None = None
    note: str | None = None
    summary_id: str | None = None

    @property
    def word(self) -> str:
        return "summary" if self.kind == "summarized" else FATES.get(self.kind, self.kind).replace("_", " ")


def places_of(parts: Sequence[Part]) -> Iterator[Place]:
    """Yield all places, in the order of the payload."""
    for part in parts:
        kind = part["kind"]
        if kind == "instructions":
            yield from ((part, index) for index in range(-part["messages"], 0))
            if tools := part.get("tools_tokens"):
                yield {"kind": "tools", "tokens": tools}, None
        elif "first_index" in part and kind not in ("summarized", "pruned"):
            yield from ((part, index) for index in range(part["first_index"], part["last_index"] + 1))
        else:
            yield part, None


def entry_of(place: Place, messages: Mapping[int, StoredMessage], chunks: Mapping[str, SummaryChunk]) -> Entry:
    """Return the entry at a place. `messages`: stored messages by index; `chunks`: stored summaries by id."""
    part, index = place
    kind, tokens = part["kind"], part.get("tokens")
    if index is not None:
        stored, is_whole = messages.get(index), kind in _WHOLE
        if stored is None:
            return Entry(kind, None if is_whole else tokens, index, note=_ONLY_SHAPE)
        if is_whole:
            return Entry(kind, stored.tokens, index, said_in(stored))
        note = f"Sent cut to about {tokens:,} tokens; what was left of it is not stored. This is the original."
        return Entry(kind, tokens, index, said_in(stored), note)
    if kind == "summarized":
        if (chunk := chunks.get(part["summary_id"])) is None:
            return Entry(kind, tokens, note="This summary is not stored any more.", summary_id=part["summary_id"])
        return Entry(kind, tokens, said=_cut("user", chunk_text(chunk)), summary_id=chunk.id)
    if kind == "pruned":
        first, last = part["first_index"] + 1, part["last_index"] + 1
        which = f"#{first} is" if first == last else f"#{first} to #{last} are"
        return Entry(kind, 0, first - 1, note=f"{which} left out: nothing stands there.")
    if kind == "recalled":
        quoted = ", ".join(f"#{message + 1}" for message in part["messages"])
        return Entry(kind, tokens, note=f"Passages of {quoted}, quoted for this request. {_NOT_STORED}")
    return Entry(kind, tokens, note=_NOTES.get(kind))

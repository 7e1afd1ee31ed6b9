"""The messages of a conversation on its pages: what became of each, and the latest payload as it went out.

The store knows the payload by its shape, which is the coverage. Where a part of it is a stored message or a summary,
it is shown letter by letter. What Steno wrote for that one request, and what it left of a message that it cut, is
stored nowhere: of these the shape is shown, and that it is no more than that.
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
"""Words for fates whose name in the coverage is not what a person would say."""
LONGEST = 20_000
"""Characters of one message that a page shows."""
GLANCE = 320
"""Characters of a message that are shown at first."""
KINDS = {Kind.CLIENT: "user's program", Kind.RESULT: "tool result"}
"""Words for the kinds of messages whose name says too little."""

Part = Mapping[str, Any]


class Stretch(Struct, frozen=True):
    """Messages in a row of which the same became: what stands for them in the payload."""

    first: int
    last: int
    kind: str
    """Kind of the part, as in the coverage."""
    summary_id: str | None
    """Id of the summary that stands for them."""
    pinned: bool
    """True where a verbatim copy is in the payload, too."""
    recalled: bool
    """True where passages of them are quoted."""
    tokens: int
    """Tokens of all of them in the payload."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def word(self) -> str:
        return FATES.get(self.kind, self.kind)


def message_count(parts: Sequence[Part]) -> int:
    """Number of messages after the leading instructions."""
    return 1 + max((part["last_index"] for part in parts if "last_index" in part), default=-1)


def stretches_of(parts: Sequence[Part]) -> list[Stretch]:
    """Stretches of all messages, in order. They begin and end with parts, and at messages that are quoted. Of a message
    that is shown beside its summary that counts."""
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
        # A summary's tokens stand with its first message.
        tokens=sum(part["tokens"] for part in others if first <= part.get("first_index", -1) < stop),
    )


def folded(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Stretches by rows of a page: those inside one summary stand in one row, every other in its own."""

    def row(each: Stretch) -> object:
        return each.summary_id if each.kind == "summarized" else each.first

    return [list(group) for _, group in groupby(stretches, row)]


class Said(Struct, frozen=True):
    """Message as a page shows it."""

    kind: str
    text: str
    beside: str = ""
    """Names of the parts that are no text."""
    left: int = 0
    """Number of characters that are not shown."""

    @property
    def glance(self) -> str:
        """Beginning of the text; empty where that is all of it."""
        return self.text[:GLANCE].rstrip() if len(self.text) > GLANCE or self.text.count("\n") > 5 else ""


def said_in(stored: StoredMessage) -> Said:
    """Stored message; one that cannot be read any more is shown as its JSON."""
    if (message := message_in(stored.sent, stored.format)) is None:
        return _cut("other", stored.sent)
    lines = [text for text in message.texts if text] + [f"{call.name}({call.arguments})" for call in message.calls]
    beside = [f"{len(message.media)} attachment{'s' * (len(message.media) > 1)}"] if message.media else []
    beside += ["reasoning"] if message.thoughts or message.encrypted else []
    return _cut(KINDS.get(message.kind, message.kind.name.lower()), "\n".join(lines), ", ".join(beside))


def _cut(kind: str, text: str, beside: str = "") -> Said:
    return Said(kind, text[:LONGEST], beside, max(0, len(text) - LONGEST))


_WHOLE = ("instructions", "verbatim", "carried", "pinned")
"""Kinds of parts whose messages went as they came."""
_ONLY_SHAPE = "Only its shape is known: this message is not stored."
_NOT_STORED = "It is worked out for each request and not stored."
_NOTES = {
    "tools": "Tools, the response format and what the provider adds. Messages are stored, and none of these.",
    "stub": "A line of Steno's own that says messages were left out.",
    "user_words": f"What the user said in messages that are left out. {_NOT_STORED}",
    "client_instructions": f"What the client put into its messages for good, said again. {_NOT_STORED}",
    "exact_values": f"Exact values of messages that are left out. {_NOT_STORED}",
    "state": f"The agent's plan, its last failure and its files, from messages that are left out. {_NOT_STORED}",
}


Place = tuple[Part, int | None]
"""Place in the payload: its part, and its index where it is one of the client's messages."""


class Entry(Struct, frozen=True):
    """One message of the payload, or one part of it of which only kind and size are known."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int | None
    """Tokens of the part; None where it holds several messages."""
    index: int | None = None
    said: Said | None = None
    note: str | None = None
    summary_id: str | None = None

    @property
    def word(self) -> str:
        return "summary" if self.kind == "summarized" else FATES.get(self.kind, self.kind).replace("_", " ")


def places_of(parts: Sequence[Part]) -> Iterator[Place]:
    """Places of all entries, in the order of the payload."""
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
    """Entry at a place. `messages`: those that are stored, by index; `chunks`: the stored summaries, by id."""
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

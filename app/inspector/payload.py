"""The payload: the messages of the latest request as they went out, put together from what is stored.

The store knows the payload by its shape, which is the coverage. Where a part of it is a stored message or a summary,
it is shown letter by letter. What Steno wrote for that one request, and what it left of a message that it cut, is
stored nowhere: of these the shape is shown, and that it is no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from app.api.messages import message_in
from app.compaction.chunks import SummaryChunk
from app.compaction.prompts import chunk_text
from app.conversation.messages import Kind, Message
from app.formats.format import WireFormat
from app.proxy.services import Services
from app.store import StoredMessage

FATES: Mapping[str, str] = {
    "verbatim": "verbatim",
    "summarized": "in a summary",
    "carried": "carried",
    "pinned": "pinned",
    "pruned": "left out",
    "masked": "masked",
}
"""Words for fates whose name in the coverage is not what a person would say."""


class Fate(NamedTuple):
    """Fate of a message: what stands for it in the payload."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int | None
    """Tokens that the message takes by itself; None where it shares them with others."""
    summary_id: str | None
    """Id of the summary that stands for the message."""
    pinned: bool
    """True where a verbatim copy is in the payload, too."""
    recalled: bool
    """True where passages of the message are quoted."""

    @property
    def word(self) -> str:
        return FATES.get(self.kind, self.kind)


class Stretch(Struct, frozen=True):
    """Messages in a row with the same fate."""

    first: int
    last: int
    fate: Fate
    tokens: int
    """Tokens of all of them in the payload."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Fates(Struct, frozen=True):
    """Fates of the messages after the leading instructions."""

    parts: Sequence[Mapping[str, Any]]

    @property
    def number(self) -> int:
        """Number of messages."""
        return 1 + max((part["last_index"] for part in self.parts if "last_index" in part), default=-1)

    @property
    def stretches(self) -> list[Stretch]:
        """Stretches of all messages, in order. A message that stays beside its summary, or is cut, is one by itself."""
        found = []
        for first, last in self._runs():
            fate = self.of(first)
            tokens = self._tokens(first, last)
            found.append(Stretch(first, last, fate, tokens))
        return found

    def of(self, index: int) -> Fate:
        """Fate of a message; where it is shown beside its summary, that counts."""
        standing = [part for part in self.parts if _holds(part, index)]
        pinned = any(part["kind"] == "pinned" for part in standing)
        recalled = any(part["kind"] == "recalled" and index in part["messages"] for part in self.parts)
        summary = next((part["summary_id"] for part in standing if part["kind"] == "summarized"), None)
        own = [part for part in standing if part["kind"] != "pinned"]
        shown = next((part for part in own if part["kind"] not in ("summarized", "pruned")), None)
        part = shown or (own[0] if own else {"kind": "unknown", "tokens": 0})
        alone = part.get("first_index") == part.get("last_index") and part["kind"] != "summarized"
        return Fate(part["kind"], part["tokens"] if alone else None, summary, pinned, recalled)

    def _runs(self) -> list[tuple[int, int]]:
        """Indexes at which fates change: at the ends of parts, and at messages that are quoted."""
        count = self.number
        edges = {0, count}
        for part in self.parts:
            if "first_index" in part:
                edges |= {part["first_index"], part["last_index"] + 1}
            elif part["kind"] == "recalled":
                edges |= {edge for index in part["messages"] for edge in (index, index + 1)}
        ordered = sorted(edge for edge in edges if 0 <= edge <= count)
        return [(start, stop - 1) for start, stop in pairwise(ordered)]

    def _tokens(self, first: int, last: int) -> int:
        """Tokens of the parts that lie within; a summary's stand with its first message."""
        return sum(
            part["tokens"]
            for part in self.parts
            if part["kind"] not in ("pinned", "recalled") and first <= part.get("first_index", -1) <= last
        )


def _holds(part: Mapping[str, Any], index: int) -> bool:
    return bool(part.get("first_index", index + 1) <= index <= part.get("last_index", -1))


Formats = Mapping[str, WireFormat]
"""Wire formats by name."""
LONGEST = 20_000
"""Characters of one message that a page shows."""
GLANCE = 320
"""Characters of a message that are shown at first."""
KINDS: Mapping[str, str] = {
    Kind.INSTRUCTIONS.name.lower(): "instructions",
    Kind.USER.name.lower(): "user",
    Kind.CLIENT.name.lower(): "user's program",
    Kind.ASSISTANT.name.lower(): "assistant",
    Kind.RESULT.name.lower(): "tool result",
    Kind.OTHER.name.lower(): "other",
}


class Said(Struct, frozen=True):
    kind: str
    """Kind of the message, in a word."""
    text: str
    """Text as far as it is shown."""
    calls: tuple[str, ...] = ()
    """Names of the tools that the message calls."""
    beside: str = ""
    """Names of the parts that are no text."""
    left: int = 0
    """Number of characters that are not shown."""

    @property
    def glance(self) -> str:
        """Beginning of the text; empty where that is all of it."""
        return self.text[:GLANCE].rstrip() if len(self.text) > GLANCE or self.text.count("\n") > 5 else ""


def formats_of(services: Services) -> Formats:
    return {each.name: each for each in services.formats}


def said_in(stored: StoredMessage, formats: Formats) -> Said:
    """Message as a page shows it; one that cannot be read any more is shown as its JSON."""
    if (message := message_in(stored.sent, formats.get(stored.format))) is None:
        return _cut(KINDS["other"], stored.sent)
    return _cut(
        KINDS[message.kind.name.lower()],
        _text_of(message),
        tuple(call.name for call in message.calls),
        _beside(message),
    )


def _cut(kind: str, text: str, calls: tuple[str, ...] = (), beside: str = "") -> Said:
    return Said(kind, text[:LONGEST], calls, beside, max(0, len(text) - LONGEST))


def _text_of(message: Message) -> str:
    said = [text for text in message.texts if text]
    said += [f"{call.name}({call.arguments})" for call in message.calls]
    return "\n".join(said)


def _beside(message: Message) -> str:
    held = []
    if message.media:
        held.append("1 attachment" if len(message.media) == 1 else f"{len(message.media)} attachments")
    if message.thoughts or message.encrypted:
        held.append("reasoning")
    return ", ".join(held)


_WHOLE = ("instructions", "verbatim", "carried", "pinned")
"""Kinds of parts whose messages went as they came."""
_NOTES = {
    "tools": "Tools, the response format and what the provider adds. Messages are stored, and none of these.",
    "stub": "A line of Steno's own that says messages were left out.",
    "user_words": "What the user said in messages that are left out. It is worked out for each request and not stored.",
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
        return {"summarized": "summary"}.get(self.kind, FATES.get(self.kind, self.kind).replace("_", " "))


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
        return shown if kind in _WHOLE else _shortened(part, shown)
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


def _shortened(part: Mapping[str, Any], original: Entry) -> Entry:
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

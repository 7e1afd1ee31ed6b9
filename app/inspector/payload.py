"""The messages of a conversation on its pages: what became of each, and the latest payload as it went out.

The store knows the payload by its shape, which is the coverage. Where a part of it is a stored message or a summary,
it is shown letter by letter. What Steno wrote for that one request, and what it left of a message that it cut, is
stored nowhere: of these the shape is shown, and that it is no more than that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from app.api.messages import coverage_at, message_in
from app.compaction.chunks import SummaryChunk
from app.compaction.prompts import chunk_text
from app.conversation.messages import Kind
from app.formats.format import WireFormat
from app.http.own_headers import CONVERSATION_ID
from app.proxy.conversation_ids import encoded_name
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
Formats = Mapping[str, WireFormat]
"""Wire formats by name."""


class Fate(NamedTuple):
    """Fate of a message: what stands for it in the payload."""

    kind: str
    """Kind of the part, as in the coverage."""
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


def message_count(parts: Sequence[Part]) -> int:
    """Number of messages after the leading instructions."""
    return 1 + max((part["last_index"] for part in parts if "last_index" in part), default=-1)


def fate_of(parts: Sequence[Part], index: int) -> Fate:
    """Fate of a message; where it is shown beside its summary, that counts."""
    shown = coverage_at([part for part in parts if part["kind"] != "pinned"], index)
    copies = [part for part in parts if part["kind"] == "pinned"]
    return Fate(
        kind=shown.kind if shown else "unknown",
        summary_id=shown.summary_id if shown else None,
        pinned=coverage_at(copies, index) is not None,
        recalled=any(part["kind"] == "recalled" and index in part["messages"] for part in parts),
    )


def stretches_of(parts: Sequence[Part]) -> list[Stretch]:
    """Stretches of all messages, in order. Fates change at the ends of parts, and at messages that are quoted."""
    count = message_count(parts)
    edges = {0, count}
    for part in parts:
        if "first_index" in part:
            edges |= {part["first_index"], part["last_index"] + 1}
        elif part["kind"] == "recalled":
            edges |= {edge for index in part["messages"] for edge in (index, index + 1)}
    starts = pairwise(sorted(edge for edge in edges if 0 <= edge <= count))
    return [Stretch(first, stop - 1, fate_of(parts, first), _tokens(parts, first, stop)) for first, stop in starts]


def folded(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Stretches by rows of a page: those inside one summary stand in one row, every other in its own."""

    def row(each: Stretch) -> object:
        return each.fate.summary_id if each.fate.kind == "summarized" else each.first

    return [list(group) for _, group in groupby(stretches, row)]


def _tokens(parts: Sequence[Part], first: int, stop: int) -> int:
    """Tokens of the parts that begin there; a summary's stand with its first message."""
    shown = (part for part in parts if part["kind"] not in ("pinned", "recalled"))
    return sum(part["tokens"] for part in shown if first <= part.get("first_index", -1) < stop)


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


def said_in(stored: StoredMessage, formats: Formats) -> Said:
    """Stored message; one that cannot be read any more is shown as its JSON."""
    if (message := message_in(stored.sent, formats.get(stored.format))) is None:
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


class Place(Struct, frozen=True):
    """Place in the payload: its part, and its index where it is one of the client's messages."""

    part: Part
    index: int | None = None


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
            yield from (Place(part, index) for index in range(-part["messages"], 0))
            if tools := part.get("tools_tokens"):
                yield Place({"kind": "tools", "tokens": tools})
        elif "first_index" in part and kind not in ("summarized", "pruned"):
            yield from (Place(part, index) for index in range(part["first_index"], part["last_index"] + 1))
        else:
            yield Place(part)


def entry_of(
    place: Place, messages: Mapping[int, StoredMessage], chunks: Mapping[str, SummaryChunk], formats: Formats
) -> Entry:
    """Entry at a place. `messages`: those that are stored, by index; `chunks`: the stored summaries, by id."""
    part, index = place.part, place.index
    kind, tokens = part["kind"], part.get("tokens")
    if index is not None:
        stored = messages.get(index)
        entry = Entry(kind, stored.tokens, index, said_in(stored, formats)) if stored else Entry(kind, None, index)
        if stored is None:
            return replace(entry, tokens=None if kind in _WHOLE else tokens, note=_ONLY_SHAPE)
        if kind in _WHOLE:
            return entry
        note = f"Sent cut to about {tokens:,} tokens; what was left of it is not stored. This is the original."
        return replace(entry, tokens=tokens, note=note)
    if kind == "summarized":
        entry = Entry(kind, tokens, summary_id=part["summary_id"])
        if (chunk := chunks.get(part["summary_id"])) is None:
            return replace(entry, note="This summary is not stored any more.")
        return replace(entry, said=_cut("user", chunk_text(chunk)))
    if kind == "pruned":
        first, last = part["first_index"] + 1, part["last_index"] + 1
        which = f"Message #{first} is" if first == last else f"#{first} to #{last} are"
        return Entry(kind, 0, first - 1, note=f"{which} left out: nothing stands in their place.")
    if kind == "recalled":
        quoted = ", ".join(f"#{message + 1}" for message in part["messages"])
        return Entry(kind, tokens, note=f"Passages of {quoted}, quoted for this request. {_NOT_STORED}")
    return Entry(kind, tokens, note=_NOTES.get(kind))


_BODY_ENDS = "STENO_BODY"
_KEYS = {
    "messages": (b"x-api-key", b"", "ANTHROPIC_API_KEY"),
    "gemini": (b"x-goog-api-key", b"", "GEMINI_API_KEY"),
}
"""Header, prefix and variable of the key, by format, where its clients have their own way."""
_USUAL_KEY = (b"authorization", b"Bearer ", "OPENAI_API_KEY")


def key_header(spoken: WireFormat) -> tuple[bytes, bytes, str]:
    """Header in which a format's clients send their key, what stands before the key there, and its usual variable."""
    return _KEYS.get(spoken.name, _USUAL_KEY)


def curl_of(base_url: str, spoken: WireFormat, conversation_id: str, body: bytes) -> str:
    """Curl command of a request to `base_url`: Steno's scheme, host and port. The body goes in by a here-document: it
    may be longer than an argument may, and nothing in it means anything to the shell."""
    name, before, variable = key_header(spoken)
    named = CONVERSATION_ID + b": " + encoded_name(conversation_id)
    headers = [
        "content-type: application/json",
        *(f"{header.decode()}: {value.decode()}" for header, value in spoken.summaries.spec.summary.headers),
        named.decode("latin-1"),
    ]
    path = spoken.path.decode().replace("{model}", quote(spoken.model_in(body), safe="") or "{model}")
    text = body.decode("utf-8", "replace")
    # One pass, whatever the text holds: it is the client's, and may be a million underscores.
    longest = max(re.findall(f"{_BODY_ENDS}_*", text), key=len, default="")
    end = f"{longest}_" if longest else _BODY_ENDS
    lines = [
        f"curl -sS {shlex.quote(base_url + path)}",
        f'  -H "{name.decode()}: {before.decode()}${variable}"',
        *(f"  -H {shlex.quote(header)}" for header in headers),
        f"  --data-binary @- <<'{end}'",
    ]
    return " \\\n".join(lines) + f"\n{text}\n{end}\n"

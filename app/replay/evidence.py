"""Evidence: what the provider's log shows of messages and of summary calls, in the judge's own reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

INSTRUCTION_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})

DECORATION = 40
"""Characters that a transcript may put around each piece of a message with calls or media."""

_WORD = re.compile(r"\w+")
_NOTICE = re.compile(r"\n\[\.\.\. (\d+) characters in all, shortened \.\.\.\]\n")
_FIRST_HEADING = re.compile(r"<(\S+) .*>")


@dataclass(frozen=True, slots=True)
class Message:
    """One element of `messages`, with its own bytes."""

    raw: bytes
    role: str
    pieces: tuple[str, ...]
    """What a reader of it has to be shown: its texts, then name and arguments of its calls."""
    plain: bool
    """It is text and nothing else."""
    calls: tuple[str, ...]
    """Ids of the tool calls it makes."""
    answers: str | None
    """Id of the tool call it answers."""

    def shortens(self, original: Message) -> bool:
        """Whether it is a tool result of which only head and tail are left, with the original size between."""
        if self.role not in RESULT_ROLES or (self.role, self.answers) != (original.role, original.answers):
            return False
        pairs = list(zip(self.pieces, original.pieces, strict=False))
        same_length = len(self.pieces) == len(original.pieces)
        return same_length and all(piece == whole or _is_shortened(piece, whole) for piece, whole in pairs)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the transcript that a summary call was shown."""

    heading: str
    body: str

    def quotes(self, message: Message) -> bool:
        """Whether it shows the whole message and nothing else, under its role."""
        if message.role not in _WORD.findall(self.heading):
            return False
        if message.plain:
            return self.body == "\n".join(message.pieces)
        position = 0
        for piece in message.pieces:
            found = self.body.find(piece, position)
            if found < 0:
                return False
            position = found + len(piece)
        beside = len(self.body) - sum(map(len, message.pieces))
        return beside <= DECORATION * (1 + len(message.pieces))


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """One call to the summariser, as the provider logged it."""

    sequence: int
    sections: tuple[Section, ...]
    text: str


def _is_shortened(piece: str, whole: str) -> bool:
    cut = _NOTICE.search(piece)
    if cut is None or int(cut[1]) != len(whole):
        return False
    return whole.startswith(piece[: cut.start()]) and whole.endswith(piece[cut.end() :])


class MessageReader:
    """Raw messages to messages; a replay resends them all, so each is read once."""

    def __init__(self) -> None:
        self._read: dict[bytes, Message] = {}

    def split(self, body: bytes) -> list[Message]:
        """The messages of a chat request's body."""
        return [self.read(raw) for raw in raw_messages(body)]

    def read(self, raw: bytes) -> Message:
        if raw not in self._read:
            self._read[raw] = _message(raw)
        return self._read[raw]


def raw_messages(body: bytes) -> list[bytes]:
    """Each element of a request's `messages`, with its own bytes; none where the body has no such list."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(messages_of(body), type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def messages_of(body: bytes) -> bytes:
    """The bytes of a request's `messages`."""
    try:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("messages", b""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""


def sections_of(body: bytes) -> tuple[Section, ...]:
    """The transcript in a summary call: the part of its last message that stands under headings with one fence."""
    messages = [_message(raw) for raw in raw_messages(body)]
    lines = messages[-1].pieces[0].split("\n") if messages and messages[-1].pieces else []
    first = _FIRST_HEADING.fullmatch(lines[0]) if lines else None
    if first is None:
        return ()
    opening = f"<{first[1]} "
    places = [number for number, line in enumerate(lines) if line.startswith(opening) and line.endswith(">")]
    return tuple(
        Section(lines[start][len(opening) : -1], "\n".join(lines[start + 1 : stop])) for start, stop in pairwise(places)
    )


def split_pairs(messages: Iterable[Message]) -> frozenset[str]:
    """Ids of tool calls without a result directly behind them, and of results without their call before them."""
    split: set[str] = set()
    waiting: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        if message.answers is not None:
            if message.answers not in waiting | answered:
                split.add(message.answers)
            waiting.discard(message.answers)
            answered.add(message.answers)
            continue
        split |= waiting
        waiting, answered = set(message.calls), set()
    return frozenset(split | waiting)


def common_prefix(one: bytes, other: bytes) -> int:
    """How many leading bytes two payloads share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _message(raw: bytes) -> Message:
    decoded = msgspec.json.decode(raw)
    value: Mapping[str, Any] = decoded if isinstance(decoded, dict) else {}
    texts = _texts(value.get("content"))
    calls = [call for call in value.get("tool_calls") or () if isinstance(call, dict)]
    functions: Sequence[Mapping[str, Any]] = [call.get("function") or {} for call in calls]
    called = [str(function.get(key) or "") for function in functions for key in ("name", "arguments")]
    return Message(
        raw=raw,
        role=str(value.get("role")),
        pieces=tuple(texts + called),
        plain=not calls and isinstance(value.get("content"), str),
        calls=tuple(str(call.get("id")) for call in calls),
        answers=str(value["tool_call_id"]) if value.get("role") == "tool" else None,
    )


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]

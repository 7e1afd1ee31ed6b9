"""Evidence: what the provider's log shows of messages and of summary calls, in the judge's own reading."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Any, AnyStr, Literal

import msgspec

INSTRUCTION_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})

DECORATION = 40
"""Characters that a transcript may put around each piece of a message with calls or media."""

LONGEST_NOTICE = 200
"""Characters that may stand in a shortened text for what was cut, its original size among them."""

READABLE = 1_000
"""Characters of a shortened text, more than any mask leaves: so much of it may stand for the whole before a summariser
without room for more."""

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d[\d,]*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]{1,200}\]")
_FIRST_HEADING = re.compile(r"<(\S+) .*>")


NOTE_KINDS = frozenset({"stub", "pinned_text"})

Reduction = Literal["shortened", "cleared"]
"""Head and tail are left, with a note of the original size; or a placeholder is."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One element of `messages`, with its own bytes."""

    raw: bytes
    role: str
    pieces: tuple[str, ...]
    """What a reader of it has to be shown: its texts, then name and arguments of its calls."""
    texts: int
    """How many of the pieces are texts."""
    plain: bool
    """It is text and nothing else."""
    calls: tuple[str, ...]
    """Ids of the tool calls it makes."""
    answers: str | None
    """Id of the tool call it answers."""
    frame: bytes
    """All of it but its texts and the arguments of its calls."""

    def reduces(self, original: SentMessage) -> Reduction | None:
        """How it stands for an original of which not everything is left; None where it does not."""
        if self.frame != original.frame or self.pieces == original.pieces:
            return None
        if _is_placeholder(self) and original.role in RESULT_ROLES:
            return "cleared"
        if len(self.pieces) != len(original.pieces) or self.texts != original.texts:
            return None
        cut = zip(self.pieces[self.texts :], original.pieces[self.texts :], strict=True)
        calls = all(piece == whole or _are_fewer_arguments(piece, whole) for piece, whole in cut)
        return "shortened" if calls and self._shortens_texts(original) else None

    def _shortens_texts(self, original: SentMessage) -> bool:
        """Whether each text is whole, or head and tail of itself, or the first one of all of them."""
        texts, wholes = self.pieces[: self.texts], original.pieces[: self.texts]
        if texts == wholes:
            return True
        if original.role not in RESULT_ROLES and original.role != "user":
            return False
        together = is_shortened(texts[0], "\n".join(wholes)) and not any(texts[1:])
        return together or all(map(lambda text, whole: text == whole or is_shortened(text, whole), texts, wholes))

    def repairs(self, original: SentMessage) -> bool:
        """Whether it is the message without those of its calls that nothing answers."""
        texts = self.role, self.pieces[: self.texts]
        return texts == (original.role, original.pieces[: original.texts]) and set(self.calls) < set(original.calls)


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A part of what a summary call was shown."""

    heading: str
    body: str
    quoted: bool = True
    """It stands in a transcript; otherwise it is a message of the conversation itself."""

    def quotes(self, message: SentMessage) -> bool:
        """Whether it shows the whole message and nothing else, under its role; of a long text head and tail may do."""
        if message.role not in _WORD.findall(self.heading):
            return False
        if message.plain:
            whole = "\n".join(message.pieces)
            return self.body == whole or (len(self.body) > READABLE and is_shortened(self.body, whole))
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
    sections: tuple[ShownSection, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """What Steno says of a payload where the provider's log cannot tell; indexes into the client's messages."""

    pruned: frozenset[int] = frozenset()
    notes: int = 0
    """Messages of its own: those that stand for pruned ones and say so, and the operator's pinned text."""
    pinned: tuple[int, ...] = ()
    """Messages of which a copy stands behind the summaries."""
    repaired: frozenset[int] = frozenset()
    """Messages without those of their calls that nothing answers."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the client was told."""

    actions: frozenset[str] = frozenset()
    """As the answer names them."""
    coverage: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """The parts of the payload; asked for only where something is missing."""
    status: str | None = None
    """As the answer gives it; None where there was none."""

    def named(self, instructions: int) -> Named:
        """`instructions`: how many of the client's messages the indexes of a coverage leave out."""
        places: dict[str, list[int]] = {"pruned": [], "pinned": [], "repaired": []}
        notes = 0
        for part in self.coverage():
            notes += part["kind"] in NOTE_KINDS
            # What a coverage lists and the answer does not name is as good as hidden.
            if part["kind"] in places and part.get("by", part["kind"]) in self.actions:
                indexes = range(part["first_index"], part["last_index"] + 1)
                places[part["kind"]] += [instructions + index for index in indexes]
        return Named(frozenset(places["pruned"]), notes, tuple(places["pinned"]), frozenset(places["repaired"]))


def is_shortened(piece: str, whole: str) -> bool:
    """Whether it is head and tail of a text, in order, and beside them a notice that holds the text's size."""
    if str(len(whole)) not in piece and f"{len(whole):,}" not in piece:
        return False  # Most are told by this, and the rest takes time.
    head = common_prefix(piece, whole)
    rest = piece[head:]
    tail = _longest(min(len(rest), len(whole) - head), lambda length: whole[len(whole) - length :] in rest)
    start = rest.rfind(whole[len(whole) - tail :])
    notice = f"{rest[:start]} {rest[start + tail :]}"
    sizes = (int(number.replace(",", "")) for number in _NUMBER.findall(notice))
    return len(notice) <= LONGEST_NOTICE and len(whole) in sizes


def _is_placeholder(message: SentMessage) -> bool:
    first, *others = message.pieces or ("",)
    return message.texts == len(message.pieces) and _PLACEHOLDER.fullmatch(first) is not None and not any(others)


def _are_fewer_arguments(piece: str, whole: str) -> bool:
    """Arguments that were cut are still a JSON object, and providers refuse anything else."""
    try:
        cut, full = (msgspec.json.decode(arguments) for arguments in (piece, whole))
    except msgspec.DecodeError:
        return False
    return isinstance(cut, dict) and isinstance(full, dict) and len(piece) < len(whole)


class SentMessages:
    """Raw messages to messages; a replay resends them all, so each is read once."""

    def __init__(self) -> None:
        self._read: dict[bytes, SentMessage] = {}

    def split(self, body: bytes) -> list[SentMessage]:
        """The messages of a chat request's body."""
        return [self.read(raw) for raw in raw_messages(body)]

    def read(self, raw: bytes) -> SentMessage:
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


def sections_of(body: bytes) -> tuple[ShownSection, ...]:
    """What a summary call was shown: a transcript in its last message, or else its messages, the last one being the
    order to summarise."""
    messages = [_message(raw) for raw in raw_messages(body)]
    return _quoted_in(messages[-1]) or _shown_in(messages[:-1]) if messages else ()


def _quoted_in(message: SentMessage) -> tuple[ShownSection, ...]:
    """The part of a text that stands under headings with one fence."""
    lines = message.pieces[0].split("\n") if message.pieces else []
    first = _FIRST_HEADING.fullmatch(lines[0]) if lines else None
    if first is None:
        return ()
    opening = f"<{first[1]} "
    places = [number for number, line in enumerate(lines) if line.startswith(opening) and line.endswith(">")]
    return tuple(
        ShownSection(heading, "\n".join(lines[start + 1 : stop]))
        for start, stop in pairwise(places)
        if (heading := lines[start][len(opening) : -1]) != "end"
    )


def _shown_in(messages: Sequence[SentMessage]) -> tuple[ShownSection, ...]:
    """The conversation itself, as the calls that hit the provider's prompt cache hold it."""
    talk = dropwhile(lambda message: message.role in INSTRUCTION_ROLES, messages)
    return tuple(ShownSection(message.role, "\n".join(message.pieces), quoted=False) for message in talk)


def split_pairs(messages: Iterable[SentMessage]) -> frozenset[str]:
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


def common_prefix(one: AnyStr, other: AnyStr) -> int:
    """How many leading bytes two payloads share, or characters two texts."""
    return _longest(min(len(one), len(other)), lambda length: one[:length] == other[:length])


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest length up to `most` for which something holds, if it holds for all that are smaller."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _message(raw: bytes) -> SentMessage:
    decoded = msgspec.json.decode(raw)
    value: Mapping[str, Any] = decoded if isinstance(decoded, dict) else {}
    texts = _texts(value.get("content"))
    calls = [call for call in value.get("tool_calls") or () if isinstance(call, dict)]
    functions: Sequence[Mapping[str, Any]] = [call.get("function") or {} for call in calls]
    called = [str(function.get(key) or "") for function in functions for key in ("name", "arguments")]
    return SentMessage(
        raw=raw,
        role=str(value.get("role")),
        pieces=tuple(texts + called),
        texts=len(texts),
        plain=not calls and isinstance(value.get("content"), str),
        calls=tuple(str(call.get("id")) for call in calls),
        answers=str(value["tool_call_id"]) if value.get("role") == "tool" else None,
        frame=_frame(value, calls),
    )


def _frame(value: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bytes:
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    left = {
        "content": [part for part in parts if not _is_text(part)],
        "calls": [(call.get("id"), (call.get("function") or {}).get("name")) for call in calls],
    }
    others = {key: inner for key, inner in value.items() if key not in ("content", "tool_calls")}
    return msgspec.json.encode([others, left], order="sorted")


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if _is_text(part)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)

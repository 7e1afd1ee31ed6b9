"""Evidence: what the provider's log shows of messages and of summary calls, in the judge's own reading."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, filterfalse, pairwise
from typing import Any

from lab.replay.sent import INSTRUCTION_ROLES, SentMessage, is_shortened, messages_of

DECORATION = 40
"""Characters that a transcript may put around each piece of a message with calls or media."""

READABLE = 1_000
"""Characters of a shortened text, more than any mask leaves: so much of it may stand for the whole before a summariser
without room for more."""

NOTE_KINDS = frozenset({"stub", "user_words", "client_instructions"})

_WORD = re.compile(r"\w+")
_CUT = re.compile(r"\n\[\.\.\. (\d+) characters in all, shortened \.\.\.\]\n")
_FIRST_HEADING = re.compile(r"<(\S+) .*>")


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A part of what a summary call was shown."""

    heading: str
    body: str
    message: SentMessage | None = None
    """Message of the conversation itself that it is; None where it stands in a transcript."""

    @property
    def quoted(self) -> bool:
        return self.message is None

    def quotes(self, message: SentMessage) -> bool:
        """Whether it shows the whole message and nothing else, under its role; of a long text head and tail may do, and
        of one in the conversation itself what a mask leaves."""
        if self.message is not None and self.message.reduces(message):
            return True
        if message.speakers.isdisjoint(_WORD.findall(self.heading)):
            return False
        if message.plain and len(message.answers) < 2:  # Several results are told apart.
            whole = "\n".join(message.pieces)
            return self.body == whole or (len(self.body) > READABLE and is_shortened(self.body, whole))
        position = shown = 0
        for piece in message.pieces:
            start = self.body.find(piece, position)
            start, stop = (start, start + len(piece)) if start >= 0 else self._ends_of(piece, position)
            if start < 0:
                return False
            position, shown = stop, shown + stop - start
        return len(self.body) - shown <= DECORATION * (1 + len(message.pieces))

    def _ends_of(self, piece: str, position: int) -> tuple[int, int]:
        """Start and stop of head and tail of a long text around a notice of its size; (-1, -1) without them."""
        start = self.body.find(piece[:DECORATION], position)
        notice = _CUT.search(self.body, start) if start >= 0 else None
        if notice is None or int(notice[1]) != len(piece):
            return -1, -1
        end = self.body.find(piece[-DECORATION:], notice.end())
        head, tail = self.body[start : notice.start()], self.body[notice.end() : end + DECORATION]
        is_cut = end >= 0 and piece.startswith(head) and piece.endswith(tail) and len(head) + len(tail) > READABLE
        return (start, end + DECORATION) if is_cut else (-1, -1)


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """One call to the summariser, as the provider logged it."""

    sequence: int
    sections: tuple[ShownSection, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """Parts of a payload that Steno names where the provider's log cannot tell; indexes into the client's messages."""

    pruned: frozenset[int] = frozenset()
    notes: int = 0
    """Messages of its own: those that stand for pruned ones and say so, the operator's pinned text, what the client put
    into its messages for good, and how the model can ask for more."""
    pinned: tuple[int, ...] = ()
    """Messages of which a copy stands behind the summaries."""
    repaired: frozenset[int] = frozenset()
    """Messages without those of their calls that nothing answers."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the client about one request."""

    actions: frozenset[str] = frozenset()
    """Actions that the answer names."""
    coverage: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """The parts of the payload; asked for only where something is missing."""
    status: str | None = None
    """Status that the answer gives; None where there was none."""

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


class SentMessages:
    """Raw messages to messages; a replay resends them all, so each is read once."""

    def __init__(self) -> None:
        self._read: dict[bytes, SentMessage] = {}

    def split(self, body: bytes) -> list[SentMessage]:
        return [self.read(raw) for raw in messages_of(body)]

    def read(self, raw: bytes) -> SentMessage:
        if raw not in self._read:
            self._read[raw] = SentMessage.read(raw)
        return self._read[raw]


def sections_of(body: bytes) -> tuple[ShownSection, ...]:
    """Sections that a summary call was shown: a transcript in its last message, or else its messages, the last one
    being the order to summarise."""
    messages = SentMessages().split(body)
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
    talk = filterfalse(is_note, dropwhile(lambda message: message.role in INSTRUCTION_ROLES, messages))
    return tuple(ShownSection(message.role, "\n".join(message.pieces), message) for message in talk)


def split_pairs(messages: Iterable[SentMessage]) -> frozenset[str]:
    """Ids of tool calls without a result directly behind them, and of results without their call before them."""
    split: set[str] = set()
    waiting: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        split |= {call for call in message.answers if call not in waiting | answered}
        waiting.difference_update(message.answers)
        answered.update(message.answers)
        if not message.answers:
            split |= waiting
            waiting, answered = set(message.calls), set()
    return frozenset(split | waiting)


# Recalled passages: what a payload's note quotes from messages that are not in it

_NOTE = re.compile(r"<recalled ([0-9a-f]{8})>\n(.*)\n</recalled \1>", re.DOTALL)
_LIST = re.compile(r"\[[^\n]*\]\n<values ([0-9a-f]{8})>\n(.*)\n</values \1>", re.DOTALL)
_WORK = re.compile(r"\[[^\n]*\]\n<work ([0-9a-f]{8})>\n(.*)\n</work \1>", re.DOTALL)
_VALUE = re.compile(r"[\w-]+")
_REPLACED = re.compile(r"\(before turn \d+: ")
_QUOTATION = re.compile(r"(\d+) (.*?): (.*)", re.DOTALL)
_CONTINUED = re.compile("(\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029])\t")


@dataclass(frozen=True, slots=True)
class Passage:
    """One quotation, as the note attributes it."""

    position: int
    """Place of the message, from 0, the leading instructions not counted."""
    speaker: str
    text: str

    def is_said_in(self, message: SentMessage) -> bool:
        """Whether it stands there letter by letter, and is that speaker's. What would look like a mark of the note is
        quoted with a backslash behind its `<`."""
        said = any(text in piece for piece in message.pieces for text in (self.text, self.text.replace("<\\", "<")))
        return said and not message.speakers.isdisjoint(_WORD.findall(self.speaker))


def passages_in(message: SentMessage) -> Sequence[Passage]:
    """The quotations of a note, each behind its position and speaker; none where it is no such note.

    A quotation begins a line; what it quotes goes on behind a tab.
    """
    note = _NOTE.search("\n".join(message.pieces))
    if note is None:
        return ()
    lines = re.split(r"\n(?!\t)", note[2])
    quoted = (_QUOTATION.fullmatch(_CONTINUED.sub(r"\1", line)) for line in lines)
    return tuple(Passage(int(found[1]) - 1, found[2], found[3]) for found in quoted if found)


def listed_in(message: SentMessage) -> Sequence[str]:
    """The values that a note lists; none where it is no such note, such as a summary that has a list of its own."""
    listed = _LIST.fullmatch("\n".join(message.pieces))
    return listed[2].split("\n") if listed else ()


def states_work(message: SentMessage) -> bool:
    """Whether it is a note of the state of an agent's work."""
    return _WORK.fullmatch("\n".join(message.pieces)) is not None


def is_note(message: SentMessage) -> bool:
    """Whether it is a note that Steno puts into a payload beside the summaries: it stands for no message."""
    if message.role != "user":
        return False
    return bool(passages_in(message) or listed_in(message)) or states_work(message)


def is_said(line: str, messages: Iterable[SentMessage]) -> bool:
    """Whether all values of a line were said: a record brings together what several messages say of a thing."""
    said = "\n".join(piece for message in messages for piece in message.pieces)
    values = _VALUE.findall(_REPLACED.sub("(", line))
    return all(value in said for value in values if any(map(str.isdigit, value)))

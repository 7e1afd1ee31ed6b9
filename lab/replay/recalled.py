"""Recalled passages: what a payload's note quotes from messages that are not in it, in the judge's own reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.formats.sent import SentMessage

_NOTE = re.compile(r"<recalled ([0-9a-f]{8})>\n(.*)\n</recalled \1>", re.DOTALL)
_LIST = re.compile(r"\[[^\n]*\]\n<values ([0-9a-f]{8})>\n(.*)\n</values \1>", re.DOTALL)
_WORK = re.compile(r"\[[^\n]*\]\n<work ([0-9a-f]{8})>\n(.*)\n</work \1>", re.DOTALL)
_WORD = re.compile(r"\w+")
_VALUE = re.compile(r"[\w-]+")
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
    return all(value in said for value in _VALUE.findall(line) if any(map(str.isdigit, value)))

"""Passages: the pieces of messages that are found and quoted, letter by letter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from app.core.history.messages import Kind, Message, Transcript
from app.core.quoting import word

LONGEST_PASSAGE = 480
"""Characters: some sentences, or a dozen lines of code. What is shorter is one passage."""

QUESTION_MARKS = "?\uff1f\u061f\u037e"
"""Ends of a question in Latin and most other scripts, Chinese and Japanese, Arabic, and Greek."""

_BREAKS = ("\n\n", "\n", "}, ", ". ", "? ", "! ", "\u3002", "; ", ", ", ",", " ")
"""Signs behind which a passage may end, the best first."""
_LETTERS = re.compile(r"\w")


class Passage(Struct, frozen=True):
    message: int
    """Counted after the leading instructions."""
    source: int
    """Number of the source among the message's texts, and then its calls' arguments."""
    start: int
    stop: int
    """End of the passage, in characters of its source."""


def passages_in(message: Message, index: int) -> Iterator[Passage]:
    """A message's passages, in order; none of what is sealed, which nobody else may read, nor of thoughts."""
    if message.sealed:
        return
    for number, text in enumerate(sources(message)):
        for start, stop in _pieces(text):
            if _LETTERS.search(text, start, stop):
                yield Passage(index, number, start, stop)


def sources(message: Message) -> Sequence[str]:
    """Texts of a message that passages are taken from."""
    calls = (*message.calls, *message.settled)
    return (*message.texts, *(call.arguments for call in calls)) if calls else message.texts


def called_by(message: Message, source: int) -> str:
    """The tool whose call has these arguments; empty for a text."""
    calls = (*message.calls, *message.settled)
    return calls[source - len(message.texts)].name if source >= len(message.texts) else ""


def heading_of(transcript: Transcript, passage: Passage) -> str:
    """Number of a passage's message, from 1, and who says or calls it, as it stands before the quotation."""
    message = transcript.messages[passage.message]
    if tool := called_by(message, passage.source):
        speaker = f"{word(message.role)} calls {word(tool)}"
    elif message.kind is Kind.RESULT:
        speaker = f"tool {word(transcript.tool_name(passage.message))}".strip()
    else:
        speaker = f"{word(message.role)} {word(message.name)}".strip()
    return f"{passage.message + 1} {speaker}"


def text_of(message: Message, passage: Passage) -> str:
    """A passage of this message, letter by letter."""
    return sources(message)[passage.source][passage.start : passage.stop]


def ends_asking(message: Message, passage: Passage) -> bool:
    """Whether a passage ends in a question, which what follows it may answer."""
    return text_of(message, passage).rstrip().endswith(tuple(QUESTION_MARKS))


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while len(text) - start > LONGEST_PASSAGE:
        stop = _break_in(text, start + LONGEST_PASSAGE // 2, start + LONGEST_PASSAGE)
        yield start, stop
        start = stop
    if start < len(text):
        yield start, len(text)


def _break_in(text: str, least: int, most: int) -> int:
    found = ((text.rfind(mark, least, most), len(mark)) for mark in _BREAKS)
    return next((place + length for place, length in found if place >= 0), most)

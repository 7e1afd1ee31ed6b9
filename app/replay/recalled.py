"""Recalled passages: what a payload's note quotes from messages that are not in it, in the judge's own reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.replay.sent import SentMessage

_HEADING = re.compile(r"<([0-9a-f]{8}) (?:(\d+) (.*)|end)>")
_NUMBER_AND_NAME = re.compile(r"\w+")
_ESCAPED = re.compile(r"(<[^\w\n]*)\\")


@dataclass(frozen=True, slots=True)
class Passage:
    """One quotation, as the note attributes it."""

    position: int
    """Of the message, from 0, the instructions not counted."""
    speaker: str
    text: str

    def is_said_in(self, message: SentMessage) -> bool:
        """Whether it stands there letter by letter, in what this speaker said."""
        return message.role in _NUMBER_AND_NAME.findall(self.speaker) and self.text in "\n".join(message.pieces)


def passages_in(message: SentMessage) -> Sequence[Passage]:
    """What stands in a message between headings with one fence, each with a position and a speaker."""
    lines = "\n".join(message.pieces).split("\n")
    headings = [(number, found) for number, line in enumerate(lines) if (found := _HEADING.fullmatch(line))]
    fence = headings[-1][1][1] if headings else ""
    places = [(number, found) for number, found in headings if found[1] == fence]
    return tuple(
        Passage(int(found[2]) - 1, found[3], "\n".join(lines[start + 1 : stop]))
        for (start, found), (stop, _) in pairwise(places)
        if found[2]
    )

"""Kept: what an agent uses again, or is asked about, and whether the payload that it answers from has it.

Identifiers are defined here and nowhere else: the measure must not read as the product does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lab.replay.recordings import Question, Recording
from lab.replay.sent import INSTRUCTION_ROLES, Message, read_message
from lab.simulator.counting import texts_in

FAR = 12
"""An identifier is far where so many messages, or fewer, say it for the last time before it is used again."""
DUE_RATIO = 0.70
"""Share of the window from which on a conversation is looked at: before, everything is there."""
NOTHING = "-"
"""Cell of a table that has nothing to tell."""

_SUFFIXES = (
    "py|pyi|js|jsx|ts|tsx|go|rs|java|rb|php|c|h|cc|cpp|sh|sql|md|txt|csv|json|ya?ml|toml|html|css|pdf|log|xml|ini|cfg"
)
_VALUE = re.compile(
    rf"""
    (?P<file> https?://[^\s"'<>)\]}}]+ | [\w.+-]+@[\w-]+(?:\.[\w-]+)+
            | (?:[\w.~-]*/)+[\w.-]*\w\.[A-Za-z]\w{{0,4}}\b | \b[\w-]+\.(?:{_SUFFIXES})\b )
  | (?P<date> \b\d{{4}}-\d\d-\d\d(?!\d) )
  | (?P<id> \b(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*\b | \b[A-Z]{{5,}}\b )
    """,
    re.VERBOSE,
)
_ESCAPED_SPACE = re.compile(r"\\[nrt]")
"""A line end or a tab in the text of a JSON document, such as a call's arguments."""
_LEAST_ID = 4
"""Characters: `2x` and `A1` are no ids."""
_COUNTED = re.compile(r"\d{1,3}(?:st|[nr]d|th|-[a-z]+)|\d+[a-z]")
"""An ordinal, or a number and what it counts or what is done to it: `24th`, `24-hour` and `420p` are no ids."""


def identifiers_in(text: str) -> list[str]:
    """Paths, addresses and ids, each once."""
    found = _VALUE.finditer(_ESCAPED_SPACE.sub("  ", text))
    return list(dict.fromkeys(match[0] for match in found if match["file"] or (match["id"] and _is_id(match["id"]))))


def _is_id(text: str) -> bool:
    return len(text) >= _LEAST_ID and _COUNTED.fullmatch(text) is None


@dataclass(slots=True)
class Share:
    """How many of something were found."""

    found: int = 0
    sought: int = 0

    def add(self, stands: bool) -> None:
        self.found += stands
        self.sought += 1

    def __str__(self) -> str:
        return f"{self.found / self.sought:.1%} of {self.sought:,}" if self.sought else NOTHING


@dataclass(slots=True)
class Kept:
    far: Share = field(default_factory=Share)
    """Identifiers that an answer uses, and that were said last more than `FAR` messages before."""
    evidence: Share = field(default_factory=Share)
    """Questions, with all remarks that they take."""


class Memory:
    """One conversation, and how much of it is remembered where it counts."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._last_said: dict[str, int] = {}
        self._read = 0

    def look(self, end: int, payload: str, kept: Kept, *, due: bool) -> None:
        """The answer that begins at `end` was made from this payload. Requests come in order."""
        messages = self._recording.messages
        for place in range(self._read, end):
            if messages[place]["role"] not in INSTRUCTION_ROLES:
                self._last_said.update(dict.fromkeys(identifiers_in(said(messages[place])), place))
        self._read = end
        for value in identifiers_in(said(messages[end])) if due and end < len(messages) else ():
            if end - self._last_said.get(value, end) > FAR:
                kept.far.add(stands_in(value, payload))

    def ask(self, question: Question, payload: str, kept: Kept) -> None:
        remarks = (self._recording.remarks[name].text for name in question.evidence)
        kept.evidence.add(all(text in payload for text in remarks))


def stands_in(value: str, text: str) -> bool:
    """Whether a text has the value letter by letter, and not as a part of a longer one."""
    start = text.find(value)
    while start >= 0:
        stop = start + len(value)
        if not (text[start - 1 : start].isalnum() or text[stop : stop + 1].isalnum()):
            return True
        start = text.find(value, start + 1)
    return False


def said(message: Message) -> str:
    """Everything a message says, the arguments of its calls as text."""
    read = read_message(message)
    asked = (text for call in read.calls for text in texts_in(_decoded(call.arguments)) if text)
    return "\n".join((*read.texts, *(call.name for call in read.calls), *asked))


def _decoded(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments

"""Kept: what an agent uses again, or is asked about, and whether the payload that it answers from has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.benchmarks.rivals.agents import LONGEST_SIGN, Step, View, said, steps_of
from lab.formats.sent import INSTRUCTION_ROLES
from lab.replay.recordings import Question, Recording
from lab.replay.survival import FAR, Value, values_in

IDENTIFIERS = frozenset({"files", "ids"})
DUE_RATIO = 0.70
"""Share of the window from which on a conversation is looked at: before, everything is there."""

NOTHING = "-"
"""Cell of a table that has nothing to tell."""


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
    """Counts over all conversations."""

    far: Share = field(default_factory=Share)
    """Identifiers that an answer uses, and that were said last more than `FAR` messages before."""
    views: Share = field(default_factory=Share)
    """Files that an answer turns to after the agent changed them: what was last seen of them."""
    failures: Share = field(default_factory=Share)
    """Answers after a command that failed: the last one, and its error."""
    evidence: Share = field(default_factory=Share)
    """Questions, with all remarks that they take."""


class Memory:
    """One conversation, and how much of it is remembered where it counts."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._texts = [said(message) for message in recording.messages]
        self._steps = list(steps_of(recording.messages))
        self._last_said: dict[Value, int] = {}
        self._read = 0

    def look(self, end: int, payload: str, kept: Kept, *, due: bool) -> None:
        """The answer that begins at `end` was made from this payload. Requests come in order."""
        self._read_on(end)
        if due:
            self._seek_identifiers(end, payload, kept)
            self._seek_views(end, payload, kept)
            self._seek_failure(end, payload, kept)

    def ask(self, question: Question, payload: str, kept: Kept) -> None:
        remarks = (self._recording.remarks[name].text for name in question.evidence)
        kept.evidence.add(all(text in payload for text in remarks))

    def _read_on(self, end: int) -> None:
        for place in range(self._read, end):
            if self._recording.messages[place]["role"] not in INSTRUCTION_ROLES:
                self._last_said.update(dict.fromkeys(self._identifiers(place), place))
        self._read = end

    def _seek_identifiers(self, end: int, payload: str, kept: Kept) -> None:
        for value in self._identifiers(end):
            place = self._last_said.get(value, end)
            if end - place > FAR:
                kept.far.add(stands_in(value.text, payload))

    def _seek_views(self, end: int, payload: str, kept: Kept) -> None:
        done = [step for step in self._steps if step.answered < end]
        turned_to = {file for step in self._steps if step.place == end for file in step.files}
        changed = {file for step in done for file in step.changes}
        seen = _last_views(done)
        for file in sorted(turned_to & changed & seen.keys()):
            kept.views.add(seen[file].is_known_from(payload))

    def _seek_failure(self, end: int, payload: str, kept: Kept) -> None:
        failed = (step for step in reversed(self._steps) if step.answered < end and step.failed)
        if (last := next(failed, None)) is not None and last.error is not None:
            command = last.command.strip().splitlines()[0][: LONGEST_SIGN // 2]
            kept.failures.add(command in payload and last.error in payload)

    def _identifiers(self, place: int) -> list[Value]:
        if place >= len(self._texts):
            return []
        return [value for value in values_in(self._texts[place]) if value.kind in IDENTIFIERS]


def _last_views(steps: Sequence[Step]) -> Mapping[str, View]:
    return {file: View(file, step.shown) for step in steps if step.shown for file in step.files}


def stands_in(value: str, text: str) -> bool:
    """Do as `Value.stands_in` does, without a pattern: payloads are long."""
    start = text.find(value)
    while start >= 0:
        stop = start + len(value)
        if not (text[start - 1 : start].isalnum() or text[stop : stop + 1].isalnum()):
            return True
        start = text.find(value, start + 1)
    return False

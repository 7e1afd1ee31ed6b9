"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came: only a frame that may hold something of ours is looked into,
and even that keeps all its other bytes. There are three such frames. The first chunk gets the status, so that a
client knows it soon. The first chunk that finishes a choice gets everything: many clients stop reading there. And
where we began the stream ourselves, every chunk is given the head that was sent, and the one with the role loses it:
clients break on a second role, drop chunks of another id, and cannot merge two times or models.

An answer in one piece gets everything at its end. What is not what it should be passes as it came: the client's own
parser is the judge of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from app.wire.answers import LONGEST_NAME, LONGEST_TEXT, AnswerEditor, joined, usage_in
from app.wire.chat_completions.early import ChunkHead
from app.wire.members import RawObject, Unreadable, split_array
from app.wire.sse import last_end
from app.wire.usage import Usage, says_window_full, text_of, usage_of

_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_REASON = re.compile(rb'"finish_reason"\s*+:\s*+"([^"\\]{1,100})"')
_USAGE = re.compile(rb'"usage"\s*:\s*[^n\s]')
_NOTABLE = ((b'"finish_reason"', _FINISH), (b'"usage"', _USAGE), (b'"error"', None), (b"[DONE]", None))
"""A frame without any of these four says nothing new of itself."""
USUAL_REASONS = frozenset({b"stop", b"length", b"tool_calls", b"function_call", b"content_filter"})
_SEARCHES = re.compile(r"-search-(?:preview|api)")
"""Models that search the web once for each answer, and charge for it."""
SAMPLE = 2_048
"""Bytes of frames that pass unseen in which their text is counted; the others are taken to hold as much."""
ENDING = 4_096
"""Bytes of frames that came together among which those that say something of themselves nearly always are."""


@dataclass(slots=True)
class CompletionEditor(AnswerEditor):
    """One answer, streamed or whole. What the provider's chunks had for a head stands in `context.provider`."""

    TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

    sent: ChunkHead | None = None
    """The head of the chunks that were sent before the provider's."""
    choices: int = 1
    """Number of answers in the stream, each with an end of its own."""
    hides_usage: bool = False
    """Whether the usage is taken out again: the client did not ask for it, we did, and many clients break on it."""
    finished: set[int] = field(default_factory=set)
    """Choices with a reason to finish. After the last one what follows is bookkeeping."""
    _sampled: int = field(default=0, compare=False)
    """Bytes of frames that passed unseen in which text was counted."""
    _sampled_text: int = field(default=0, compare=False)

    @property
    def complete(self) -> bool:
        """Whether the answer had an end of its own: reasons to finish, `[DONE]`, or an error."""
        return len(self.finished) >= self.choices or self.ended or self.failed

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model, self.tier, int(_SEARCHES.search(self.model) is not None))

    def _read_whole(self, answer: RawObject) -> None:
        self._take_usage(answer)
        self.window_full = window_was_full(answer.raw("choices"))

    def quiet(self, frames: bytes, start: int) -> int:
        if not self.begun or self.sent is not None or self.hides_usage:
            return start
        stop = _first_notable(frames, start)
        if 0 < stop - start <= LONGEST_TEXT:
            self._count_text(frames, start, stop)
        return stop

    def _passes(self, text: bytes) -> bool:
        if text.startswith(b"[DONE]"):
            self.ended = True
            return True
        tells_usage = (b'"usage"' in text) if self.hides_usage else _USAGE.search(text)
        told = self.begun and self.sent is None
        return told and not tells_usage and b'"error"' not in text and _FINISH.search(text) is None

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said and said.value("error"):
            self.failed = True
            self.refusal = b"" if self.begun else said.text
            return said.text
        self._take_usage(said)
        self.window_full = self.window_full or window_was_full(said.raw("choices"))
        hides = self.hides_usage and "usage" in said
        if hides and not said.value("choices"):
            return b""
        replaced, added = self._headed(said)
        members = self._members(_finished_choices(said))
        if replaced or added or hides:
            said = RawObject(said.spliced(replaced, ("usage",) if hides else (), added))
        return said.with_status(members) if members else said.text

    def _take_usage(self, said: RawObject) -> None:
        if usage := usage_in(said):
            self.usage_said = usage
            self.model = text_of(said, "model") or self.model
            self.tier = text_of(said, "service_tier") or self.tier

    def _count_text(self, frames: bytes, start: int, stop: int) -> None:
        """Count the text of frames that pass unseen."""
        if self._sampled < SAMPLE:
            sample = last_end(frames, start, min(stop, start + SAMPLE))
            sample = sample if sample > start else stop
            written = sum(map(len, self.TEXT.findall(frames, start, sample)))
            self.text_bytes += written
            self._sampled_text += written
            self._sampled += sample - start
            start = sample
        self.text_bytes += self._sampled_text * (stop - start) // self._sampled

    def _members(self, finishes: set[int]) -> bytes:
        """Members for the chunk: all in the first one that finishes a choice, else the status in the first one."""
        is_first, is_finish = not self.begun, bool(finishes) and not self.finished
        self.begun = True
        if len(self.finished) < self.choices:  # A provider may number them without an end.
            self.finished |= finishes
        return self._last_members() if is_finish else self.first_members if is_first else b""

    def _headed(self, chunk: RawObject) -> tuple[dict[str, bytes], bytes]:
        """Members of the head that was sent: those to replace in the chunk, and those to add."""
        if self.sent is None:
            return {}, b""
        head = self.sent.members
        for name in head:
            raw = chunk.raw(name) or b""
            if name not in self.provider and len(raw) <= LONGEST_NAME and chunk.value(name):
                self.provider[name] = raw
        replaced = {name: value for name, value in head.items() if name in chunk}
        missing = {name: value for name, value in head.items() if name not in chunk and "choices" in chunk}
        if (choices := chunk.raw("choices")) is not None and b'"role"' in choices:
            replaced["choices"] = _without_role(choices)
        return replaced, joined(missing)


def _first_notable(frames: bytes, start: int) -> int:
    """Beginning of the first frame that says something new of itself; the end of all without one.

    It is nearly always among the last ones: those before them are looked at by themselves.
    """
    last = last_end(frames, start, max(start, len(frames) - ENDING))
    found = _notable_in(frames, start, last) if start < last else None
    found = _notable_in(frames, last, len(frames)) if found is None else found
    return len(frames) if found is None else found


def _notable_in(frames: bytes, start: int, stop: int) -> int | None:
    """The same among these, which end at `stop`.

    To search by pattern takes ten times as long as to count: where that finds something, many are halved first.
    """
    if not _may_be_notable(frames, start, stop):
        return None
    middle = last_end(frames, start, (start + stop) // 2)
    if stop - start > ENDING and middle > start:
        found = _notable_in(frames, start, middle)
        return _notable_in(frames, middle, stop) if found is None else found
    found = stop
    for name, said in _NOTABLE:
        place = frames.find(name, start, found)
        if place != -1 and said is not None:
            match = said.search(frames, place, found)
            place = match.start() if match else -1
        if place != -1:
            found = place
    return None if found == stop else last_end(frames, start, found)


def _may_be_notable(frames: bytes, start: int, stop: int) -> bool:
    if frames.find(b"error", start, stop) != -1 or frames.find(b"[DONE]", start, stop) != -1:
        return True
    for name in (b"finish_reason", b"usage"):
        left = frames.count(name, start, stop)
        if left:
            left -= frames.count(name + b'":null', start, stop)
        if left and left != frames.count(name + b'": null', start, stop):
            return True
    return False


def window_was_full(choices: bytes | None) -> bool:
    """Whether one of a completion's choices, or of a chunk's, finished for that reason. They are not decoded."""
    reasons = _REASON.findall(choices or b"")
    if USUAL_REASONS.issuperset(reasons):
        return False
    return any(says_window_full(reason.decode("latin-1")) for reason in reasons)


def _finished_choices(chunk: RawObject) -> set[int]:
    choices = chunk.value("choices")
    if not isinstance(choices, list):
        return set()
    finished = (choice for choice in choices if isinstance(choice, dict) and choice.get("finish_reason"))
    return {index for choice in finished if isinstance(index := choice.get("index", 0), int)}


def _without_role(choices: bytes) -> bytes:
    """The choices with the role taken out of choice 0's delta; all else keeps its bytes, and so does what is none."""
    try:
        elements = split_array(choices)
    except Unreadable:
        return choices
    return b"[" + b",".join(map(_choice_without_role, elements)) + b"]"


def _choice_without_role(raw: bytes) -> bytes:
    try:
        choice = RawObject(raw)
        delta = choice.raw("delta")
        if choice.value("index") != 0 or delta is None:
            return raw
        return choice.spliced({"delta": RawObject(delta).spliced(remove=("role",))})
    except Unreadable:
        return raw

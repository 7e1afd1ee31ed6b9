"""The judge: whether what the provider received still says all that the client said.

It reads the provider's log and the client's own bytes, never Steno's report, and does nothing but compare them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.replay.evidence import (
    INSTRUCTION_ROLES,
    Message,
    MessageReader,
    Section,
    SummaryCall,
    common_prefix,
    messages_of,
    sections_of,
    split_pairs,
)
from app.simulator import Record

KEPT_SHARE = 0.95
"""On a turn without a compaction at least this share of the previous payload's bytes begins this one."""

Kind = Literal[
    "no_answer",  # The client got none.
    "not_sent",  # No payload reached the provider, or more than one.
    "refused",  # The provider did not accept it.
    "instructions",  # Not first, or not verbatim.
    "last_user",  # Not verbatim.
    "split_pair",  # A tool call without its result, or the other way round.
    "lost",  # Neither verbatim nor in a summary.
    "twice",  # More than once: verbatim and in a summary, or in two of them.
    "foreign_summary",  # A summary that was not made from the messages it stands for.
    "changed",  # A message that is no message of the client's, and no summary.
    "prefix",  # The previous payload was not extended, though nothing was compacted.
    "idle",  # Summary calls were made, and the payload does not show it.
]


@dataclass(frozen=True, slots=True)
class Violation:
    conversation: str
    request: int
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one request's payload showed."""

    violations: tuple[Violation, ...] = ()
    summary_calls: int = 0
    folds: int = 0
    compaction: bool = False
    """A summary was made in this request, one made elsewhere was taken up, or tool results were masked."""
    broke: bool = False
    """It does not extend the previous payload."""
    previous_bytes: int = 0
    kept_bytes: int = 0
    verbatim: int = 0
    summarised: int = 0
    payload: tuple[Message, ...] = ()


class SummaryCalls:
    """All summary calls the log has shown, of whichever conversation: any of them may be used in any other."""

    def __init__(self) -> None:
        self._by_text: dict[str, list[SummaryCall]] = {}
        self._standing: dict[bytes, str] = {}

    def add(self, record: Record) -> SummaryCall:
        text = (record.text or "").rpartition("</think>")[2].strip()
        call = SummaryCall(record.sequence, sections_of(record.body), text)
        if text and record.status is not None and record.status < 300:
            self._by_text.setdefault(text, []).append(call)
        return call

    def with_text(self, text: str) -> Sequence[SummaryCall]:
        return self._by_text.get(text, ())

    def standing_in(self, message: Message) -> Sequence[SummaryCall]:
        """The calls whose summary this message holds: the longest text, as a fold may repeat what it was made from."""
        if message.raw not in self._standing:
            content = "\n".join(message.pieces)
            found = max((text for text in self._by_text if text in content), key=len, default=None)
            if found is None:
                return ()
            self._standing[message.raw] = found
        return self._by_text[self._standing[message.raw]]

    def is_fold(self, call: SummaryCall) -> bool:
        """Whether it was shown summaries, beside what they carried."""
        return any(self.with_text(section.body) for section in call.sections)


@dataclass(frozen=True, slots=True)
class _Range:
    """The messages that a summary was made from, up to `stop`, and those of them that must stay verbatim."""

    stop: int
    carried: tuple[int, ...]


class Judge:
    """Judges the requests of one conversation, in order."""

    def __init__(self, conversation: str, calls: SummaryCalls, reader: MessageReader) -> None:
        self._conversation = conversation
        self._calls = calls
        self._reader = reader
        self._made_here: set[int] = set()
        self._seen: set[str] = set()
        self._previous: bytes | None = None
        self._masked: set[int] = set()

    def judge(self, request: int, sent: bytes, records: Iterable[Record]) -> Verdict:
        """`sent` is the client's body; `records` is what the log gained while the request was answered."""
        records = list(records)
        made = [self._calls.add(record) for record in records if record.kind == "summary"]
        self._made_here.update(call.sequence for call in made)
        chats = [record for record in records if record.kind == "chat"]
        folds = sum(map(self._calls.is_fold, made))
        if len(chats) != 1:
            sentence = f"The provider received {len(chats) or 'no'} payloads for this request."
            return Verdict(self._violations(request, [("not_sent", sentence)]), len(made), folds, bool(made))
        record = chats[0]
        walk = _Walk(self._calls, self._reader.split(sent), self._reader.split(record.body))
        found_here = [*_acceptance(record), *walk.problems()]

        taken_up = {call.text for call in walk.standing if call.sequence not in self._made_here} - self._seen
        self._seen.update(call.text for call in walk.standing)
        compaction = bool(made or taken_up or set(walk.masked) - self._masked)
        self._masked = set(walk.masked)
        payload = messages_of(record.body).removesuffix(b"]")
        previous, self._previous = self._previous, payload
        kept = common_prefix(previous, payload) if previous else 0
        broke = previous is not None and kept < KEPT_SHARE * len(previous)
        found_here += _prefix_problems(previous, kept, broke, compaction)
        return Verdict(
            violations=self._violations(request, found_here),
            summary_calls=len(made),
            folds=folds,
            compaction=compaction,
            broke=broke,
            previous_bytes=len(previous or b""),
            kept_bytes=kept,
            verbatim=len(walk.verbatim),
            summarised=len(walk.summarised),
            payload=tuple(walk.payload),
        )

    def _violations(self, request: int, found: Iterable[tuple[Kind, str]]) -> tuple[Violation, ...]:
        return tuple(Violation(self._conversation, request, kind, sentence) for kind, sentence in found)


Found = Iterator[tuple[Kind, str]]


@dataclass
class _Walk:
    """One payload read from its beginning, with the place in the history that each message belongs to."""

    calls: SummaryCalls
    history: Sequence[Message]
    payload: Sequence[Message]
    verbatim: list[int] = field(default_factory=list)
    summarised: list[int] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    """Tool results of which head and tail are there."""
    standing: list[SummaryCall] = field(default_factory=list)
    _found: list[tuple[Kind, str]] = field(default_factory=list)
    _position: int = 0
    _carried: list[int] = field(default_factory=list)
    """Messages of the last summary that have to stand behind it."""
    _objection: str = ""
    """Why the last summary that was tried does not fit."""

    def __post_init__(self) -> None:
        self._instructions = self._position = _leading_instructions(self.history)
        self._places: dict[bytes, list[int]] = {}
        for index, message in enumerate(self.history):
            self._places.setdefault(message.raw, []).append(index)
        begin = self._begin()
        for place, message in enumerate(self.payload[begin:], begin):
            self._step(place, message)

    def problems(self) -> Found:
        yield from self._found
        yield from self._coverage_problems()
        last_user = max((i for i, message in enumerate(self.history) if message.role == "user"), default=None)
        if last_user is not None and last_user not in self.verbatim:
            yield "last_user", f"The last user message, {self._name(last_user)}, is not verbatim in the payload."
        if split := sorted(split_pairs(self.payload) - split_pairs(self.history)):
            yield "split_pair", f"The payload holds only one side of the tool calls {', '.join(split)}."

    def _begin(self) -> int:
        """Where the instructions end in the payload."""
        expected = [message.raw for message in self.history[: self._instructions]]
        if [message.raw for message in self.payload[: self._instructions]] == expected:
            self.verbatim += range(self._instructions)
            return self._instructions
        self._found.append(("instructions", "The payload does not begin with the client's instructions, verbatim."))
        return _leading_instructions(self.payload)

    def _step(self, place: int, message: Message) -> None:
        if self._carried and message.raw == self.history[self._carried[0]].raw:
            self.verbatim.append(self._carried.pop(0))
            return
        self._carried.clear()  # What is missing of it shows as lost.
        if self._position < len(self.history) and message.raw == self.history[self._position].raw:
            self.verbatim.append(self._position)
            self._position += 1
        elif self._position < len(self.history) and message.shortens(self.history[self._position]):
            self.masked.append(self._position)
            self._position += 1
        elif message.raw in self._places:
            self._jump(message)
        elif standing := self.calls.standing_in(message):
            self._take_summary(place, standing)
        else:
            text = f"Message {place + 1} of the payload ({message.role}) is neither a message of the client's nor a"
            self._found.append(("changed", f"{text} summary that the log knows of."))

    def _jump(self, message: Message) -> None:
        """A message of the client's in another place than the next: what lies between is lost, or stands twice."""
        places = self._places[message.raw]
        index = next((index for index in places if index >= self._position), places[-1])
        self.verbatim.append(index)
        self._position = max(self._position, index + 1)

    def _take_summary(self, place: int, standing: Sequence[SummaryCall]) -> None:
        found = [(call, covered) for call in standing for covered in self._ranges(call, self._position)]
        if not found:
            self.standing += standing[:1]
            text = f"The summary in message {place + 1} of the payload was made from other messages: "
            self._found.append(("foreign_summary", text + self._objection))
            return
        # Two calls may have written the same text: the one after which the payload goes on for longest.
        call, covered = max(found, key=lambda pair: (self._goes_on(place + 1, pair[1]), pair[1].stop))
        self.standing.append(call)
        self.summarised += [i for i in range(self._position, covered.stop) if i not in covered.carried]
        self._carried = list(covered.carried)
        self._position = covered.stop

    def _goes_on(self, place: int, covered: _Range) -> int:
        """How many messages of the payload, from this place, are what follows that range."""
        after = place + len(covered.carried)
        followed = 0
        for message, expected in zip(self.payload[after:], self.history[covered.stop :], strict=False):
            if message.raw != expected.raw:
                break
            followed += 1
        if followed == 0 and after < len(self.payload):
            next_calls = self.calls.standing_in(self.payload[after])
            return int(any(self._ranges(call, covered.stop) for call in next_calls))
        return followed

    def _ranges(self, call: SummaryCall, start: int) -> list[_Range]:
        """The ranges a call may cover if it begins at `start`; none if it was made from other messages.

        There are several only where calls wrote the same text, and a fold was shown it.
        """
        if not call.sections:
            self._objection = "its call quotes no transcript."
        reached = [_Range(start, ())] if call.sections else []
        own = True
        for section in call.sections:
            children = [child for child in self.calls.with_text(section.body) if child.sequence < call.sequence]
            own = own and not children
            if children:
                reached = [
                    _Range(after.stop, (*before.carried, *after.carried))
                    for before in reached
                    for child in children
                    for after in self._ranges(child, before.stop)
                ]
            elif own:
                reached = [_Range(r.stop + 1, r.carried) for r in reached if self._is_quoted(section, r.stop)]
            else:
                reached = [self._released(section, r) for r in reached]
        return [_Range(r.stop, self._to_carry(start, r.stop)) for r in reached] if own else reached

    def _released(self, section: Section, reached: _Range) -> _Range:
        """A fold was shown a message that its summaries carried so far: that is summarised now."""
        shown = next((i for i in reached.carried if section.quotes(self.history[i])), None)
        return _Range(reached.stop, tuple(i for i in reached.carried if i != shown))

    def _is_quoted(self, section: Section, index: int) -> bool:
        if index >= len(self.history):
            self._objection = "its call was shown more messages than the conversation has."
            return False
        if not section.quotes(self.history[index]):
            self._objection = f"{self._name(index)} is not in the input of its call."
            return False
        return True

    def _to_carry(self, start: int, stop: int) -> tuple[int, ...]:
        """Instructions of a range, and the user message of a turn that its end splits."""
        split = None
        if stop < len(self.history) and self.history[stop].role != "user":
            split = next((i for i in range(stop - 1, start - 1, -1) if self.history[i].role == "user"), None)
        kept = (i for i in range(start, stop) if i == split or self.history[i].role in INSTRUCTION_ROLES)
        return tuple(kept)

    def _coverage_problems(self) -> Found:
        covered = Counter((*self.verbatim, *self.summarised, *self.masked))
        indexes = range(len(self.history))
        for first, last in _runs(i for i in indexes if not covered[i]):
            yield "lost", f"{self._names(first, last)} not in the payload, nor in the input of a summary that is."
        for first, last in _runs(i for i in indexes if covered[i] > 1):
            yield "twice", f"{self._names(first, last)} covered more than once."

    def _names(self, first: int, last: int) -> str:
        return f"{self._name(first)} is" if first == last else f"Messages {first + 1} to {last + 1} are"

    def _name(self, index: int) -> str:
        return f"Message {index + 1} ({self.history[index].role})"


def _acceptance(record: Record) -> Found:
    if record.status is None or not 200 <= record.status < 300:
        yield "refused", f"The provider answered with status {record.status} to {record.prompt_tokens} prompt tokens."


def _prefix_problems(previous: bytes | None, kept: int, broke: bool, compaction: bool) -> Found:
    if previous is None:
        return
    if broke and not compaction:
        share = f"{kept} of the previous payload's {len(previous)} bytes"
        yield "prefix", f"Only {share} begin this one, and no summary was made or taken up."
    elif compaction and not broke:
        yield "idle", "Summary calls were made, and yet the payload only extends the previous one."


def _leading_instructions(messages: Sequence[Message]) -> int:
    return next((i for i, message in enumerate(messages) if message.role not in INSTRUCTION_ROLES), len(messages))


def _runs(indexes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring indexes as ranges, both ends inclusive."""
    first = last = -2
    for index in indexes:
        if index != last + 1:
            if last >= 0:
                yield first, last
            first = index
        last = index
    if last >= 0:
        yield first, last

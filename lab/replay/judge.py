"""The judge: whether what the provider received still says all that the client said.

It reads the provider's log and the client's own bytes and compares them. Only where a message is in no payload and in
no summary does it ask what the client has heard: what was left out and named is pruned, what was not named is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from lab.replay.evidence import (
    Named,
    Passage,
    Report,
    SentMessages,
    ShownSection,
    SummaryCall,
    is_note,
    is_said,
    listed_in,
    passages_in,
    sections_of,
    split_pairs,
    states_work,
)
from lab.replay.sent import INSTRUCTION_ROLES, SentMessage, common_prefix, prompt_of
from lab.simulator import Record

KEPT_SHARE = 0.95
"""On a turn without a compaction at least this share of the previous payload's bytes begins this one."""

STAYS = "stays"
"""Word in the heading of a message that a summary call is only shown as context."""

FOLDED = 2
"""A fold is made from at least so many summaries."""

NOTHING_TOLD, NOTHING_NAMED = Report(), Named()

LEAVE_OUT = frozenset({"pruned", "repaired"})
"""Actions after which messages may be missing."""

RECALLED = "recalled"
"""The action that names recalled passages."""

Kind = Literal[
    "no_answer",  # The client got none.
    "not_sent",  # No payload reached the provider, or more than one.
    "refused",  # The provider did not accept it.
    "instructions",  # Not first, or not verbatim.
    "last_user",  # Not verbatim.
    "split_pair",  # A tool call without its result, or the other way round.
    "lost",  # Neither verbatim nor shortened nor in a summary, and not named as pruned.
    "twice",  # More than once: verbatim and in a summary, or in two of them.
    "foreign_summary",  # A summary that was not made from the messages it stands for.
    "changed",  # A message that is no message of the client's, and no summary.
    "misnamed",  # Named as pruned, and yet in the payload.
    "prefix",  # The previous payload was not extended, though nothing was compacted.
    "idle",  # Summary calls were made, and the payload does not show it.
    "status",  # The answer calls full, trimmed or summarized what is not.
    "recalled",  # A quotation that is none, or of what is there anyway; or passages that the answer does not name.
]


@dataclass(frozen=True, slots=True)
class Violation:
    conversation: str
    request: int
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[Violation, ...] = ()
    accepted: bool = False
    """True where the provider took the payload."""
    messages: int = 0
    """Number of messages in the client's history."""
    summary_calls: int = 0
    folds: int = 0
    compaction: bool = False
    """Summaries were made or taken up in this request, or other messages than before are shortened or left out."""
    broke: bool = False
    """True where it does not extend the previous payload."""
    previous_bytes: int = 0
    kept_bytes: int = 0
    verbatim: int = 0
    summarised: int = 0
    shortened: int = 0
    """Number of messages of which only head and tail are there, or a placeholder."""
    pruned: int = 0
    """Number of messages left out, and named."""
    lost: int = 0
    summaries: tuple[str, ...] = ()
    """The texts of those in the payload."""
    payload: tuple[SentMessage, ...] = ()
    passages: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Quotations from messages that are not in the payload, by the message's place in the history."""
    recalling: tuple[SentMessage, ...] = ()
    """The payload's notes that quote it."""


class SummaryCalls:
    """All summary calls the log has shown, of whichever conversation: any of them may be used in any other."""

    def __init__(self) -> None:
        self._by_text: dict[str, list[SummaryCall]] = {}
        self._standing: dict[bytes, str] = {}
        self._held: dict[str, str | None] = {}

    def add(self, record: Record) -> SummaryCall:
        text = (record.text or "").rpartition("</think>")[2].strip()
        call = SummaryCall(record.sequence, sections_of(record.body), text)
        if text and record.status is not None and record.status < 300:
            self._by_text.setdefault(text, []).append(call)
        return call

    def with_text(self, text: str) -> Sequence[SummaryCall]:
        return self._by_text.get(text, ())

    def standing_in(self, message: SentMessage) -> Sequence[SummaryCall]:
        """The calls whose summary this message holds: the longest text, as a fold may repeat what it was made from."""
        if message.raw not in self._standing:
            content = "\n".join(message.pieces)
            found = max((text for text in self._by_text if text in content), key=len, default=None)
            if found is None:
                return ()
            self._standing[message.raw] = found
        return self._by_text[self._standing[message.raw]]

    def held_in(self, section: ShownSection) -> Sequence[SummaryCall]:
        """The calls whose summary another call was shown there, alone or in the message that holds it."""
        if exact := self.with_text(section.body):
            return exact
        if "user" not in section.heading and "notes" not in section.heading:
            return ()
        if section.body not in self._held:
            found = (text for text in self._by_text if text in section.body)
            self._held[section.body] = max(found, key=len, default=None)
        text = self._held[section.body]
        return () if text is None else self._by_text[text]

    def is_fold(self, call: SummaryCall) -> bool:
        """Whether it was shown several summaries. One is shown to a call that brings it up to date."""
        return sum(bool(self.held_in(section)) for section in call.sections) >= FOLDED


@dataclass(frozen=True, slots=True)
class _Range:
    """The messages that a summary was made from, up to `stop`, and those of them that must stay verbatim."""

    stop: int
    carried: tuple[int, ...]
    quoted_from: int = 0
    """Index of the first message that the call was shown itself, and not in another summary."""
    loose: tuple[int, ...] = ()
    """Carried messages that the call was not asked to leave out: where a turn is split between summaries that were made
    together, the next one goes on from there, and they are in this one."""


class Judge:
    def __init__(self, conversation: str, calls: SummaryCalls, reader: SentMessages) -> None:
        self._conversation = conversation
        self._calls = calls
        self._reader = reader
        self._seen: frozenset[int] = frozenset()
        """Calls whose summaries stood in a payload."""
        self._summarised = -1
        """The last message that summaries stood for."""
        self._previous: bytes | None = None
        self._lasting = 0
        """Bytes of the previous payload that the next turn's is to begin with: what is recalled for one message need
        not stay."""
        self._turn = -1
        """Place of the user message that the previous payload answers."""
        self._recalling: Sequence[SentMessage] = ()
        """Notes of recalled passages in the previous payload."""
        self._reduced: Mapping[int, bytes] = {}

    def judge(self, request: int, sent: bytes, records: Iterable[Record], report: Report = NOTHING_TOLD) -> Verdict:
        """`sent` is the client's body, `records` what the log gained while the request was answered, `report` what the
        client heard."""
        records = list(records)
        made = [self._calls.add(record) for record in records if record.kind == "summary"]
        chats = [record for record in records if record.kind == "chat"]
        calls = len(made), sum(map(self._calls.is_fold, made))
        history = self._reader.split(sent)
        if not chats or any(map(_is_accepted, chats[:-1])):
            sentence = f"The provider received {len(chats) or 'no'} payloads for this request."
            found = self._violations(request, [("not_sent", sentence)])
            return Verdict(found, False, len(history), *calls, compaction=bool(made))
        walk = self._walk(history, self._reader.split(chats[-1].body), report)
        seen = self._compared(walk, chats[-1], bool(made))
        problems = (
            *_acceptance(chats[-1]),
            *walk.problems(report.status),
            *_naming(walk.recalling, report.actions),
            *seen.problems(),
        )
        return Verdict(
            violations=self._violations(request, problems),
            accepted=_is_accepted(chats[-1]),
            messages=len(history),
            summary_calls=calls[0],
            folds=calls[1],
            compaction=seen.summarised or seen.reduced,
            broke=seen.broke,
            previous_bytes=len(seen.previous or b""),
            kept_bytes=seen.kept,
            verbatim=len(set(walk.verbatim)),
            summarised=len(set(walk.summarised)),
            shortened=len(walk.reduced),
            pruned=len(walk.pruned),
            lost=len(walk.missing),
            summaries=tuple(call.text for call in walk.standing),
            payload=tuple(walk.payload),
            passages=walk.passages,
            recalling=tuple(walk.recalling),
        )

    def _walk(self, history: Sequence[SentMessage], payload: Sequence[SentMessage], report: Report) -> _Walk:
        """Steno is asked what it left out only where something is missing, or where it says so itself."""
        walk = _Walk(self._calls, history, payload)
        if walk.is_complete and not LEAVE_OUT & report.actions:
            return walk
        named = report.named(_leading_instructions(history))
        return walk if named == NOTHING_NAMED else _Walk(self._calls, history, payload, named)

    def _compared(self, walk: _Walk, record: Record, made: bool) -> _Comparison:
        """Comparison with the conversation's previous payload. One that the provider refused does not count."""
        # By call, as several may have written one text. What stands for less than before is not taken up.
        further = max(walk.summarised, default=-1) > self._summarised
        taken_up = further and not self._seen.issuperset(call.sequence for call in walk.standing)
        reduced = {**dict.fromkeys(walk.pruned, b""), **{i: walk.places[i].raw for i in walk.reduced}}
        payload = prompt_of(record.body).removesuffix(b"]")
        kept = common_prefix(self._previous, payload) if self._previous else 0
        lasting = len(self._previous or b"") if walk.last_user == self._turn else self._lasting
        lasting = min(lasting, self._stands(walk, payload))
        comparison = _Comparison(self._previous, lasting, kept, made or taken_up, reduced != self._reduced)
        if _is_accepted(record):
            self._seen |= {call.sequence for call in walk.standing}
            self._summarised = max(walk.summarised, default=-1)
            self._reduced, self._previous, self._recalling = reduced, payload, walk.recalling
            self._lasting = payload.rindex(walk.note.raw) if walk.note else len(payload)
            self._turn = walk.last_user
        return comparison

    def _stands(self, walk: _Walk, payload: bytes) -> int:
        """How much of the previous payload stands before what was recalled in it and went because there was no more
        room: the payload grew although it is gone."""
        previous = self._previous or b""
        gone = (note for note in self._recalling if note not in walk.payload)
        first = next(gone, None) if len(payload) > len(previous) else None
        return previous.index(first.raw) if first else len(previous)

    def _violations(self, request: int, found: Iterable[tuple[Kind, str]]) -> tuple[Violation, ...]:
        return tuple(Violation(self._conversation, request, kind, sentence) for kind, sentence in found)


Found = Iterator[tuple[Kind, str]]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A payload beside the one before it."""

    previous: bytes | None
    lasting: int
    """Bytes of the previous one that this one is to begin with."""
    kept: int
    """Bytes that both begin with."""
    summarised: bool
    """Summaries were made or taken up."""
    reduced: bool
    """Other messages are shortened or left out, or otherwise."""

    @property
    def broke(self) -> bool:
        return self.previous is not None and self.kept < KEPT_SHARE * self.lasting

    def problems(self) -> Found:
        if self.previous is None:
            return
        if self.broke and not self.summarised and not self.reduced:
            share = f"{self.kept} of the previous payload's {len(self.previous)} bytes"
            yield "prefix", f"Only {share} begin this one, and nothing was summarised, shortened or left out."
        elif self.summarised and self.kept >= KEPT_SHARE * len(self.previous):
            yield "idle", "Summary calls were made, and yet the payload only extends the previous one."


@dataclass
class _Walk:
    """One payload read from its beginning, with the place in the history that each message belongs to."""

    calls: SummaryCalls
    history: Sequence[SentMessage]
    payload: Sequence[SentMessage]
    named: Named = NOTHING_NAMED
    verbatim: list[int] = field(default_factory=list)
    summarised: list[int] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    """Messages of which head and tail are there, or a placeholder."""
    places: dict[int, SentMessage] = field(default_factory=dict)
    standing: list[SummaryCall] = field(default_factory=list)
    _found: list[tuple[Kind, str]] = field(default_factory=list)
    _position: int = 0
    _carried: list[int] = field(default_factory=list)
    """Messages of the last summary that have to stand behind it."""
    recalling: list[SentMessage] = field(default_factory=list)
    passages: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _covered: dict[tuple[int, int], list[_Range]] = field(default_factory=dict)
    """Ranges by call and start."""
    _loose: tuple[int, ...] = ()
    """Messages that may still be in the summary, where another one goes on from its end."""
    _objection: str = ""
    """Why the last summary that was tried does not fit."""

    def __post_init__(self) -> None:
        self._instructions = self._position = _leading_instructions(self.history)
        self._pinned = list(self.named.pinned)
        self._notes = self.named.notes
        self._places: dict[bytes, list[int]] = {}
        for index, message in enumerate(self.history):
            self._places.setdefault(message.raw, []).append(index)
        begin = self._begin()
        for place, message in enumerate(self.payload[begin:], begin):
            self._step(place, message)
        covered = Counter((*self.verbatim, *self.summarised, *self.reduced))
        self.pruned = [index for index in sorted(self.named.pruned) if not covered[index]]
        self.missing = [i for i in range(len(self.history)) if not covered[i] and i not in self.named.pruned]
        self.repeated = [index for index in sorted(covered) if covered[index] > 1]

    @property
    def is_complete(self) -> bool:
        """Whether the log accounts for every message of both sides, without any word of Steno's."""
        return not self.missing and not self.repeated and not self._found

    @property
    def last_user(self) -> int:
        """-1 where the user has said nothing."""
        return max((i for i, message in enumerate(self.history) if message.role == "user"), default=-1)

    @property
    def note(self) -> SentMessage | None:
        """Note of what was recalled for the last user message: the one right before it. A list of values may stand
        behind that, where the cut is within its turn."""
        said = (message for message in self.payload if not (listed_in(message) or states_work(message)))
        users = [message for message in said if message.role == "user"][-2:]
        return next((message for message in users[:1] if message in self.recalling), None)

    @property
    def status(self) -> str:
        """Status that the answer has to give the payload."""
        if self.standing:
            return "summarized"
        as_it_came = [message.raw for message in self.payload] == [message.raw for message in self.history]
        return "full" if as_it_came else "trimmed"

    def problems(self, claimed: str | None) -> Found:
        """`claimed`: the status the client was given, if any."""
        yield from self._found
        yield from self._coverage_problems()
        for index in sorted(self.passages.keys() & self.places.keys()):
            if any(text in piece for text in self.passages[index] for piece in self.places[index].pieces):
                yield "recalled", f"What is recalled of {self._name(index)} stands in the payload anyway."
        if claimed not in (None, self.status):
            yield "status", f"The answer says {claimed!r} of a payload that is {self.status!r}."
        if self.last_user >= 0 and self.last_user not in self.verbatim:
            yield "last_user", f"The last user message, {self._name(self.last_user)}, is not verbatim in the payload."
        if split := sorted(split_pairs(self.payload) - split_pairs(self.history)):
            yield "split_pair", f"The payload holds only one side of the tool calls {', '.join(split)}."

    def _begin(self) -> int:
        """Index in the payload at which the instructions end."""
        expected = [message.raw for message in self.history[: self._instructions]]
        if [message.raw for message in self.payload[: self._instructions]] == expected:
            for index in range(self._instructions):
                self._keep(index)
            return self._instructions
        self._found.append(("instructions", "The payload does not begin with the client's instructions, verbatim."))
        return _leading_instructions(self.payload)

    def _step(self, place: int, message: SentMessage) -> None:
        if self._carried and message.raw == self.history[self._carried[0]].raw:
            kept = self._carried.pop(0)
            self._keep(kept)
            self._loose = tuple(index for index in self._loose if index != kept)
            return
        if self._loose and self.calls.standing_in(message):
            self.summarised += self._loose
        self._carried.clear()  # What is missing of it shows as lost.
        self._loose = ()
        if self._pinned and message.raw == self.history[self._pinned[0]].raw and self._pinned[0] < self._position:
            self.places[self._pinned[0]] = message
            self._pinned.pop(0)
            return
        while self._position in self.named.pruned:
            self._position += 1
        if self._position < len(self.history) and self._is_next(message):
            self._position += 1
        elif message.raw in self._places:
            self._jump(message)
        elif message.role == "user" and (quoted := passages_in(message)):
            self._recall(message, quoted)
        elif message.role == "user" and (values := listed_in(message)):
            self._list(message, values)
        elif message.role == "user" and states_work(message):
            self.recalling.append(message)
        elif standing := self.calls.standing_in(message):
            self._take_summary(place, standing)
        elif self._notes and message.role == "user":
            self._notes -= 1
        else:
            text = f"Message {place + 1} of the payload ({message.role}) is neither a message of the client's nor a"
            self._found.append(("changed", f"{text} summary that the log knows of."))

    def _is_next(self, message: SentMessage) -> bool:
        """Whether it is the next message of the history, whole or what is left of it; then it is taken as such."""
        expected = self.history[self._position]
        if message.raw == expected.raw:
            self._keep(self._position)
        elif passages_in(message):  # One that is short may look like what is left of a message.
            return False
        elif message.reduces(expected) or (self._position in self.named.repaired and message.repairs(expected)):
            self.reduced.append(self._position)
            self.places[self._position] = message
        else:
            return False
        return True

    def _keep(self, index: int) -> None:
        self.verbatim.append(index)
        self.places[index] = self.history[index]

    def _jump(self, message: SentMessage) -> None:
        """A message of the client's in another place than the next: what lies between is lost, or stands twice."""
        places = self._places[message.raw]
        index = next((index for index in places if index >= self._position), places[-1])
        self._keep(index)
        self._position = max(self._position, index + 1)

    def _recall(self, message: SentMessage, quoted: Sequence[Passage]) -> None:
        """A note of recalled passages: it covers nothing, and every quotation has to be right."""
        self.recalling.append(message)
        for passage in quoted:
            index = self._instructions + passage.position
            if not (0 <= index < len(self.history) and passage.is_said_in(self.history[index])):
                text = f"Nothing that message {index + 1} says, as {passage.speaker!r}, is {passage.text[:80]!r}."
                self._found.append(("recalled", text))
            else:
                self.passages[index] = (*self.passages.get(index, ()), passage.text)

    def _list(self, message: SentMessage, values: Sequence[str]) -> None:
        """A note of exact values: they have to be somebody's."""
        self.recalling.append(message)
        for value in values:
            if not is_said(value, self.history):
                self._found.append(("recalled", f"No message says the value {value[:80]!r}."))

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
        self._carried, self._loose = list(covered.carried), covered.loose
        self._position = covered.stop

    def _goes_on(self, place: int, covered: _Range) -> int:
        """How many messages of the payload, from this place, are what follows that range; -1 where what it carries does
        not stand there."""
        carried = [self.history[index].raw for index in covered.carried]
        behind = [message for message in self.payload[place:] if not is_note(message)]
        if [message.raw for message in behind[: len(carried)]] != carried:
            return -1
        followed, behind = 0, behind[len(carried) :]
        for message, expected in zip(behind, self.history[covered.stop :], strict=False):
            if message.raw != expected.raw and not message.reduces(expected):
                break
            followed += 1
        if followed == 0 and behind:
            next_calls = self.calls.standing_in(behind[0])
            return int(any(self._ranges(call, covered.stop) for call in next_calls))
        return followed

    def _ranges(self, call: SummaryCall, start: int) -> list[_Range]:
        """The ranges a call may cover if it begins at `start`; none if it was made from other messages.

        There are several only where calls wrote the same text, and another one was shown it.
        """
        key = call.sequence, start
        if key not in self._covered:
            self._covered[key] = self._read_ranges(call, start)
        return self._covered[key]

    def _read_ranges(self, call: SummaryCall, start: int) -> list[_Range]:
        if not call.sections:
            self._objection = "its call quotes no transcript."
        reached = [_Range(start, (), start)] if call.sections else []
        for section in call.sections:
            children = [child for child in self.calls.held_in(section) if child.sequence < call.sequence]
            ways = (after for before in reached for after in self._with(section, before, children, start))
            reached = list(dict.fromkeys(ways))
        kept = ((r, carried) for r in reached if r.stop > start for carried in self._kept(r))
        return [replace(r, carried=carried, loose=(*r.loose, *self._untold(call, carried))) for r, carried in kept]

    def _untold(self, call: SummaryCall, carried: Iterable[int]) -> Iterator[int]:
        """Carried messages that the call was shown like any other."""
        shown = [section for section in call.sections if section.quoted and STAYS not in section.heading]
        return (i for i in carried if any(section.quotes(self.history[i]) for section in shown))

    def _with(
        self, section: ShownSection, before: _Range, children: Sequence[SummaryCall], start: int
    ) -> Iterator[_Range]:
        """Ranges that one which began at `start` may become by the next section."""
        for child in children:
            for after, carried in product(self._ranges(child, before.stop), self._kept(before)):
                kept = (index for index in carried if index not in before.loose)
                yield _Range(after.stop, (*kept, *after.carried), after.stop, after.loose)
        if before.stop == start and (children or (not section.quoted and self._is_before(section, start))):
            yield before  # Shown as context: what the call stands for comes after it.
        if not children:
            yield from self._shown(section, before)

    def _is_before(self, section: ShownSection, start: int) -> bool:
        return any(section.quotes(message) for message in self.history[:start])

    def _kept(self, reached: _Range) -> Iterator[tuple[int, ...]]:
        """Messages of a range that have to stay verbatim: one way, or two where the last that the user said in a turn
        is within it: a correction, say, which may be read as his own or as a result."""
        start, stop = reached.quoted_from, reached.stop
        kept = self._to_carry(start, stop)
        yield *reached.carried, *kept
        said = next((i for i in range(stop - 1, start - 1, -1) if self._is_said(i)), None)
        if said is not None and self._continues(said) and stop < len(self.history) and not self._is_said(stop):
            yield *reached.carried, *kept, said

    def _shown(self, section: ShownSection, before: _Range) -> Iterator[_Range]:
        """One message longer, or without one that summaries carried so far."""
        released = next((i for i in before.carried if section.quotes(self.history[i])), None)
        if released is not None:
            yield replace(before, carried=tuple(i for i in before.carried if i != released))
            if not section.quoted:  # It stands behind the summary there too, and may go on to.
                yield before
        if self._is_quoted(section, before.stop):
            yield replace(before, stop=before.stop + 1)

    def _is_quoted(self, section: ShownSection, index: int) -> bool:
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
        if stop < len(self.history) and not self._begins_turn(stop):
            split = next((i for i in range(stop - 1, start - 1, -1) if self._begins_turn(i)), None)
        kept = (i for i in range(start, stop) if i == split or self.history[i].role in INSTRUCTION_ROLES)
        return tuple(kept)

    def _begins_turn(self, index: int) -> bool:
        return self._is_said(index) and not self._continues(index)

    def _continues(self, index: int) -> bool:
        """Whether the user says it within a turn: to correct the model, or right behind a tool's result."""
        return self.history[index].corrects or (index > 0 and bool(self.history[index - 1].answers))

    def _is_said(self, index: int) -> bool:
        message = self.history[index]
        return message.role == "user" and not message.tells_a_result

    def _coverage_problems(self) -> Found:
        for first, last in _runs(self.missing):
            yield "lost", f"{self._names(first, last)} not in the payload, nor in the input of a summary that is."
        for first, last in _runs(self.repeated):
            yield "twice", f"{self._names(first, last)} covered more than once."
        for first, last in _runs(sorted(self.named.pruned - set(self.pruned))):
            yield "misnamed", f"{self._names(first, last)} said to be left out, and yet covered."

    def _names(self, first: int, last: int) -> str:
        return f"{self._name(first)} is" if first == last else f"Messages {first + 1} to {last + 1} are"

    def _name(self, index: int) -> str:
        return f"Message {index + 1} ({self.history[index].role})"


def _is_accepted(record: Record) -> bool:
    return record.status is not None and 200 <= record.status < 300


def _acceptance(record: Record) -> Found:
    if not _is_accepted(record):
        yield "refused", f"The provider answered with status {record.status} to {record.prompt_tokens} prompt tokens."


def _naming(recalling: Sequence[SentMessage], actions: frozenset[str]) -> Found:
    if recalling and RECALLED not in actions:
        yield "recalled", "The payload quotes recalled passages, and the answer does not say so."
    elif RECALLED in actions and not recalling:
        yield "recalled", "The answer says that passages were recalled, and the payload quotes none."


def _leading_instructions(messages: Sequence[SentMessage]) -> int:
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

"""Messages, turns and units: where a conversation may be cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any

from app.core.lazy import lazy
from app.core.values import value


class Kind(Enum):
    """What a message is for. The codec of its format decides: roles do not tell it in all of them."""

    INSTRUCTIONS = auto()
    """Said by whoever runs the model: never summarised, cut or left out, wherever it stands."""
    USER = auto()
    """What a turn begins with. It may hold results too, where a format has them in the user's message."""
    CLIENT = auto()
    """Said in the user's name by the program that he uses, and nothing by himself: it begins no turn. See `blocks`."""
    ASSISTANT = auto()
    RESULT = auto()
    """Of calls; what else it holds is the program's."""
    OTHER = auto()
    """Of a role that the format does not know."""


@value
class ToolCall:
    id: str
    name: str
    arguments: str
    """As the model wrote them; often, but not always, a JSON object."""
    by_place: bool = False
    """It has no id: the next result that is by place answers it."""
    anywhere: bool = False
    """Its result may stand anywhere behind it, not only next to it."""
    kept: bool = False
    """Its provider knows it by an id of its own, beside the one that its result names."""


@value
class Media:
    """A part that is not text. Its bytes stay in the raw message."""

    kind: str
    """image, audio, file, or the part's own type where unknown."""
    size: int
    """Length in characters of what the part holds (base64, URL)."""
    detail: str = ""
    """For an image: low, high, auto or empty."""
    width: int = 0
    """Of an image, in pixels, or of a file's first page, in points; 0 where it is not known."""
    height: int = 0
    seconds: float = 0.0
    """Length of a recording; 0 where it is not known."""
    pages: int = 0
    """Of a file; 0 where they are not known."""
    glyphs: int = 0
    """Written on all its pages together."""
    text: str = ""
    """Of a file that is text."""


@value
class Message:
    """One message, as received: what Steno understands of it, and its own bytes."""

    kind: Kind
    role: str
    """The wire's word. It decides what a role costs and how it is quoted, and nothing else."""
    texts: tuple[str, ...]
    raw: bytes
    digest: bytes
    """Keyed digest of its canonical form, not chained: equal messages have equal digests."""
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[str, ...] = ()
    """The ids of the calls whose results it holds; an empty one for a result that names none; none without results."""
    settled: tuple[ToolCall, ...] = ()
    """Calls that the provider answers itself, where they were made: no result has to follow from anybody else."""
    by_place: bool = False
    """A result that answers the call before it, as that has no id to be named by."""
    media: tuple[Media, ...] = ()
    thoughts: tuple[str, ...] = ()
    """Reasoning that is kept in the history: text to its model, and never changed or quoted."""
    sealed: bool = False
    """Signed or encrypted as a whole: it is sent as it came or not at all, and never quoted."""
    tied: bool = False
    """Among its thoughts are some that their provider takes back only behind the very prompt that they were made
    behind: see `core/view/ties`."""
    bound: bool = False
    """It goes where the message after it goes, and stands before it: a provider refuses it by itself."""
    encrypted: int = 0
    """Characters of reasoning that only its provider can read: what it costs is guessed by them."""
    passed_on: tuple[int, ...] = ()
    """Places among `texts` of those that its sender did not write: results and documents, in one message with his own
    words."""
    beside: tuple[int, ...] = ()
    """In a message of results, places among `texts` of those that are none."""

    @property
    def own_texts(self) -> tuple[str, ...]:
        """What its sender wrote, whatever else stands in his message."""
        if not self.passed_on:
            return self.texts
        return tuple(text for place, text in enumerate(self.texts) if place not in self.passed_on)

    @property
    def result_places(self) -> tuple[int, ...]:
        """Places among `texts` of what calls returned: stages may shorten it, whoever's message it stands in."""
        if self.kind is Kind.RESULT:
            return tuple(place for place in range(len(self.texts)) if place not in self.beside)
        return self.passed_on if self.answers else ()

    @property
    def without_results(self) -> Message:
        """What no stage may take away of a question that stands in one message with results."""
        emptied = self.result_places
        return replace(self, texts=tuple("" if place in emptied else text for place, text in enumerate(self.texts)))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def is_paired(self) -> bool:
        """Whether it holds results that have to name their calls."""
        return bool(self.answers) and not self.by_place


def own_message(text: str) -> Message:
    """A message of Steno's own: notes and stubs are counted and sent as said by the user.

    Models heed what stands there without taking it for an order of whoever runs them, which a summary of tools' texts
    must never become; and providers of all formats take it anywhere.
    """
    return Message(Kind.USER, "user", (text,), raw=b"", digest=b"")


_CALLS, _ANSWERS, _MEDIA, _TIES = 1, 2, 4, 8
"""What messages may hold, as bits."""


class History(tuple[Message, ...]):  # noqa: SLOT001 - it keeps what was worked out
    """Messages in order, and what follows from them alone. A history that grows takes along what was worked out.

    That is worked out of what is after the leading instructions: those stay as they are.
    """

    shorter: History | None = None
    """The one that it grew out of, if nothing was kept of that: whoever works something out gives it its part, for
    others that grow out of it."""
    chained: Any = None
    """What `Identity` keeps of it and has again of a longer one: it holds for all that begin like this one."""
    counted: Any = None
    """Likewise what the estimator keeps."""

    def grown(self, new: Sequence[Message]) -> History:
        """This one with what came after it."""
        longer = History((*self, *new))
        if self.instructions:
            if self._rest:
                longer.instructions = self.instructions
                longer._rest = self._rest.grown(new)
                longer.held = self.held | longer._rest.held
            return longer
        if not self:
            return longer
        size, holds, users, instructions, are_apart = len(self), self.held, [], [], not self[-1].bound
        for place, message in enumerate(new, size):
            if message.kind is Kind.USER:
                users.append(place)
            elif message.kind is Kind.INSTRUCTIONS:
                instructions.append(place)
            holds |= (found := _held_by(message))
            if found & (_CALLS | _ANSWERS) or message.bound:
                are_apart = False
        longer.instructions = ()
        longer.turn_starts = (*self.turn_starts, *users) if users else self.turn_starts
        longer.instruction_places = self.instruction_places + tuple(instructions)
        longer.unit_starts = (*self.unit_starts, *range(size, len(longer))) if are_apart else self._units_of(longer)
        longer.held = holds
        if self.chained is None and self.counted is None:
            longer.shorter = self
        else:
            longer.chained, longer.counted = self.chained, self.counted
        return longer

    @lazy
    def instructions(self) -> tuple[Message, ...]:
        """Those that lead."""
        return split_instructions(self)[0]

    @property
    def rest(self) -> History:
        """What is after them."""
        return self._rest if self.instructions else self

    @lazy
    def _rest(self) -> History:
        return History(self[len(self.instructions) :])

    @lazy
    def unit_starts(self) -> tuple[int, ...]:
        return unit_starts(self)

    @lazy
    def turn_starts(self) -> tuple[int, ...]:
        return _places(self, Kind.USER)

    @lazy
    def instruction_places(self) -> tuple[int, ...]:
        """Indexes of all instructions."""
        return _places(self, Kind.INSTRUCTIONS)

    @property
    def first_instruction(self) -> int:
        """Index of the first one; the length without one."""
        return self.instruction_places[0] if self.instruction_places else len(self)

    @property
    def holds_calls(self) -> bool:
        return bool(self.held & _CALLS)

    @property
    def holds_answers(self) -> bool:
        return bool(self.held & _ANSWERS)

    @property
    def holds_media(self) -> bool:
        return bool(self.held & _MEDIA)

    @property
    def holds_ties(self) -> bool:
        return bool(self.held & _TIES)

    @lazy
    def held(self) -> int:
        return reduce(or_, map(_held_by, self), 0)

    def _units_of(self, longer: History) -> tuple[int, ...]:
        """Where the units of a longer one begin, of which the last one here may go on."""
        starts = self.unit_starts
        latest = longer[starts[-1] :]
        if _answers_what_is_before(latest):
            return unit_starts(longer)
        return (*starts, *(starts[-1] + start for start in unit_starts(latest)[1:]))


def _held_by(message: Message) -> int:
    """What it holds, as bits."""
    held = _CALLS if message.calls else 0
    if message.answers:
        held |= _ANSWERS
    if message.media:
        held |= _MEDIA
    return held | _TIES if message.tied else held


def _places(messages: Iterable[Message], kind: Kind) -> tuple[int, ...]:
    return tuple([index for index, message in enumerate(messages) if message.kind is kind])


def _answers_what_is_before(messages: Iterable[Message]) -> bool:
    """Whether results among them may belong to a call that stands before all of them."""
    called: set[str] = set()
    for message in messages:
        if message.calls:
            called.update(call.id for call in message.calls)
        elif not called.issuperset(message.answers):
            return True
    return False


class Transcript:
    """The messages after the leading instructions, and where they may be cut.

    A turn is a user message and everything until the next one. A unit is an assistant message with its tool
    results, and what is bound to them. A cut at position p puts the first p messages on one side; it never falls
    inside a unit.
    """

    def __init__(self, messages: Sequence[Message], costs: Callable[[], Sequence[int]]) -> None:
        """`costs` counts: the uncalibrated estimate of each message, asked for once and only if it is needed."""
        self.messages = messages if isinstance(messages, History) else History(messages)
        self._costs = costs

    def __len__(self) -> int:
        return len(self.messages)

    def tokens(self, start: int, stop: int | None = None) -> int:
        """Estimate of the messages from `start` up to `stop`."""
        return self._tokens_before[len(self) if stop is None else stop] - self._tokens_before[start]

    def tokens_of(self, index: int) -> int:
        """Estimate of one message."""
        return self._tokens_before[index + 1] - self._tokens_before[index]

    @lazy
    def _tokens_before(self) -> tuple[int, ...]:
        return (0, *accumulate(self._costs()))

    def is_instruction(self, index: int) -> bool:
        return self.messages[index].kind is Kind.INSTRUCTIONS

    @property
    def first_instruction(self) -> int:
        """Index of the first instruction in the middle of the conversation; its length without one."""
        return self.messages.first_instruction

    def carried(self, start: int, stop: int, end: int) -> tuple[int, ...]:
        """What stays verbatim of a range that is summarised, by a compaction that goes on up to `end`.

        Instructions in the middle of the conversation, and the user message of the turn that `end` splits; with the
        calls, where it holds their results too.
        """
        question = self._split_question(end)
        return tuple(index for index in range(start, stop) if index in question or self.is_instruction(index))

    def carried_tokens(self, start: int, stop: int, end: int) -> int:
        """The estimate of these."""
        question = self._split_question(end)
        tokens = sum(self.tokens_of(i) for i in question if start <= i < stop and not self.is_instruction(i))
        return self._instructions_before[stop] - self._instructions_before[start] + tokens

    def _split_question(self, end: int) -> range:
        split = self.split_user(end)
        if split is None:
            return range(0)
        return range(*self.unit_of(split)) if self.messages[split].answers else range(split, split + 1)

    @lazy
    def _instructions_before(self) -> tuple[int, ...]:
        costs = (self.tokens_of(index) if self.is_instruction(index) else 0 for index in range(len(self)))
        return tuple(accumulate(costs, initial=0))

    @property
    def turn_starts(self) -> tuple[int, ...]:
        return self.messages.turn_starts

    @property
    def last_user(self) -> int:
        """Index of the last user message; -1 without one."""
        return self.turn_starts[-1] if self.turn_starts else -1

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions between units, ascending, from 0 to the start of the last unit."""
        return self.messages.unit_starts

    def is_answered(self, start: int, stop: int) -> bool:
        """Whether a unit's calls have one result each, and its results a call."""
        messages = self.messages[start:stop]
        calls = sorted(call.id for message in messages for call in message.calls if not call.by_place)
        return calls == sorted(id_ for message in messages if message.is_paired for id_ in message.answers)

    def tool_name(self, index: int) -> str:
        """The tool that a result is from, as its call names it or it does itself; empty if neither does."""
        message = self.messages[index]
        return called_in(message, self._called) or message.name

    @lazy
    def _called(self) -> dict[str, str]:
        return {call.id: call.name for message in self.messages for call in message.calls}

    def unit_of(self, index: int) -> tuple[int, int]:
        """Start and stop of the unit that a message belongs to."""
        after = bisect_right(self.cuts, index)
        return self.cuts[after - 1], self.cuts[after] if after < len(self.cuts) else len(self)

    def turn_at(self, position: int) -> int:
        """How many turns have begun in the first `position` messages."""
        return bisect_left(self.turn_starts, position)

    def split_user(self, position: int) -> int | None:
        """The user message whose turn a cut at `position` splits, or None between turns."""
        if position >= len(self) or self.messages[position].kind is Kind.USER:
            return None
        begun = bisect_left(self.turn_starts, position)
        return self.turn_starts[begun - 1] if begun else None


def split_instructions(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The leading instructions, and the rest.

    What leads is for the codec to say: a format whose instructions stand beside its messages reads them as the first
    of these, and takes them out of them again when it renders.
    """
    end = next((i for i, message in enumerate(messages) if message.kind is not Kind.INSTRUCTIONS), len(messages))
    return tuple(messages[:end]), tuple(messages[end:])


def unit_starts(messages: Sequence[Message]) -> tuple[int, ...]:
    """Where units begin, ascending: every index but those of results, of what stands between a call and them, and of
    what something is bound to."""
    caller_of: dict[str, int] = {}
    previous_call = 0
    reaches: dict[int, int] = {}  # how far the unit of a caller goes
    for index, message in enumerate(messages):
        if message.calls:
            previous_call = index
            caller_of.update((call.id, index) for call in message.calls)
        elif message.answers:
            named = [caller_of[id_] for id_ in message.answers if id_ in caller_of]
            for caller in named or [previous_call if message.by_place else index]:
                reaches[caller] = index
    starts: list[int] = []
    end = -1
    for index in range(len(messages)):
        if index > end:
            starts.append(index)
        end = max(end, reaches.get(index, index), index + 1 if messages[index].bound else index)
    return tuple(starts)


def called_in(message: Message, names: Mapping[str, str]) -> str:
    """The tool that a result is from, among the calls with these names; empty if none of them is its."""
    return next((names[id_] for id_ in message.answers if names.get(id_)), "")

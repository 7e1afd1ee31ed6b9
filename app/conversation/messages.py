"""Messages, turns and units: where a conversation may be cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import reduce
from itertools import accumulate, repeat
from operator import or_
from typing import Any, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.lazy import lazy
from app.conversation.tool_results import CALL_CHARACTERS, CallPairing, CallPosition, ResultConfidence, calls_in_text


class Kind(Enum):
    """Purpose of a message. The codec of its format decides: roles do not tell it in all of them."""

    INSTRUCTIONS = auto()
    """Said by the operator of the model: never summarised, cut or left out, wherever it stands."""
    USER = auto()
    """A message that asks. It may hold results too, where a format has them in the user's message."""
    CLIENT = auto()
    """Said in the user's name by the program that he uses, and nothing by himself: it begins no turn. See
    `client_context`."""
    ASSISTANT = auto()
    RESULT = auto()
    """A message of results; what else it holds is the program's. The history takes for one, too, what only reads like
    one: see `ResultConfidence`."""
    OTHER = auto()
    """A message of a role that the format does not know."""


class ToolCall(Struct, frozen=True):
    id: str
    """Empty for a call without an id."""
    name: str
    arguments: str
    """Arguments as the model wrote them; often, but not always, a JSON object."""
    kept: bool = False
    """True if the provider knows the call by an id of its own, beside the one that its result names."""


class Caller(NamedTuple):
    """The call that a result answers, as seen from the result's message."""

    distance: int
    """Number of messages back to the one that makes the call."""
    call: int
    """Index of the call among that message's calls."""


class Media(Struct, frozen=True):
    """A part that is not text. Its bytes stay in the raw message."""

    kind: str
    """image, audio, file, or the part's own type where unknown."""
    size: int
    """Length in characters of what the part holds (base64, URL)."""
    detail: str = ""
    """Detail of an image: low, high, auto or empty."""
    width: int = 0
    """Width of an image in pixels, or of a file's first page in points; 0 where it is not known."""
    height: int = 0
    seconds: float = 0.0
    """Length of a recording; 0 where it is not known."""
    pages: int = 0
    """Number of a file's pages; 0 where it is not known."""
    glyphs: int = 0
    """Written on all its pages together."""
    text: str = ""
    """Content of a file that is text."""
    name: str = ""
    """Name of a file, as its sender wrote it."""
    bound: bool = False
    """True where no text may stand in its place."""


class Result(Struct, frozen=True):
    text: str
    has_failed: bool
    """True if the client says so."""


class Message(Struct, frozen=True, weakref=True):
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
    callers: tuple[Caller | None, ...] = ()
    """The calls that returned each of `answers`; None for a result of no call. For the history to find out."""
    owners: tuple[int, ...] = ()
    """Places among `answers` of the calls that returned each of `texts`, -1 for what none did; empty where the first
    returned all."""
    failed: tuple[int, ...] = ()
    """Places among `answers` of the calls that failed, as the client says."""
    settled: tuple[ToolCall, ...] = ()
    """Calls that the provider answers itself, where they were made: no result has to follow from the client."""
    media: tuple[Media, ...] = ()
    thoughts: tuple[str, ...] = ()
    """Reasoning that is kept in the history: text to its model, and never changed or quoted."""
    sealed: bool = False
    """Signed or encrypted as a whole: it is sent as it came or not at all, and never quoted."""
    signed_thinking: bool = False
    """Among its thoughts are some that their provider signed: see `without_thinking` in `compaction/view`."""
    bound: bool = False
    """True for a message that goes where the message after it goes: a provider refuses it by itself."""
    expires: bool = False
    """True for an instruction that its provider shows to the model until a later user message comes."""
    encrypted: int = 0
    """Characters of reasoning that only its provider can read: what it costs is guessed by them."""
    passed_on: tuple[int, ...] = ()
    """Places among `texts` of those that its sender did not write: results and documents, in one message with his own
    words."""
    beside: tuple[int, ...] = ()
    """Places among `texts`, in a message of results, of those that are no results."""
    result_confidence: ResultConfidence = ResultConfidence.NONE
    """How surely a user message that holds no results as such is one."""
    continues: bool = False
    """A user's message that goes on with a turn: for the history to find out."""

    @property
    def begins_turn(self) -> bool:
        return self.kind is Kind.USER and not self.continues

    @property
    def is_result_text(self) -> bool:
        """A result that its client writes as the user's text: it names no call, and answers the message before it."""
        return self.kind is Kind.RESULT and self.result_confidence is not ResultConfidence.NONE

    @property
    def own_texts(self) -> tuple[str, ...]:
        """Texts that the sender wrote, whatever else stands in his message."""
        if not self.passed_on:
            return self.texts
        return tuple(text for place, text in enumerate(self.texts) if place not in self.passed_on)

    @property
    def result_places(self) -> tuple[int, ...]:
        """Places among `texts` of what calls returned: stages may shorten it, whatever message it stands in."""
        if self.kind is Kind.RESULT:
            return tuple(place for place in range(len(self.texts)) if place not in self.beside)
        return self.passed_on if self.answers else ()

    @property
    def without_results(self) -> Message:
        """The message without its results: a question may stand beside them."""
        emptied = self.result_places
        return replace(self, texts=tuple("" if place in emptied else text for place, text in enumerate(self.texts)))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def results(self) -> tuple[Result, ...]:
        """Results in order, each with its own texts."""
        returned: dict[int, list[str]] = {}
        for owner, text in zip(self.owners or repeat(0), self.texts, strict=False):
            returned.setdefault(owner, []).append(text)
        number, failed = len(self.answers) or int(self.kind is Kind.RESULT), frozenset(self.failed)
        return tuple(Result("\n".join(returned.get(place, ())), place in failed) for place in range(number))


def own_message(text: str) -> Message:
    """A message of Steno's own: notes and stubs are counted and sent as said by the user.

    Models heed what stands there without taking it for an order of their operator, which a summary of tools' texts
    must never become; and providers of all formats take it anywhere.
    """
    return Message(Kind.USER, "user", (text,), raw=b"", digest=b"")


_CALLS, _ANSWERS, _MEDIA, _THINKING, _EXPIRES = 1, 2, 4, 8, 16
"""Bits that say what messages hold."""


class History(tuple[Message, ...]):  # noqa: SLOT001 - it keeps what was worked out
    """Messages in order, and what follows from them alone. A history that grows takes along what was worked out.

    A user's message begins a turn, unless the assistant was still at work when it came: behind results, or in one
    message with them, he only spoke in between, and the turn goes on. Behind the assistant's message some of his texts
    are results themselves (`ResultConfidence`); texts that may be results continue the turn, and stay his.
    """

    def __new__(cls, messages: Iterable[Message] = ()) -> Self:
        return tuple.__new__(cls, _paired(_in_turn(messages, None), ()))

    shorter: History | None = None
    """The one that it grew out of, if nothing was kept of that: what works something out gives it its part, for
    others that grow out of it."""
    chained: Any = None
    """Chain that `Identity` keeps here and finds again in a longer history: it holds for all that begin like this
    one."""
    counted: Any = None
    """Counts that the estimator keeps here, likewise."""

    def grown(self, new: Sequence[Message]) -> History:
        """A longer history: this one, then the new messages."""
        new = _paired(_in_turn(new, self), self)
        longer: History = tuple.__new__(History, (*self, *new))
        if self.instructions:
            if self._rest:
                longer.instructions = self.instructions
                longer._rest = self._rest.grown(new)
                longer.held = self.held | longer._rest.held
            return longer
        if not self:
            return longer
        users = [place for place, message in enumerate(new, len(self)) if message.kind is Kind.USER]
        added = reduce(or_, map(_held_by, new), 0)
        longer.instructions = ()
        longer.user_places = self.user_places + tuple(users)
        longer.turn_starts = self.turn_starts + tuple(place for place in users if not longer[place].continues)
        longer.instruction_places = self.instruction_places + tuple(
            place for place, message in enumerate(new, len(self)) if message.kind is Kind.INSTRUCTIONS
        )
        goes_on = added & (_CALLS | _ANSWERS) or any(message.bound for message in (self[-1], *new))
        longer.unit_starts = self._units_of(longer) if goes_on else (*self.unit_starts, *range(len(self), len(longer)))
        longer.held = self.held | added
        if self.chained is None and self.counted is None:
            longer.shorter = self
        else:
            longer.chained, longer.counted = self.chained, self.counted
        return longer

    @lazy
    def instructions(self) -> tuple[Message, ...]:
        """Instructions that lead the history: a format reads those that stand beside its messages as the first ones."""
        end = next((i for i, message in enumerate(self) if message.kind is not Kind.INSTRUCTIONS), len(self))
        return tuple(self[:end])

    @property
    def rest(self) -> History:
        """History after the leading instructions."""
        return self._rest if self.instructions else self

    @lazy
    def _rest(self) -> History:
        return History(self[len(self.instructions) :])

    @lazy
    def unit_starts(self) -> tuple[int, ...]:
        return unit_starts(self)

    @lazy
    def user_places(self) -> tuple[int, ...]:
        """Indexes of all that the user said."""
        return _places(self, Kind.USER)

    @lazy
    def turn_starts(self) -> tuple[int, ...]:
        return tuple(place for place in self.user_places if not self[place].continues)

    @lazy
    def instruction_places(self) -> tuple[int, ...]:
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
    def holds_signed_thinking(self) -> bool:
        return bool(self.held & _THINKING)

    @lazy
    def results(self) -> Mapping[CallPosition, Sequence[int]]:
        """Indexes of the messages with the results of each call."""
        found: dict[CallPosition, list[int]] = {}
        for index, message in enumerate(self):
            for caller in message.callers:
                if caller:
                    found.setdefault(CallPosition(index - caller.distance, caller.call), []).append(index)
        return found

    @lazy
    def expired_places(self) -> frozenset[int]:
        """Indexes of the instructions that their provider no longer shows to the model: see `Message.expires`."""
        if not self.held & _EXPIRES:
            return frozenset()
        return frozenset(index for index, message in enumerate(self) if message.expires) - set(self.live_places)

    @lazy
    def live_places(self) -> tuple[int, ...]:
        """Indexes of the instructions that expire with the next user message."""
        if not self.held & _EXPIRES:
            return ()
        last = max((index for index, message in enumerate(self) if message.role == "user"), default=-1)
        return tuple(index for index, message in enumerate(self) if message.expires and index > last)

    @lazy
    def held(self) -> int:
        return reduce(or_, map(_held_by, self), 0)

    def _units_of(self, longer: History) -> tuple[int, ...]:
        """Starts of the units of a longer history, of which the last one here may go on."""
        starts = self.unit_starts
        latest = longer[starts[-1] :]
        if _answers_what_is_before(latest):
            return unit_starts(longer)
        return (*starts, *(starts[-1] + start for start in unit_starts(latest)[1:]))


def _in_turn(messages: Iterable[Message], before: History | None) -> list[Message]:
    """The messages as what they are behind those before them."""
    last: Message | None = None  # The latest that says who is at work; None before the first turn.
    if before is not None and (rest := before.rest).turn_starts:
        last = next(message for message in reversed(rest) if message.kind in _AT_WORK or message.begins_turn)
    placed: list[Message] = []
    for message in messages:
        now = _behind(last, message) if last is not None and message.kind is Kind.USER else message
        if now.begins_turn or (last is not None and now.kind in _AT_WORK):
            last = now
        placed.append(now)
    return placed


def _paired(messages: list[Message], before: Sequence[Message]) -> list[Message]:
    """The messages with the calls of their results."""
    if not any(message.answers for message in messages):
        return messages
    start = len(before)
    # Calls of one batch stay together, also with instructions between them.
    while start and before[start - 1].kind in (Kind.ASSISTANT, Kind.INSTRUCTIONS):
        start -= 1
    latest = (*before[start:], *messages)
    callers = _callers(latest)
    if start and any(not _are_named(latest, index, found) for index, found in callers.items()):
        start, callers = 0, _callers((*before, *messages))
    first = len(before) - start
    return [
        replace(message, callers=found)
        if (found := callers.get(place)) is not None and found != message.callers
        else message
        for place, message in enumerate(messages, first)
    ]


def _are_named(messages: Sequence[Message], index: int, callers: Iterable[Caller | None]) -> bool:
    """Whether no earlier calls than these can be what a message's results answer."""
    return all(
        caller and (not id_ or messages[index - caller.distance].calls[caller.call].id == id_)
        for id_, caller in zip(messages[index].answers, callers, strict=True)
    )


def _callers(messages: Sequence[Message]) -> dict[int, tuple[Caller | None, ...]]:
    """The calls of each message's results."""
    pairing = CallPairing()
    found: dict[int, tuple[Caller | None, ...]] = {}
    for index, message in enumerate(messages):
        if message.calls:
            pairing.add_calls(index, message.calls)
        elif message.answers:
            calls = [pairing.find_call(id_, message.name) for id_ in message.answers]
            found[index] = tuple(call and Caller(index - call.message, call.call) for call in calls)
        elif message.kind is not Kind.INSTRUCTIONS:
            pairing.add_other(is_assistants=message.kind is Kind.ASSISTANT)
    return found


_AT_WORK = frozenset({Kind.ASSISTANT, Kind.RESULT})


def _behind(last: Message, message: Message) -> Message:
    """A user's message behind the latest that says who is at work."""
    if message.continues or last.kind is Kind.USER:
        return message
    if message.result_confidence is ResultConfidence.NONE:
        is_between = last.kind is Kind.RESULT or bool(message.answers)
        return replace(message, continues=True) if is_between else message
    is_called = (
        message.result_confidence is ResultConfidence.LIKELY
        and last.kind is Kind.ASSISTANT
        and calls_in_text(last.texts)
    )
    if is_called or message.result_confidence is ResultConfidence.CERTAIN:
        return replace(message, kind=Kind.RESULT)
    return replace(message, continues=True)


def _held_by(message: Message) -> int:
    """Bits that say what a message holds."""
    held = _CALLS if message.calls else 0
    if message.answers or message.is_result_text:
        held |= _ANSWERS
    if message.media:
        held |= _MEDIA
    if message.expires:
        held |= _EXPIRES
    return held | _THINKING if message.signed_thinking else held


def _places(messages: Iterable[Message], kind: Kind) -> tuple[int, ...]:
    return tuple([index for index, message in enumerate(messages) if message.kind is kind])


def _answers_what_is_before(messages: Iterable[Message]) -> bool:
    """Whether results among them belong to a call that stands before all of them."""
    has_spoken = False
    for index, message in enumerate(messages):
        has_spoken = has_spoken or message.kind is Kind.ASSISTANT
        if message.is_result_text and not has_spoken:
            return True
        if any(caller and caller.distance > index for caller in message.callers):
            return True
    return False


class Transcript:
    """The messages after the leading instructions, and where they may be cut.

    A turn is a user message and everything until the next one that begins a turn. A unit is an assistant message with
    its tool results, and what is bound to them. A cut at position p puts the first p messages on one side; it never
    falls inside a unit.
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
        return self._tokens_before[index + 1] - self._tokens_before[index]

    @lazy
    def _tokens_before(self) -> tuple[int, ...]:
        return (0, *accumulate(self._costs()))

    def carried(self, start: int, stop: int, end: int) -> tuple[int, ...]:
        """Positions that stay verbatim of a range that is summarised, by a compaction that goes on up to `end`.

        Instructions in the middle of the conversation, and what the user said in the turn that `end` splits: first,
        and last unless he says more right behind it; with the calls, where that holds their results too.
        """
        places = self.messages.instruction_places
        inside = places[bisect_left(places, start) : bisect_left(places, stop)]
        return tuple(sorted({*inside, *(index for index in self._split_question(end) if start <= index < stop)}))

    def released(self, held: Iterable[int], end: int) -> list[int]:
        """Positions, of those that are carried, that need not be where a fold goes up to `end`."""
        stays = frozenset(self.carried(0, len(self), end))
        return [index for index in held if index not in stays]

    def carried_tokens(self, start: int, stop: int, end: int) -> int:
        return sum(map(self.tokens_of, self.carried(start, stop, end)))

    def _split_question(self, end: int) -> frozenset[int]:
        split = self.split_turn(end)
        if split is None:
            return frozenset()
        users, messages = self.messages.user_places, self.messages
        said = {split}
        if messages[end].kind is not Kind.USER:
            said.add(users[bisect_left(users, end) - 1])
        units = (range(*self.unit_of(place)) if messages[place].answers else (place,) for place in said)
        return frozenset(index for unit in units for index in unit)

    @property
    def turn_starts(self) -> tuple[int, ...]:
        return self.messages.turn_starts

    @property
    def last_user(self) -> int:
        """Index of the last user message; -1 without one."""
        users = self.messages.user_places
        return users[-1] if users else -1

    @property
    def last_turn(self) -> int:
        """Index of the message that the last turn begins with, which says what is to be done; -1 without one."""
        return self.turn_starts[-1] if self.turn_starts else -1

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions between units, ascending, from 0 to the start of the last unit."""
        return self.messages.unit_starts

    def is_answered(self, start: int, stop: int) -> bool:
        """Whether each of a unit's calls has a result, and each of its results a call."""
        messages = self.messages[start:stop]
        calls = {(index, place) for index in range(start, stop) for place in range(len(self.messages[index].calls))}
        return not any(None in message.callers for message in messages) and calls <= self.messages.results.keys()

    def call_text(self, index: int) -> str:
        """Names and arguments of the calls that a result answers, or the text that made the call."""
        message = self.messages[index]
        if message.is_result_text:
            return self.messages[index - 1].text[-CALL_CHARACTERS:] if index else ""
        return "\n".join(f"{call.name} {call.arguments}" for call in calls_of(self.messages, index) if call)

    def unit_of(self, index: int) -> tuple[int, int]:
        """Start and stop of the unit that a message belongs to."""
        after = bisect_right(self.cuts, index)
        return self.cuts[after - 1], self.cuts[after] if after < len(self.cuts) else len(self)

    def turn_at(self, position: int) -> int:
        """How many turns have begun in the first `position` messages."""
        return bisect_left(self.turn_starts, position)

    def split_turn(self, position: int) -> int | None:
        """The beginning of the turn that a cut at `position` splits, or None between turns."""
        if position >= len(self) or self.messages[position].begins_turn:
            return None
        begun = bisect_left(self.turn_starts, position)
        return self.turn_starts[begun - 1] if begun else None


def unit_starts(messages: Sequence[Message]) -> tuple[int, ...]:
    """Starts of the units, ascending: every index but those of results, of what stands between a call and them, and of
    what something is bound to."""
    spoken = 0
    reaches: dict[int, int] = {}  # how far the unit of a caller goes
    for index, message in enumerate(messages):
        for caller in message.callers:
            if caller and caller.distance <= index:
                reaches[index - caller.distance] = index
        if message.is_result_text:
            reaches[spoken] = index
        if message.kind is Kind.ASSISTANT:
            spoken = index
    starts: list[int] = []
    end = -1
    for index in range(len(messages)):
        if index > end:
            starts.append(index)
        end = max(end, reaches.get(index, index), index + 1 if messages[index].bound else index)
    return tuple(starts)


def calls_of(messages: Sequence[Message], index: int) -> list[ToolCall | None]:
    """The calls that returned each result of a message; None for one that none of these messages makes."""
    return [
        messages[index - caller.distance].calls[caller.call] if caller and caller.distance <= index else None
        for caller in messages[index].callers
    ]


def tool_name(messages: Sequence[Message], index: int) -> str:
    """The tool that a result is from, as its call names it or it does itself; empty if neither does."""
    return next((call.name for call in calls_of(messages, index) if call and call.name), messages[index].name)

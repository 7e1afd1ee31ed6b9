"""Messages, turns and units, and the positions where a conversation may be cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property, reduce
from itertools import accumulate, repeat
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.tool_results import CALL_CHARACTERS, CallPairing, CallPosition, ResultConfidence, calls_in_text

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:  # noqa: N801 - a decorator
        """`functools.cached_property` without its lock.

        Up to Python 3.11, all instances share one lock: while a thread computes an attribute of a long history, the
        event loop could not compute it for a short history. Without the lock, two threads may compute the same value.
        """

        def __init__(self, work: Any) -> None:
            self._work = work
            self.__doc__ = work.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, _: type) -> Any:
            if instance is None:
                return self
            # Later accesses find the value in `__dict__`, which precedes a descriptor without `__set__`.
            return instance.__dict__.setdefault(self._name, self._work(instance))


class Kind(Enum):
    """Purpose of a message, set by the reader of its format. In some formats, the role does not show the purpose."""

    INSTRUCTIONS = auto()
    """System or developer instructions, anywhere in the history. Steno never summarises, cuts or omits them."""
    USER = auto()
    """A user message. In formats that put tool results into user messages, it may also contain results."""
    CLIENT = auto()
    """A message that the client program wrote in the user's role. It begins no turn. See `client_context`."""
    ASSISTANT = auto()
    RESULT = auto()
    """A message with tool results, and maybe texts of the client program. A user message that reads like a result may
    get this kind: see `ResultConfidence`."""
    OTHER = auto()
    """A message with an unknown role or type, or instructions that expire or were superseded."""


class ToolCall(Struct, frozen=True):
    id: str
    """Id of the call; empty if it has none."""
    name: str
    arguments: str
    """Arguments as the model wrote them: often, but not always, a JSON object."""
    kept: bool = False
    """True if the provider stores the call under a second id. Results do not name the second id."""


class Caller(NamedTuple):
    """Position of the call that a result answers, relative to the result's message."""

    distance: int
    """Index of the result's message minus index of the call's message."""
    call: int
    """Index of the call among that message's calls."""


class Media(Struct, frozen=True):
    """A message part that is not text. Its bytes stay in the raw message."""

    kind: str
    """`image`, `audio`, `file`, or the wire format's type of another part."""
    size: int
    """Length of the content in characters. The content is base64 or a URL."""
    detail: str = ""
    """Detail level of an image: low, high, auto or empty."""
    width: int = 0
    """Width of an image in pixels, or of a file's first page in points; 0 if unknown."""
    height: int = 0
    seconds: float = 0.0
    """Duration of a recording; 0 if unknown."""
    pages: int = 0
    """Number of a file's pages; 0 if unknown."""
    glyphs: int = 0
    """Number of glyphs on all pages."""
    text: str = ""
    """Content of a text file."""
    name: str = ""
    """Name of a file, as the client gave it."""
    bound: bool = False
    """True if the provider accepts no text in place of this part."""


class Result(Struct, frozen=True):
    text: str
    has_failed: bool
    """True if the client marks the result as failed."""


class Message(Struct, frozen=True, weakref=True):
    """One received message: its parsed content and its raw bytes."""

    kind: Kind
    role: str
    """Role in the request. In some formats, the role does not show the message's purpose: see `kind`."""
    texts: tuple[str, ...]
    raw: bytes
    digest: bytes
    """Keyed digest of this message's canonical form: messages with the same meaning have equal digests. Each format
    defines its canonical form (see `formats/reader.py`), because only the format knows the members of its messages."""
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[str, ...] = ()
    """Call id of each result in the message; empty for a result that names no call."""
    callers: tuple[Caller | None, ...] = ()
    """Position of the call for each of `answers`; None for a result without a call. The history sets this field."""
    owners: tuple[int, ...] = ()
    """Indexes in `answers`, one for each text: the index of the text's result, or -1 for a text that is in no result.
    Empty if all texts belong to the first result."""
    failed: tuple[int, ...] = ()
    """Index in `answers` of each result that the client marks as failed."""
    settled: tuple[ToolCall, ...] = ()
    """Calls that the provider ran itself. The client sends no results for them."""
    media: tuple[Media, ...] = ()
    thoughts: tuple[str, ...] = ()
    """Texts of the model's reasoning, which Steno never changes or quotes."""
    sealed: bool = False
    """True if Steno may send or omit the message, but not change or quote it. An example is signed thinking."""
    signed_thinking: bool = False
    """True if the provider signed some reasoning of the message: see `without_thinking` in `compaction/view`."""
    bound: bool = False
    """True if the provider refuses the message without the next one. Steno sends or omits the two together."""
    expires: bool = False
    """True for an instruction that the provider shows to the model only until the next user message."""
    encrypted: int = 0
    """Number of characters of encrypted reasoning, from which Steno estimates the tokens of the reasoning."""
    passed_on: tuple[int, ...] = ()
    """Indexes, in `texts`, of those texts that are results or documents: the user did not write them."""
    beside: tuple[int, ...] = ()
    """Indexes, in `texts`, of those texts that belong to no result. Set only for a message of kind `RESULT`."""
    result_confidence: ResultConfidence = ResultConfidence.NONE
    """Confidence that a user message is a tool result, if the format does not mark results."""
    continues: bool = False
    """True for a user message that begins no turn. The history sets this field."""

    @property
    def begins_turn(self) -> bool:
        return self.kind is Kind.USER and not self.continues

    @property
    def is_result_text(self) -> bool:
        """Return whether this message is a tool's result in user text. The previous message contains the call."""
        return self.kind is Kind.RESULT and self.result_confidence is not ResultConfidence.NONE

    @property
    def own_texts(self) -> tuple[str, ...]:
        """Return the texts that the user wrote, without results and documents."""
        if not self.passed_on:
            return self.texts
        return tuple(text for place, text in enumerate(self.texts) if place not in self.passed_on)

    @property
    def result_places(self) -> tuple[int, ...]:
        """Return the indexes, in `texts`, of those texts that are results. Steno may shorten results in any message."""
        if self.kind is Kind.RESULT:
            return tuple(place for place in range(len(self.texts)) if place not in self.beside)
        return self.passed_on if self.answers else ()

    @property
    def without_results(self) -> Message:
        """Return the message with the text of each result emptied. Other texts, such as a question, stay."""
        emptied = self.result_places
        return replace(self, texts=tuple("" if place in emptied else text for place, text in enumerate(self.texts)))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def results(self) -> tuple[Result, ...]:
        """Return the results in order, each with its texts joined."""
        returned: dict[int, list[str]] = {}
        for owner, text in zip(self.owners or repeat(0), self.texts, strict=False):
            returned.setdefault(owner, []).append(text)
        number, failed = len(self.answers) or int(self.kind is Kind.RESULT), frozenset(self.failed)
        return tuple(Result("\n".join(returned.get(place, ())), place in failed) for place in range(number))


def own_message(text: str) -> Message:
    """Return a message by Steno, such as a note or stub, in the user's role.

    All formats accept a user message anywhere. A system message would give a summary of tool results the authority of
    the operator's instructions.
    """
    return Message(Kind.USER, "user", (text,), raw=b"", digest=b"")


_CALLS, _ANSWERS, _MEDIA, _THINKING, _EXPIRES, _BOUND = 1, 2, 4, 8, 16, 32
"""Bits of `History.held`: the kinds of content in a history."""


class History(tuple[Message, ...]):  # noqa: SLOT001 - it caches derived values
    """Messages in order, with properties derived from them. A longer history reuses these properties.

    A user message begins a turn. A user message that follows or contains tool results continues a turn instead, because
    the assistant is still at work. A user message may also read like a tool result (see `ResultConfidence`). If Steno
    is certain, the message counts as a result. Otherwise it stays a user message, but continues the turn.
    """

    def __new__(cls, messages: Iterable[Message] = ()) -> Self:
        return tuple.__new__(cls, _paired(_in_turn(messages, None), ()))

    shorter: History | None = None
    """History that this history extends; None if it already had `chained` or `counted` then. When Steno later computes
    these fields here, it also sets them in `shorter`, because other histories may extend `shorter`, too."""
    chained: Any = None
    """Chain cached by `Identity`. It is valid for every history that begins with this history."""
    counted: Any = None
    """Counts cached by the estimator. They are valid for every history that begins with this history."""

    def grown(self, new: Sequence[Message]) -> History:
        """Return this history extended by the new messages."""
        if not self.rest:
            return History((*self, *new))
        if self.instructions:
            rest = self._rest.grown(new)
            whole: History = tuple.__new__(History, (*self.instructions, *rest))
            whole.instructions = self.instructions
            whole._rest = rest
            whole.held = self.held | rest.held
            return whole
        new = _paired(_in_turn(new, self), self)
        longer: History = tuple.__new__(History, (*self, *new))
        users: list[int] = []
        turns: list[int] = []
        instructions: list[int] = []
        added = 0
        for place, message in enumerate(new, len(self)):
            added |= _held_by(message)
            if message.kind is Kind.INSTRUCTIONS:
                instructions.append(place)
            elif message.kind is Kind.USER:
                users.append(place)
                if not message.continues:
                    turns.append(place)
        longer.instructions = ()
        longer.user_places = self.user_places + tuple(users)
        longer.turn_starts = self.turn_starts + tuple(turns)
        longer.instruction_places = self.instruction_places + tuple(instructions)
        goes_on = self[-1].bound or added & (_CALLS | _ANSWERS | _BOUND)
        longer.unit_starts = self._units_of(longer) if goes_on else (*self.unit_starts, *range(len(self), len(longer)))
        longer.held = self.held | added
        if self.chained is None and self.counted is None:
            longer.shorter = self
        else:
            longer.chained, longer.counted = self.chained, self.counted
        return longer

    @lazy
    def instructions(self) -> tuple[Message, ...]:
        """Return the leading instructions. Formats put instructions from a separate member of the request first."""
        end = next((i for i, message in enumerate(self) if message.kind is not Kind.INSTRUCTIONS), len(self))
        return tuple(self[:end])

    @property
    def rest(self) -> History:
        """Return the history after the leading instructions."""
        return self._rest if self.instructions else self

    @lazy
    def _rest(self) -> History:
        return History(self[len(self.instructions) :])

    @lazy
    def unit_starts(self) -> tuple[int, ...]:
        return unit_starts(self)

    @lazy
    def user_places(self) -> tuple[int, ...]:
        """Return the indexes of all user messages."""
        return _places(self, Kind.USER)

    @lazy
    def turn_starts(self) -> tuple[int, ...]:
        return tuple(place for place in self.user_places if not self[place].continues)

    @lazy
    def instruction_places(self) -> tuple[int, ...]:
        return _places(self, Kind.INSTRUCTIONS)

    @property
    def first_instruction(self) -> int:
        """Return the index of the first instruction message; without instructions, the length of the history."""
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
        """Map each call to the indexes of the messages with its results."""
        found: dict[CallPosition, list[int]] = {}
        for index, message in enumerate(self):
            for caller in message.callers:
                if caller:
                    found.setdefault(CallPosition(index - caller.distance, caller.call), []).append(index)
        return found

    @lazy
    def expired_places(self) -> frozenset[int]:
        """Return the indexes of expired instructions: see `Message.expires`."""
        if not self.held & _EXPIRES:
            return frozenset()
        return frozenset(index for index, message in enumerate(self) if message.expires) - set(self.live_places)

    @lazy
    def live_places(self) -> tuple[int, ...]:
        """Return the indexes of instructions that expire with the next user message."""
        if not self.held & _EXPIRES:
            return ()
        last = max((index for index, message in enumerate(self) if message.role == "user"), default=-1)
        return tuple(index for index, message in enumerate(self) if message.expires and index > last)

    @lazy
    def held(self) -> int:
        return reduce(or_, map(_held_by, self), 0)

    def _units_of(self, longer: History) -> tuple[int, ...]:
        """Return the unit starts of a longer history, whose new messages may extend the last unit of this history."""
        starts = self.unit_starts
        latest = longer[starts[-1] :]
        if _answers_what_is_before(latest):
            return unit_starts(longer)
        return (*starts, *(starts[-1] + start for start in unit_starts(latest)[1:]))


def _in_turn(messages: Iterable[Message], before: History | None) -> list[Message]:
    """Return the messages with `kind` and `continues` set according to the messages before them."""
    last: Message | None = None  # Latest message that shows whether the assistant works; None before the first turn.
    if before is not None and before.turn_starts:
        index = len(before) - 1
        while not (before[index].kind in _AT_WORK or before[index].begins_turn):
            index -= 1
        last = before[index]
    placed: list[Message] = []
    for message in messages:
        now = _behind(last, message) if last is not None and message.kind is Kind.USER else message
        if now.begins_turn or (last is not None and now.kind in _AT_WORK):
            last = now
        placed.append(now)
    return placed


def _paired(messages: list[Message], before: Sequence[Message]) -> list[Message]:
    """Return the messages, with `callers` set in each message with results. `before` may also contain the calls."""
    if not any(message.answers for message in messages):
        return messages
    start = len(before)
    # Calls of one batch stay together, even with instructions between them.
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
    """Return whether `messages` contain the calls of all results in the message at `index`."""
    return all(
        caller and (not id_ or messages[index - caller.distance].calls[caller.call].id == id_)
        for id_, caller in zip(messages[index].answers, callers, strict=True)
    )


def _callers(messages: Sequence[Message]) -> dict[int, tuple[Caller | None, ...]]:
    """Map the index of each message with results to the positions of the calls that these results answer."""
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


_AT_WORK = (Kind.ASSISTANT, Kind.RESULT)


def _behind(last: Message, message: Message) -> Message:
    """Return a user message with its final `kind` and `continues`. `last` shows whether the assistant is at work."""
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
    """Return the bits for the content of a message."""
    held = _CALLS if message.calls else 0
    if message.answers or message.is_result_text:
        held |= _ANSWERS
    if message.media:
        held |= _MEDIA
    if message.expires:
        held |= _EXPIRES
    if message.bound:
        held |= _BOUND
    return held | _THINKING if message.signed_thinking else held


def _places(messages: Iterable[Message], kind: Kind) -> tuple[int, ...]:
    return tuple([index for index, message in enumerate(messages) if message.kind is kind])


def _answers_what_is_before(messages: Iterable[Message]) -> bool:
    """Return whether any result in these messages belongs to a call before these messages."""
    has_spoken = False
    for index, message in enumerate(messages):
        has_spoken = has_spoken or message.kind is Kind.ASSISTANT
        if message.is_result_text and not has_spoken:
            return True
        if any(caller and caller.distance > index for caller in message.callers):
            return True
    return False


class Transcript:
    """The messages after the leading instructions, and the positions where they may be cut.

    A turn reaches from a user message up to the next user message that begins a turn. A unit is a single message, or
    messages that must stay together, such as an assistant message with its tool results. A cut at position p separates
    the first p messages from the rest. A cut is never inside a unit.
    """

    def __init__(self, messages: Sequence[Message], costs: Callable[[], Sequence[int]]) -> None:
        """`costs` returns the estimated tokens of each message, uncalibrated. It is called at most once."""
        self.messages = messages if isinstance(messages, History) else History(messages)
        self._costs = costs

    def __len__(self) -> int:
        return len(self.messages)

    def tokens(self, start: int, stop: int | None = None) -> int:
        return self._tokens_before[len(self) if stop is None else stop] - self._tokens_before[start]

    def tokens_of(self, index: int) -> int:
        return self._tokens_before[index + 1] - self._tokens_before[index]

    @lazy
    def _tokens_before(self) -> tuple[int, ...]:
        return (0, *accumulate(self._costs()))

    def carried(self, start: int, stop: int, end: int) -> tuple[int, ...]:
        """Return the indexes from `start` up to `stop` of messages that stay verbatim in a compaction up to `end`.

        All instructions stay. If `end` is inside a turn, the turn's first message stays. If the message at `end` is not
        a user message, the last user message before `end` stays. If one of these two has results, its whole unit stays.
        """
        places = self.messages.instruction_places
        inside = places[bisect_left(places, start) : bisect_left(places, stop)]
        return tuple(sorted({*inside, *(index for index in self._split_question(end) if start <= index < stop)}))

    def released(self, held: Iterable[int], end: int) -> list[int]:
        """Return those indexes in `held` whose messages a compaction up to `end` may summarise."""
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
        """Return the index of the last user message; -1 if there is none."""
        users = self.messages.user_places
        return users[-1] if users else -1

    @property
    def last_turn(self) -> int:
        """Return the index of the last turn's first message, which gives the task; -1 if there is no turn."""
        return self.turn_starts[-1] if self.turn_starts else -1

    @property
    def cuts(self) -> tuple[int, ...]:
        """Return the positions between units, ascending, from 0 to the start of the last unit."""
        return self.messages.unit_starts

    def is_answered(self, start: int, stop: int) -> bool:
        """Return whether each call from `start` up to `stop` has a result, and each result has a call."""
        messages = self.messages[start:stop]
        calls = {(index, place) for index in range(start, stop) for place in range(len(self.messages[index].calls))}
        return not any(None in message.callers for message in messages) and calls <= self.messages.results.keys()

    def call_text(self, index: int) -> str:
        """Return the names and arguments of the calls that a message's results answer. For a result that the client
        wrote as text, return the end of the previous message."""
        message = self.messages[index]
        if message.is_result_text:
            return self.messages[index - 1].text[-CALL_CHARACTERS:] if index else ""
        return "\n".join(f"{call.name} {call.arguments}" for call in calls_of(self.messages, index) if call)

    def unit_of(self, index: int) -> tuple[int, int]:
        after = bisect_right(self.cuts, index)
        return self.cuts[after - 1], self.cuts[after] if after < len(self.cuts) else len(self)

    def turn_at(self, position: int) -> int:
        """Return the number of turns that begin in the first `position` messages."""
        return bisect_left(self.turn_starts, position)

    def split_turn(self, position: int) -> int | None:
        """Return the start of the turn that a cut at `position` splits; None if the cut is between turns."""
        if position >= len(self) or self.messages[position].begins_turn:
            return None
        begun = bisect_left(self.turn_starts, position)
        return self.turn_starts[begun - 1] if begun else None


def unit_starts(messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the starts of the units, ascending. Each message begins a unit, except these: a result of an earlier call,
    a message between a call and its results, and a message after a bound message."""
    spoken = 0
    reaches: dict[int, int] = {}  # Index of a message with calls -> last index of its unit.
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
    """Return the call of each result of a message; None if `messages` do not contain the call."""
    return [
        messages[index - caller.distance].calls[caller.call] if caller and caller.distance <= index else None
        for caller in messages[index].callers
    ]


def tool_name(messages: Sequence[Message], index: int) -> str:
    """Return the name of a result's tool: from its call, else from the result, else empty."""
    return next((call.name for call in calls_of(messages, index) if call and call.name), messages[index].name)

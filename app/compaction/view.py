"""The view: the messages that are sent instead of the history.

Rule: the client's history is never edited. For each request a new view is made, in the conversation's order: the
instructions, always whole; for each chunk its summary and the messages it carries; copies of pinned messages; then the
rest, byte for byte except where a stage removed something. Its chunks and masks depend only on the history and the
store (see `select`). Every part names its messages, so that a view can be verified before it is sent (`verify`) and
reported afterwards (`coverage_of`): each message is covered exactly once.

Some providers sign a thought over everything before it, and refuse it after anything else, such as a summary. So:

1. A changed view omits the thinking of finished turns. Every provider accepts that.
2. The current turn keeps its thinking: while a model thinks, providers demand it there.
3. If thinking was refused because something before it changed in the middle of the turn, the turn's thinking up to the
   refused request is never sent again (`ChatRequest.thinking_from`); later thinking follows the new prefix.
4. A model that has refused thinking (`ChatRequest.binds_thinking`) gets none after text that a stage shortens or omits
   differently in each request of a turn, and none of the current turn after a new summary or mask: the same prefix
   never comes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunks import SummaryChunk
from app.conversation.client_context import (
    MOST_OF_LIMIT,
    CarriedContext,
    ClientContext,
    superseded_places,
    without_superseded,
)
from app.conversation.identity import Identity
from app.conversation.lazy import lazy
from app.conversation.messages import History, Kind, Message, Transcript
from app.tokens.estimate import Cost, Costs


class Verbatim(Struct, frozen=True):
    start: int
    stop: int


class Carried(Struct, frozen=True):
    """A message inside a chunk's range that is sent verbatim after the summary."""

    index: int


Alteration = Literal["masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"]
"""Stage that removed something: see its module."""


class Altered(Struct, frozen=True):
    """A message from which something was removed."""

    index: int
    texts: tuple[str, ...]
    """Remaining texts, one for each text of the message."""
    tokens: int
    by: Alteration
    calls: tuple[tuple[int, str], ...] | None = None
    """Remaining calls with their arguments, by position; None if unchanged."""
    media: tuple[str, ...] = ()
    """Text instead of each media part; empty if unchanged."""


class Pruned(Struct, frozen=True):
    """The omitted messages from `start` up to `stop`, without a replacement. The answer reports them."""

    start: int
    stop: int
    by: Literal["pruned", "repaired"] = "pruned"


class Pinned(Struct, frozen=True):
    """A verbatim copy of a pinned message's unit; the messages themselves are omitted."""

    start: int
    stop: int


class Note(Struct, frozen=True):
    """A user message written by Steno for this payload, and not stored."""

    kind: Literal["stub", "user_words", "exact_values", "state", "client_instructions"]
    text: str
    tokens: int


class Recalled(Struct, frozen=True):
    """A message by Steno that quotes passages of omitted or shortened messages: see `recall`."""

    messages: tuple[int, ...]
    """Positions of the quoted messages, ascending."""
    text: str
    tokens: int


class Summary(Struct, frozen=True):
    chunk: SummaryChunk


Part = Verbatim | Carried | Altered | Pruned | Pinned | Note | Recalled | Summary


class Conversation:
    """One request's history. Tokens are counted on first use; a short history may not need a count."""

    def __init__(
        self,
        messages: Sequence[Message],
        identity: Identity,
        tenant: str,
        count: Callable[[], Costs],
        bound: int | None,
    ) -> None:
        """`bound`: upper bound of the estimate that is known without counting; None without one."""
        self.bound = bound
        self.history = history = messages if isinstance(messages, History) else History(messages)
        self.instructions = history.instructions

        @cache  # Shared by all copies, so that tokens are counted once.
        def counted() -> Costs:
            costs, expired = count(), history.expired_places
            shown = [0 if i in expired else tokens for i, tokens in enumerate(costs.messages)] if expired else ()
            return replace(costs, messages=shown) if expired else costs

        self.count = counted
        rest, skipped = history.rest, len(self.instructions)
        # No reference to self: a cycle would keep everything until the next garbage collection.
        self.transcript = Transcript(rest, lambda: counted().messages[skipped:])
        self.chain = identity.chain_of(tenant, rest)

    superseded: frozenset[int] = frozenset()
    """Positions of instructions that a newer one has replaced."""

    def with_newest_instructions(self, limit: int) -> Conversation:
        """Return the same history. If instructions repeat and take too much of `limit` tokens, only the newest still
        count as instructions."""
        messages = self.transcript.messages
        taken = sum(map(self.transcript.tokens_of, messages.instruction_places))
        if taken <= MOST_OF_LIMIT * limit or not (superseded := superseded_places(messages)):
            return self
        released = copy(self)
        released.superseded, costs = superseded, self.costs.messages[len(self.instructions) :]
        released.transcript = Transcript(without_superseded(messages, superseded), lambda: costs)
        return released

    @property
    def costs(self) -> Costs:
        return self.count()

    def is_within(self, tokens: int) -> bool:
        """Return whether the estimate is at most `tokens`, without counting if possible."""
        return (self.bound is not None and self.bound <= tokens) or self.tokens <= tokens

    @lazy
    def message_bytes(self) -> int:
        return sum(len(message.raw) for message in self.history)

    @lazy
    def instruction_tokens(self) -> int:
        """Return the tokens that no compaction can remove: instructions, tools, priming."""
        return self.costs.fixed + sum(self.costs.messages[: len(self.instructions)])

    @lazy
    def tokens(self) -> int:
        return self.costs.fixed + sum(self.costs.messages)

    @property
    def floor(self) -> int:
        """Return the tokens that no stage may remove: tools, all instructions, and the last user message without
        results in it."""
        least, question = self._least_tokens(), self.costs.question
        results = 0 if question is None else self.transcript.tokens_of(self.transcript.last_user) - question
        return least - max(0, results)

    @property
    def whole_floor(self) -> int:
        """Return the tokens that no summary can remove: the floor, and the whole last user message and last unit."""
        cuts = self.transcript.cuts
        return self._least_tokens(range(cuts[-1] if cuts else 0, len(self.transcript)))

    def _least_tokens(self, others: Iterable[int] = ()) -> int:
        """Return the tokens of the instructions, the last user message, and the messages `others`."""
        transcript = self.transcript
        kept = {*transcript.messages.instruction_places, transcript.last_user, *others} - {-1}
        return self.instruction_tokens + sum(map(transcript.tokens_of, kept))

    @lazy
    def cut_digests(self) -> tuple[bytes, ...]:
        """Return the chain's digests at which a summary or mask may begin or end; the keys for the store."""
        return tuple(self.chain[cut] for cut in self.transcript.cuts)

    def with_pins(self, pins: tuple[int, ...]) -> Conversation:
        """Return the same history with these pinned messages instead of its own; digests and counts are shared.

        Positions are counted after the leading instructions, ascending. Pinned messages stay in every payload.
        """
        if pins == self.kept.pins:
            return self
        pinned = copy(self)
        pinned.kept = kept_messages(self.transcript, pins, self.transcript.last_turn)
        return pinned

    @property
    def giving_way(self) -> tuple[Conversation, ...]:
        """Return two copies for a payload that is too large: the first may shorten the last turn's first message, the
        second may omit it. Empty if that is the last user message, or without a turn."""
        transcript = self.transcript
        if transcript.last_turn in (-1, transcript.last_user):
            return ()
        shorter, bare = copy(self), copy(self)
        shorter.kept = kept_messages(transcript, self.kept.pins, transcript.last_turn, is_whole=False)
        bare.kept = kept_messages(transcript, self.kept.pins)
        return shorter, bare

    @lazy
    def kept(self) -> Kept:
        return kept_messages(self.transcript, (), self.transcript.last_turn)

    def with_client_context(self, context: ClientContext) -> Conversation:
        held = copy(self)
        held.client_context = context
        return held

    @lazy
    def client_context(self) -> ClientContext:
        """Return the client's context blocks; by default none is repeated."""
        return ClientContext(self.transcript, 0, lambda _: 1)


class Kept(Struct, frozen=True):
    """Kept messages of a transcript: pinned ones, the last user message, and the last turn's first message."""

    pins: tuple[int, ...]
    units: tuple[tuple[int, int], ...]
    """Units of the pinned messages, ascending."""
    messages: frozenset[int]
    """Positions of the messages that no stage may omit."""
    whole: frozenset[int]
    """Positions of the messages that no stage may change."""


def kept_messages(transcript: Transcript, pins: tuple[int, ...], task: int = -1, *, is_whole: bool = True) -> Kept:
    """`task`: the last turn's first message, -1 if it may be omitted. `is_whole`: whether no stage may change it."""
    units = tuple(sorted({transcript.unit_of(position) for position in pins}))
    pinned = {index for start, stop in units for index in range(start, stop)}
    unchanged = {transcript.last_user, *transcript.messages.live_places, *([task] if is_whole else ())} - {-1}
    whole = {index for index in unchanged if not transcript.messages[index].result_places}
    return Kept(pins, units, frozenset(pinned | unchanged | {task} - {-1}), frozenset(pinned | whole))


ACTIONS = (
    *("masked", "summarized", "user_words", "pinned", "trimmed", "cleared", "faded"),
    *("shortened", "truncated", "pruned", "stub", "repaired", "recalled", "cache_marked"),
    "thinking_removed",
)


class View(Struct, frozen=True):
    """The payload after the instructions, which always come first and whole."""

    parts: tuple[Part, ...]
    tokens: int
    without_thinking: frozenset[int] = frozenset()
    """Positions of the messages sent without their signed thinking."""
    marks_cache: bool = False
    """Whether a cache breakpoint is set before the last quotation."""

    @property
    def chunks(self) -> tuple[SummaryChunk, ...]:
        return tuple(part.chunk for part in self.parts if isinstance(part, Summary))

    @property
    def recalled(self) -> tuple[Recalled | Note, ...]:
        """Return the parts that repeat something from omitted or shortened messages."""
        return tuple(
            part
            for part in self.parts
            if isinstance(part, Recalled) or (isinstance(part, Note) and part.kind in ("exact_values", "state"))
        )

    @property
    def changed(self) -> Mapping[str, int]:
        changed: Counter[str] = Counter()
        for part in self.parts:
            if isinstance(part, Altered | Pruned):
                changed[part.by] += part.stop - part.start if isinstance(part, Pruned) else 1
        return changed

    @property
    def actions(self) -> tuple[str, ...]:
        """Return the actions on the history, in the order of the stages."""
        notes = {part.kind for part in self.parts if isinstance(part, Note)}
        done = {
            **self.changed,
            "summarized": self.chunks,
            "user_words": "user_words" in notes or any(chunk.user_words for chunk in self.chunks),
            "pinned": any(isinstance(part, Pinned) for part in self.parts),
            "stub": "stub" in notes,
            "recalled": self.recalled,
            "cache_marked": self.marks_cache,
            "thinking_removed": self.without_thinking,
        }
        return tuple(action for action in ACTIONS if done.get(action))


def sent_in(part: Part) -> Sequence[int]:
    """Return the positions of the messages that a part sends, whole or altered."""
    match part:
        case Verbatim(start, stop) | Pinned(start, stop):
            return range(start, stop)
        case Carried(index) | Altered(index):
            return (index,)
        case _:
            return ()


def omitted_in(conversation: Conversation, part: Part) -> range:
    """Return the positions that a part omits: pruned messages, or a summary's range with carried messages."""
    match part:
        case Summary(chunk):
            positions = conversation.chain.positions
            return range(positions.get(chunk.from_digest, 0), positions.get(chunk.through_digest, 0))
        case Pruned(start, stop):
            return range(start, stop)
        case _:
            return range(0)


def standing(view: View) -> Iterator[tuple[int | None, Part]]:
    """Yield the view's parts, verbatim ones message by message; with the position if it may be altered, else None."""
    for part in view.parts:
        match part:
            case Verbatim(start, stop):
                yield from ((index, Verbatim(index, index + 1)) for index in range(start, stop))
            case Altered(index) | Carried(index):
                yield index, part
            case _:
                yield None, part


def tokens_in(conversation: Conversation, index: int, part: Part) -> int:
    if isinstance(part, Pruned):
        return 0
    return part.tokens if isinstance(part, Altered) else conversation.transcript.tokens_of(index)


def with_changes(conversation: Conversation, view: View, change: Callable[[int, Part], Part]) -> View:
    parts: list[Part] = []
    tokens = view.tokens
    for index, part in standing(view):
        now = part if index is None else change(index, part)
        if index is not None:
            tokens += tokens_in(conversation, index, now) - tokens_in(conversation, index, part)
        parts.append(now)
    return replace(view, parts=joined(parts), tokens=tokens)


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Join adjacent verbatim parts, and adjacent pruned parts."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Verbatim) and isinstance(last, Verbatim) and last.stop == part.start:
            found[-1] = Verbatim(last.start, part.stop)
        elif isinstance(part, Pruned) and part.by == "pruned" and isinstance(last, Pruned) and last.stop == part.start:
            found[-1] = Pruned(last.start, part.stop)
        else:
            found.append(part)
    return tuple(found)


def message_of(conversation: Conversation, index: int, part: Part) -> Message:
    message = conversation.transcript.messages[index]
    if not isinstance(part, Altered):
        return message
    calls = message.calls
    if part.calls is not None:
        calls = tuple(replace(calls[position], arguments=arguments) for position, arguments in part.calls)
    return replace(message, texts=part.texts, calls=calls)


def whole(conversation: Conversation) -> View:
    rest = len(conversation.transcript)
    return View((Verbatim(0, rest),) if rest else (), conversation.tokens)


def covered_by(conversation: Conversation, view: View) -> int:
    chunks = view.chunks
    return conversation.chain.positions[chunks[-1].through_digest] if chunks else 0


def with_carried_context(conversation: Conversation, view: View) -> View:
    """Return the view with the note that repeats omitted client context; unchanged if it has that note."""
    notes = (part for part in view.parts if isinstance(part, Note))
    held = next((note for note in notes if note.kind == "client_instructions"), None)
    carried = carried_context(conversation, view.parts)
    if (held.text if held else "") == carried.text:
        return view
    others = [part for part in view.parts if part is not held]
    tokens = view.tokens - (held.tokens if held else 0) + carried.tokens
    return replace(view, parts=(*context_note(carried), *others), tokens=tokens)


def carried_context(conversation: Conversation, parts: Iterable[Part]) -> CarriedContext:
    """Return the client context that a view of these parts has to repeat."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.carry_over(reach, stands)


def most_carried_tokens(conversation: Conversation, parts: Iterable[Part], out: AbstractSet[int]) -> int:
    """Return the tokens of the largest note of client context while the messages in `out` are omitted in order."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.most_tokens(reach, max(out, default=-1) + 1, stands - out)


def _reach(conversation: Conversation, parts: Iterable[Part]) -> tuple[int, set[int]]:
    """Return the end of the messages that a view of these parts may omit, and the positions of those that it sends."""
    parts = tuple(parts)
    reach = max((omitted_in(conversation, part).stop for part in parts), default=0)
    return reach, {index for part in parts for index in sent_in(part)}


def context_note(carried: CarriedContext) -> list[Note]:
    return [Note("client_instructions", carried.text, carried.tokens)] if carried.text else []


ANEW: frozenset[Alteration] = frozenset({"trimmed", "cleared", "shortened", "faded", "truncated"})
"""Stages that depend on the whole history: their texts change with each request of a turn."""


def current_turn(conversation: Conversation) -> int:
    """Return the position of the current turn's first message, as providers count turns: a message with results never
    begins one. -1 without a turn."""
    messages = conversation.transcript.messages
    for index in reversed(range(len(messages))):
        message = messages[index]
        if (message.kind is Kind.USER or message.is_result_text) and not message.answers:
            return index
    return -1


def without_thinking(
    conversation: Conversation, view: View | None, start: int, cost: Cost, *, is_bound: bool = False
) -> View | None:
    """Return the view without the thinking of the messages before `start`; unchanged if it sends none. `view` None: the
    whole history. `is_bound`: also without thinking after the first message that the next request may change."""
    changed, messages = view or whole(conversation), conversation.transcript.messages
    stop = _first_made_anew(conversation, changed) if is_bound else len(messages)
    sent = (i for part in changed.parts for i in sent_in(part) if messages[i].signed_thinking)
    left_out = {i for i in sent if i < start or i > stop} - changed.without_thinking
    if not left_out:
        return view
    saved = sum(cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in left_out)
    return replace(changed, without_thinking=changed.without_thinking | left_out, tokens=changed.tokens - saved)


LATEST_TURNS = 8
"""Earlier turns whose refused thinking is looked up."""


def turn_digests(conversation: Conversation) -> list[bytes]:
    """Return the digests of the history up to the start of each of the latest turns, the current one first; none if the
    history has no signed thinking."""
    if not conversation.history.holds_signed_thinking:
        return []
    last = current_turn(conversation)
    earlier = [start for start in conversation.transcript.turn_starts if start < last][-LATEST_TURNS:]
    return [conversation.chain[start + 1] for start in (last, *reversed(earlier))]


def lacks_current_thinking(conversation: Conversation, view: View | None) -> bool:
    return view is not None and max(view.without_thinking, default=-1) > current_turn(conversation)


def sent_again_from(conversation: Conversation, view: View | None) -> int:
    """Return the position from which later requests can send the turn's thinking; 0 for all. Omitted thinking stays
    omitted. If the view changes with every request, the thinking of its answer cannot be sent either."""
    messages = len(conversation.transcript)
    if view is not None and _first_made_anew(conversation, view) < messages:
        return messages + 1
    return max(view.without_thinking) + 1 if view and lacks_current_thinking(conversation, view) else 0


def _first_made_anew(conversation: Conversation, view: View) -> int:
    """Return the position of the first message that the turn's next request may send differently; the history's length
    without one. Whole omitted turns stay omitted until another turn begins."""
    turns = conversation.transcript.turn_starts
    for part in view.parts:
        match part:
            case Altered(index, by=by) if by in ANEW:
                return index
            case Pruned(start, stop, "pruned") if stop not in turns:
                return start
            case _:
                pass
    return len(conversation.transcript)

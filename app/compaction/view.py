"""The view: what is sent instead of the history.

Rule: the client's history is never edited. For each request a view of it is worked out anew, in the conversation's
order: the instructions, always whole; for each chunk its summary and the messages it carries; copies of what is pinned;
then the rest, byte for byte but for what a stage took away. Which chunks and masks it uses follows from the history and
from what is stored, and from nothing else: see `select`. Every part names the messages it stands for, so that a view
can be checked before it is sent (`verify`) and shown afterwards (`coverage_of`): each message is covered exactly once.

Some providers sign a thought over all that stood before it, and refuse it behind anything else, such as a summary. So:

1. A changed view leaves out the thinking of finished turns. Every provider takes that.
2. The turn under way keeps its own: while a model is to think, providers demand it there.
3. Where that was refused, because something before it changed in the middle of the turn, Steno sends nothing of the
   turn up to the refused request from then on (`ChatRequest.thinking_from`). What was thought later stands behind the
   new prefix.
4. A model that refused thinking once (`ChatRequest.binds_thinking`) gets none behind what a stage shortens or leaves
   out anew for each request of a turn: it never stands behind the same prefix again. It also gets none of the turn
   behind a summary or a mask that was just made.
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
    """A message inside a chunk's range that stays verbatim after the summary."""

    index: int


Alteration = Literal["masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"]
"""Stage that took something away: see the module of each."""


class Altered(Struct, frozen=True):
    """A message of which something was left out."""

    index: int
    texts: tuple[str, ...]
    """Texts that are left, one for each of the message's."""
    tokens: int
    by: Alteration
    calls: tuple[tuple[int, str], ...] | None = None
    """The calls that are left, by position, with their arguments; None where they stay as they are."""
    media: tuple[str, ...] = ()
    """Words in place of each of its media; empty where they stay as they are."""


class Pruned(Struct, frozen=True):
    """The messages from `start` up to `stop` are left out, with nothing in their place. The answer says so."""

    start: int
    stop: int
    by: Literal["pruned", "repaired"] = "pruned"


class Pinned(Struct, frozen=True):
    """A verbatim copy of a pinned message's unit: the messages themselves are among those left out."""

    start: int
    stop: int


class Note(Struct, frozen=True):
    """A user message of Steno's own. It is made for this payload and stored nowhere."""

    kind: Literal["stub", "user_words", "exact_values", "state", "client_instructions"]
    text: str
    tokens: int


class Recalled(Struct, frozen=True):
    """A message of Steno's own that quotes passages of others which are left out or shortened: see `recall`."""

    messages: tuple[int, ...]
    """Positions of the messages whose passages they are, ascending."""
    text: str
    tokens: int


class Summary(Struct, frozen=True):
    chunk: SummaryChunk


Part = Verbatim | Carried | Altered | Pruned | Pinned | Note | Recalled | Summary


class Conversation:
    """One request's history. Tokens are counted on first use; a short history may need no count."""

    def __init__(
        self,
        messages: Sequence[Message],
        identity: Identity,
        tenant: str,
        count: Callable[[], Costs],
        bound: int | None,
    ) -> None:
        """`bound`: a number of tokens that the estimate cannot exceed, known without counting; None without one."""
        self.bound = bound
        self.history = history = messages if isinstance(messages, History) else History(messages)
        self.instructions = history.instructions

        @cache  # Shared by every copy, which is counted once.
        def counted() -> Costs:
            costs, expired = count(), history.expired_places
            shown = [0 if i in expired else tokens for i, tokens in enumerate(costs.messages)] if expired else ()
            return replace(costs, messages=shown) if expired else costs

        self.count = counted
        rest, skipped = history.rest, len(self.instructions)
        # Without a reference back: with one, all of it would stay until the collector comes by.
        self.transcript = Transcript(rest, lambda: counted().messages[skipped:])
        self.chain = identity.chain_of(tenant, rest)

    superseded: frozenset[int] = frozenset()
    """Positions of former instructions that a newer one took the place of."""

    def with_newest_instructions(self, limit: int) -> Conversation:
        """The same history; of instructions that repeat and take too much of `limit` tokens, only the newest ones are
        instructions."""
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
        """Whether the estimate is at most so many, if possible without counting."""
        return (self.bound is not None and self.bound <= tokens) or self.tokens <= tokens

    @lazy
    def message_bytes(self) -> int:
        return sum(len(message.raw) for message in self.history)

    @lazy
    def instruction_tokens(self) -> int:
        """Tokens that no compaction can take away: instructions, tools, priming."""
        return self.costs.fixed + sum(self.costs.messages[: len(self.instructions)])

    @lazy
    def tokens(self) -> int:
        return self.costs.fixed + sum(self.costs.messages)

    @property
    def floor(self) -> int:
        """Tokens that no stage may remove: tools, all instructions, and the last user message without the results in
        it."""
        least, question = self._least_tokens(), self.costs.question
        results = 0 if question is None else self.transcript.tokens_of(self.transcript.last_user) - question
        return least - max(0, results)

    @property
    def whole_floor(self) -> int:
        """Tokens that no summary can take away: the floor, the last user message and the last unit as they are."""
        cuts = self.transcript.cuts
        return self._least_tokens(range(cuts[-1] if cuts else 0, len(self.transcript)))

    def _least_tokens(self, others: Iterable[int] = ()) -> int:
        """Tokens of the instructions, the last user message, and these messages."""
        transcript = self.transcript
        kept = {*transcript.messages.instruction_places, transcript.last_user, *others} - {-1}
        return self.instruction_tokens + sum(map(transcript.tokens_of, kept))

    @lazy
    def cut_digests(self) -> tuple[bytes, ...]:
        """The chain's digests at which a summary or a mask may begin or end: what is looked up in the store."""
        return tuple(self.chain[cut] for cut in self.transcript.cuts)

    def with_pins(self, pins: tuple[int, ...]) -> Conversation:
        """The same history, digested and counted once, with these pinned messages in place of its own.

        They are counted after the leading instructions, ascending, and stay in every payload.
        """
        if pins == self.kept.pins:
            return self
        pinned = copy(self)
        pinned.kept = kept_messages(self.transcript, pins, self.transcript.last_turn)
        return pinned

    @property
    def giving_way(self) -> tuple[Conversation, ...]:
        """Two copies: the last turn's first message may be shortened in the first, and left out of the second if it
        does not fit beside the last user message. Empty if they are the same message, or without a turn."""
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
        """Context blocks of the client; unless something else is set, none of them stays."""
        return ClientContext(self.transcript, 0, lambda _: 1)


class Kept(Struct, frozen=True):
    """Messages of a transcript that stay: what is pinned, the last user message, and what the last turn is about."""

    pins: tuple[int, ...]
    units: tuple[tuple[int, int], ...]
    """Units of the pinned messages, ascending."""
    messages: frozenset[int]
    """Positions of the messages that no stage may leave out; see `whole` for changes."""
    whole: frozenset[int]
    """Positions of the messages that no stage may change."""


def kept_messages(transcript: Transcript, pins: tuple[int, ...], task: int = -1, *, is_whole: bool = True) -> Kept:
    """`task`: the message that the last turn begins with; -1 where it need not stay. `is_whole`: as it is."""
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
    """The payload in order, after the instructions, which always come first and whole."""

    parts: tuple[Part, ...]
    tokens: int
    without_thinking: frozenset[int] = frozenset()
    """Positions of the messages that are sent without their signed thinking."""
    marks_cache: bool = False
    """Whether a cache breakpoint is set before the last quotation."""

    @property
    def chunks(self) -> tuple[SummaryChunk, ...]:
        return tuple(part.chunk for part in self.parts if isinstance(part, Summary))

    @property
    def recalled(self) -> tuple[Recalled | Note, ...]:
        """Parts that bring back something of messages that are left out or shortened."""
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
        """Actions on the history, in the order of the stages."""
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
    """Positions of the history's messages that a part sends, whole or altered."""
    match part:
        case Verbatim(start, stop) | Pinned(start, stop):
            return range(start, stop)
        case Carried(index) | Altered(index):
            return (index,)
        case _:
            return ()


def omitted_in(conversation: Conversation, part: Part) -> range:
    """Positions that a part leaves out: a summary's whole range, with what it carries, or what is pruned."""
    match part:
        case Summary(chunk):
            positions = conversation.chain.positions
            return range(positions.get(chunk.from_digest, 0), positions.get(chunk.through_digest, 0))
        case Pruned(start, stop):
            return range(start, stop)
        case _:
            return range(0)


def standing(view: View) -> Iterator[tuple[int | None, Part]]:
    """The view's parts, what is verbatim message by message; the position of those that may be altered, else None."""
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
    """The parts, with neighbours as one that stay verbatim, or that are pruned."""
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
    """The view with the note that repeats omitted client context; itself where it has that note."""
    notes = (part for part in view.parts if isinstance(part, Note))
    held = next((note for note in notes if note.kind == "client_instructions"), None)
    carried = carried_context(conversation, view.parts)
    if (held.text if held else "") == carried.text:
        return view
    others = [part for part in view.parts if part is not held]
    tokens = view.tokens - (held.tokens if held else 0) + carried.tokens
    return replace(view, parts=(*context_note(carried), *others), tokens=tokens)


def carried_context(conversation: Conversation, parts: Iterable[Part]) -> CarriedContext:
    """The client context that a view of these parts has to repeat."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.carry_over(reach, stands)


def most_carried_tokens(conversation: Conversation, parts: Iterable[Part], out: AbstractSet[int]) -> int:
    """Tokens of the largest note that a view of these parts needs while the messages in `out` are left out in order."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.most_tokens(reach, max(out, default=-1) + 1, stands - out)


def _reach(conversation: Conversation, parts: Iterable[Part]) -> tuple[int, set[int]]:
    """How many of the history's first messages a view of these parts may leave out, and which messages it sends."""
    parts = tuple(parts)
    reach = max((omitted_in(conversation, part).stop for part in parts), default=0)
    return reach, {index for part in parts for index in sent_in(part)}


def context_note(carried: CarriedContext) -> list[Note]:
    return [Note("client_instructions", carried.text, carried.tokens)] if carried.text else []


ANEW: frozenset[Alteration] = frozenset({"trimmed", "cleared", "shortened", "faded", "truncated"})
"""Stages that depend on the whole history: their texts change with the next request of a turn."""


def current_turn(conversation: Conversation) -> int:
    """Position of the current turn's first message, as providers count turns: a message with results never begins one.
    -1 if there is none."""
    messages = conversation.transcript.messages
    for index in reversed(range(len(messages))):
        message = messages[index]
        if (message.kind is Kind.USER or message.is_result_text) and not message.answers:
            return index
    return -1


def without_thinking(
    conversation: Conversation, view: View | None, start: int, cost: Cost, *, is_bound: bool = False
) -> View | None:
    """The view without the thinking of the messages before `start`; unchanged if it sends none. None stands for the
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
    """Digests of the history up to the beginning of each of the latest turns, that of the turn under way first; none
    for a history that holds no signed thinking."""
    if not conversation.history.holds_signed_thinking:
        return []
    last = current_turn(conversation)
    earlier = [start for start in conversation.transcript.turn_starts if start < last][-LATEST_TURNS:]
    return [conversation.chain[start + 1] for start in (last, *reversed(earlier))]


def lacks_current_thinking(conversation: Conversation, view: View | None) -> bool:
    return view is not None and max(view.without_thinking, default=-1) > current_turn(conversation)


def sent_again_from(conversation: Conversation, view: View | None) -> int:
    """Position from which later requests can send the turn's thinking; 0 for all of it. Thinking once left out stays
    out. If the view changes with every request, the thinking of its answer cannot be sent either."""
    messages = len(conversation.transcript)
    if view is not None and _first_made_anew(conversation, view) < messages:
        return messages + 1
    return max(view.without_thinking) + 1 if view and lacks_current_thinking(conversation, view) else 0


def _first_made_anew(conversation: Conversation, view: View) -> int:
    """Position of the first message that the turn's next request may send differently; the history's length without
    one. Turns that are left out whole stay out until another turn begins."""
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

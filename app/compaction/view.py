"""View: the messages that Steno sends instead of the history.

Steno never edits the client's history. It builds a new view for each request. In order, a view contains the whole
instructions, the summary of each chunk with its carried messages, copies of pinned messages, and all later messages.
Sent messages have the client's bytes, except for text that a stage removed. The view's chunks and masks depend only on
the history and the store (see `planning_state`). Each part names its messages. So Steno can verify that a view covers
each message exactly once (`verify`), and report the view (`coverage_of`).

Some providers sign the model's thinking together with the prompt before it. If that prompt changes, for example by a
summary, these providers refuse the thinking. So:

1. A changed view omits the thinking of finished turns. Every provider accepts that.
2. The current turn keeps its thinking, because providers demand it while thinking is on.
3. If the provider refuses thinking of the current turn, later requests omit the turn's thinking up to the refused
   request (`ChatRequest.thinking_from`). Steno sends later thinking, which the provider signed with the new
   prefix. If the view changes with each request, Steno omits that thinking, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
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
from app.conversation.messages import History, Kind, Message, Transcript, lazy
from app.tokens.estimate import Cost, Costs


class Verbatim(Struct, frozen=True):
    start: int
    stop: int


class Carried(Struct, frozen=True):
    """Message inside a chunk's range that is sent verbatim after the summary."""

    index: int


Alteration = Literal["masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"]
"""Name of the action that removed something: see `mask`, `trim` and `verify`."""


class Altered(Struct, frozen=True):
    """Message from which a stage removed something."""

    index: int
    texts: tuple[str, ...]
    """Remaining part of each text of the message."""
    tokens: int
    by: Alteration
    calls: tuple[tuple[int, str], ...] | None = None
    """Remaining calls, each with its position in the message and its arguments; None if the calls are unchanged."""
    media: tuple[str, ...] = ()
    """Texts that replace the media parts; empty if the media parts are unchanged."""


class Pruned(Struct, frozen=True):
    """Messages from `start` to before `stop` that are omitted without a replacement."""

    start: int
    stop: int
    by: Literal["pruned", "repaired"] = "pruned"


class Pinned(Struct, frozen=True):
    """Verbatim copy of a unit with a pinned message. A summary replaces the original unit."""

    start: int
    stop: int


class Note(Struct, frozen=True):
    """User message that Steno writes for this payload and does not store."""

    kind: Literal["stub", "user_words", "exact_values", "state", "client_instructions", "recalled"]
    """`recalled`: quotations of omitted or shortened messages. The note stands before the user message that they match
    (see `recall`)."""
    text: str
    tokens: int
    messages: tuple[int, ...] = ()
    """Positions of the quoted messages, ascending; only in notes of kind `recalled`."""


class Summary(Struct, frozen=True):
    chunk: SummaryChunk


Part = Verbatim | Carried | Altered | Pruned | Pinned | Note | Summary


class Conversation:
    """History of one request. Tokens are counted on first use, because a short history may not need a count."""

    def __init__(
        self,
        messages: Sequence[Message],
        identity: Identity,
        tenant: str,
        count: Callable[[], Costs],
        bound: int | None,
    ) -> None:
        """`count`: counts the tokens. `bound`: upper bound of the estimate, known without counting; None if unknown."""
        self.bound = bound
        self.history = history = messages if isinstance(messages, History) else History(messages)
        self.instructions = history.instructions

        found: list[Costs] = []  # All copies share the result, so that tokens are counted once.

        def counted() -> Costs:
            if not found:
                costs, expired = count(), history.expired_places
                shown = [0 if i in expired else tokens for i, tokens in enumerate(costs.messages)] if expired else ()
                found.append(replace(costs, messages=shown) if expired else costs)
            return found[0]

        self.count = counted
        rest, skipped = history.rest, len(self.instructions)
        # No reference to self: a cycle would keep everything until the next garbage collection.
        self.transcript = Transcript(rest, lambda: counted().messages[skipped:])
        self.chain = identity.chain_of(tenant, rest)

    superseded: frozenset[int] = frozenset()
    """Positions of instructions that newer instructions with the same beginning replaced."""

    def with_newest_instructions(self, limit: int) -> Conversation:
        """Return the conversation. If the instructions after the leading ones take more than half of `limit` tokens,
        return a copy that treats superseded instructions as other messages, so stages may summarise or omit them."""
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
        """Return whether the estimate is at most `tokens`. Tokens are counted only if `bound` is larger or unknown."""
        return (self.bound is not None and self.bound <= tokens) or self.tokens <= tokens

    @lazy
    def message_bytes(self) -> int:
        return sum(len(message.raw) for message in self.history)

    @lazy
    def instruction_tokens(self) -> int:
        """Return the tokens of the leading instructions, the tools and the provider's fixed additions."""
        return self.costs.fixed + sum(self.costs.messages[: len(self.instructions)])

    @lazy
    def tokens(self) -> int:
        costs = self.costs
        return costs.fixed + sum(costs.messages)

    @property
    def floor(self) -> int:
        """Return the tokens that no stage may remove: tools, instructions, the user's text in the last user message."""
        least, question = self._least_tokens(), self.costs.question
        results = 0 if question is None else self.transcript.tokens_of(self.transcript.last_user) - question
        return least - max(0, results)

    @property
    def whole_floor(self) -> int:
        """Return the tokens that no summary can remove: tools, instructions, the last user message, the last unit."""
        cuts = self.transcript.cuts
        return self._least_tokens(range(cuts[-1] if cuts else 0, len(self.transcript)))

    def _least_tokens(self, others: Iterable[int] = ()) -> int:
        """Return the tokens of tools, all instructions, the last user message, and the messages at `others`."""
        transcript = self.transcript
        kept = {*transcript.messages.instruction_places, transcript.last_user, *others} - {-1}
        return self.instruction_tokens + sum(map(transcript.tokens_of, kept))

    @lazy
    def cut_digests(self) -> tuple[bytes, ...]:
        """Return the digests of the positions where a summary or mask may begin or end: the store's keys."""
        return tuple(self.chain[cut] for cut in self.transcript.cuts)

    def with_pins(self, pins: tuple[int, ...]) -> Conversation:
        """Return a copy with these pinned messages, which stay in every payload. Copies share digests and token counts.

        Pins are positions after the leading instructions, ascending.
        """
        if pins == self.kept.pins:
            return self
        pinned = copy(self)
        pinned.kept = kept_messages(self.transcript, pins, self.transcript.last_turn)
        return pinned

    @property
    def giving_way(self) -> tuple[Conversation, ...]:
        """Return two copies for a payload that is too large. Stages may shorten the last turn's first message in the
        first copy, and omit it in the second. Empty without a turn, or if that message is the last user message."""
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
        """Return the client's context blocks. Without a call of `with_client_context`, views repeat none of them."""
        return ClientContext(self.transcript, 0, lambda _: 1)


class Kept(Struct, frozen=True):
    """Messages that stay: pinned messages, last user message, last turn's first message, unexpired instructions."""

    pins: tuple[int, ...]
    units: tuple[tuple[int, int], ...]
    """Units of the pinned messages, ascending."""
    messages: frozenset[int]
    """Positions of the messages that no stage may omit."""
    whole: frozenset[int]
    """Positions of the messages that no stage may change."""


def kept_messages(transcript: Transcript, pins: tuple[int, ...], task: int = -1, *, is_whole: bool = True) -> Kept:
    """`task`: last turn's first message, -1 if stages may omit it. `is_whole`: False if stages may change it."""
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
    """Payload without the leading instructions, which are always sent whole."""

    parts: tuple[Part, ...]
    tokens: int
    without_thinking: frozenset[int] = frozenset()
    """Positions of the messages that are sent without their signed thinking."""
    marks_cache: bool = False
    """Whether a cache breakpoint is set before the quotations for the last user message."""

    @property
    def chunks(self) -> tuple[SummaryChunk, ...]:
        return tuple(part.chunk for part in self.parts if isinstance(part, Summary))

    @property
    def recalled(self) -> tuple[Note, ...]:
        """Return quotations, exact values and agent state: the parts that repeat omitted or shortened messages."""
        notes = (part for part in self.parts if isinstance(part, Note))
        return tuple(note for note in notes if note.kind in ("recalled", "exact_values", "state"))

    @property
    def changed(self) -> Mapping[str, int]:
        changed: Counter[str] = Counter()
        for part in self.parts:
            if isinstance(part, Altered | Pruned):
                changed[part.by] += part.stop - part.start if isinstance(part, Pruned) else 1
        return changed

    @property
    def actions(self) -> tuple[str, ...]:
        """Return the view's actions in the order of `ACTIONS`."""
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
    """Return the positions of pruned messages, or of all messages in a summary's range, even carried messages."""
    match part:
        case Summary(chunk):
            positions = conversation.chain.positions
            return range(positions.get(chunk.from_digest, 0), positions.get(chunk.through_digest, 0))
        case Pruned(start, stop):
            return range(start, stop)
        case _:
            return range(0)


def standing(view: View) -> Iterator[tuple[int | None, Part]]:
    """Yield position and part. The position is None if no stage can alter the part. Split verbatim parts by message."""
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
    rest = len(conversation.transcript.messages)
    return View((Verbatim(0, rest),) if rest else (), conversation.tokens)


def covered_by(conversation: Conversation, view: View) -> int:
    chunks = view.chunks
    return conversation.chain.positions[chunks[-1].through_digest] if chunks else 0


def with_carried_context(conversation: Conversation, view: View) -> View:
    """Return the view with an up-to-date note of omitted client context; the same view if its note is up to date."""
    notes = (part for part in view.parts if isinstance(part, Note))
    held = next((note for note in notes if note.kind == "client_instructions"), None)
    carried = carried_context(conversation, view.parts)
    if (held.text if held else "") == carried.text:
        return view
    others = [part for part in view.parts if part is not held]
    tokens = view.tokens - (held.tokens if held else 0) + carried.tokens
    return replace(view, parts=(*context_note(carried), *others), tokens=tokens)


def carried_context(conversation: Conversation, parts: Iterable[Part]) -> CarriedContext:
    """Return the client context that a view with these parts has to repeat."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.carry_over(reach, stands)


def most_carried_tokens(conversation: Conversation, parts: Iterable[Part], out: AbstractSet[int]) -> int:
    """Return the maximum tokens of the note of client context, if messages at `out` are omitted one after the other."""
    reach, stands = _reach(conversation, parts)
    return conversation.client_context.most_tokens(reach, max(out, default=-1) + 1, stands - out)


def _reach(conversation: Conversation, parts: Iterable[Part]) -> tuple[int, set[int]]:
    """Return the position after the last omitted message, and the positions of all sent messages."""
    parts = tuple(parts)
    reach = max((omitted_in(conversation, part).stop for part in parts), default=0)
    return reach, {index for part in parts for index in sent_in(part)}


def context_note(carried: CarriedContext) -> list[Note]:
    return [Note("client_instructions", carried.text, carried.tokens)] if carried.text else []


def current_turn(conversation: Conversation) -> int:
    """Return the position of the current turn's first message; -1 without a turn. As in the providers' definition, a
    message with tool results never begins a turn."""
    messages = conversation.transcript.messages
    begins = (
        index
        for index in reversed(range(len(messages)))
        if (messages[index].kind is Kind.USER or messages[index].is_result_text) and not messages[index].answers
    )
    return next(begins, -1)


def without_thinking(conversation: Conversation, view: View | None, start: int, cost: Cost) -> View | None:
    """Return the view without the signed thinking of messages before `start`; the same view if there is none. Without a
    `view`, use the whole history."""
    changed, messages = view or whole(conversation), conversation.transcript.messages
    sent = (i for part in changed.parts for i in sent_in(part) if i < start and messages[i].signed_thinking)
    left_out = set(sent) - changed.without_thinking
    if not left_out:
        return view
    saved = sum(cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in left_out)
    return replace(changed, without_thinking=changed.without_thinking | left_out, tokens=changed.tokens - saved)


LATEST_TURNS = 8
"""Maximum number of earlier turns for which Steno looks up refused thinking."""


def turn_digests(conversation: Conversation) -> list[bytes]:
    """Return, for each of the latest turns, the digest of the history through the turn's first message. The current
    turn comes first. Empty if the history has no signed thinking."""
    if not conversation.history.holds_signed_thinking:
        return []
    last = current_turn(conversation)
    earlier = [start for start in conversation.transcript.turn_starts if start < last][-LATEST_TURNS:]
    return [conversation.chain[start + 1] for start in (last, *reversed(earlier))]


def changes_with_each_request(conversation: Conversation, view: View | None) -> bool:
    """Return whether the turn's next request may have a view that does not begin with this view."""
    turns = conversation.transcript.turn_starts
    for part in view.parts if view is not None else ():
        if isinstance(part, Altered) and part.by not in ("masked", "repaired"):  # Its text depends on later messages.
            return True
        if isinstance(part, Pruned) and part.by == "pruned" and part.stop not in turns:  # A whole turn stays omitted.
            return True
    return False


def lacks_current_thinking(conversation: Conversation, view: View | None) -> bool:
    return view is not None and max(view.without_thinking, default=-1) > current_turn(conversation)

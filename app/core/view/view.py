"""The view: what is sent instead of the history, and which stored chunks it may use.

Reading is stateless. Of all sequences of chunks that begin at the root, join end to start and leave at least the
last unit verbatim, the view takes the one that covers the fewest messages and still fits. Neither clocks nor the
order of insertion play a part, so every replica sees the same view, and between two compactions each payload
extends the previous one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Literal

from app.core.history.identity import Identity
from app.core.history.messages import INSTRUCTION_ROLES, Message, Transcript, split_instructions
from app.core.lazy import lazy
from app.core.limits.trigger import Size, Trigger
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary, Masks


@dataclass(frozen=True, slots=True)
class Verbatim:
    """The messages from `start` up to `stop`, byte for byte."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Carried:
    """A message inside a chunk's range that stays verbatim after the summary."""

    index: int


Alteration = Literal["masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"]
"""Which stage took something away: see the module of each."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A message of which something was left out."""

    index: int
    texts: tuple[str, ...]
    """What is left of its texts, one for each."""
    tokens: int
    by: Alteration
    calls: tuple[tuple[int, str], ...] | None = None
    """The calls that are left, by position, with their arguments; None where they stay as they are."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The messages from `start` up to `stop` are left out, with nothing in their place. The answer says so."""

    start: int
    stop: int
    by: Literal["pruned", "repaired"] = "pruned"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A verbatim copy of a pinned message's unit: the messages themselves are among those left out."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Note:
    """A user message of Steno's own. It is made for this payload and stored nowhere."""

    kind: Literal["stub", "pinned_text"]
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    chunk: SummaryChunk


Part = Verbatim | Carried | Altered | Pruned | Pinned | Note | Summary


@dataclass(frozen=True, slots=True)
class Pins:
    """What stays in every payload, whatever is done to the rest."""

    positions: tuple[int, ...] = ()
    """Pinned messages, counted after the leading instructions, ascending."""
    note: Note | None = None
    """The operator's own text, after the copies."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The uncalibrated estimate of a prompt, by its parts."""

    messages: Sequence[int]
    """Of each message, the instructions first."""
    fixed: int
    """Of all beside the messages: tools, response format, reply priming."""


class Conversation:
    """One request's history, ready to be decided upon.

    Its tokens are counted when they are first asked for: a short conversation goes on its way without.
    """

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
        self.instructions, rest = split_instructions(messages)
        self.transcript = Transcript(rest, lambda: self.costs.messages[len(self.instructions) :])
        self.chain = identity.chain(tenant, (message.digest for message in rest))
        self.kept = Kept(self.transcript, Pins())
        self.count = cache(count)
        """Counts now, for callers who want it done at a better place than where it is first needed."""

    @property
    def costs(self) -> Costs:
        return self.count()

    def is_within(self, tokens: int) -> bool:
        """Whether the estimate is at most so many, if possible without counting."""
        return (self.bound is not None and self.bound <= tokens) or self.tokens <= tokens

    @property
    def holds_media(self) -> bool:
        return any(message.media for message in (*self.instructions, *self.transcript.messages))

    @lazy
    def instruction_tokens(self) -> int:
        """What no compaction can take away: instructions, tools, priming."""
        return self.costs.fixed + sum(self.costs.messages[: len(self.instructions)])

    @property
    def tokens(self) -> int:
        return self.instruction_tokens + self.transcript.tokens(0)

    @property
    def floor(self) -> int:
        """What no stage may touch: tools, instructions, in the middle too, the last user message."""
        transcript = self.transcript
        kept = (
            index
            for index, message in enumerate(transcript.messages)
            if index == transcript.last_user or message.role in INSTRUCTION_ROLES
        )
        return self.instruction_tokens + sum(map(transcript.tokens_of, kept))

    @property
    def whole_floor(self) -> int:
        """What no summary can take away: the floor, and the last unit as it is."""
        transcript = self.transcript
        last_unit = transcript.cuts[-1] if transcript.cuts else 0
        unit = sum(
            transcript.tokens_of(index)
            for index in range(last_unit, len(transcript))
            if index != transcript.last_user and transcript.messages[index].role not in INSTRUCTION_ROLES
        )
        return self.floor + unit

    @lazy
    def cut_digests(self) -> tuple[bytes, ...]:
        """The chain's digests at which a summary or a mask may begin or end: what is looked up in the store."""
        return tuple(self.chain[cut] for cut in self.transcript.cuts)

    def with_pins(self, pins: Pins) -> Conversation:
        """The same history, digested and counted once, with these pins in place of its own."""
        if pins == self.pins:
            return self
        pinned = copy(self)
        pinned.kept = Kept(self.transcript, pins)
        return pinned

    @property
    def pins(self) -> Pins:
        return self.kept.pins

    @property
    def pinned_units(self) -> tuple[tuple[int, int], ...]:
        """The units of the pinned messages: start and stop of each, ascending."""
        return self.kept.units

    @property
    def untouchable(self) -> frozenset[int]:
        """The messages that no stage may change or leave out."""
        return self.kept.messages


class Kept:
    """What pins keep of a transcript."""

    def __init__(self, transcript: Transcript, pins: Pins) -> None:
        self._transcript = transcript
        self.pins = pins

    @lazy
    def units(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted({self._transcript.unit_of(position) for position in self.pins.positions}))

    @lazy
    def messages(self) -> frozenset[int]:
        pinned = (index for start, stop in self.units for index in range(start, stop))
        return frozenset((*pinned, self._transcript.last_user))


ACTIONS = (
    *("masked", "summarized", "pinned", "trimmed", "cleared", "faded"),
    *("shortened", "truncated", "pruned", "stub", "repaired"),
)


@dataclass(frozen=True, slots=True)
class View:
    """The payload in order, after the instructions, which always come first and whole."""

    parts: tuple[Part, ...]
    tokens: int

    @property
    def chunks(self) -> tuple[SummaryChunk, ...]:
        return tuple(part.chunk for part in self.parts if isinstance(part, Summary))

    @property
    def changed(self) -> Mapping[str, int]:
        """How many messages were cut or left out, by the stage that did it."""
        changed: Counter[str] = Counter()
        for part in self.parts:
            if isinstance(part, Altered | Pruned):
                changed[part.by] += part.stop - part.start if isinstance(part, Pruned) else 1
        return changed

    @property
    def actions(self) -> tuple[str, ...]:
        """What was done to the history, in the order of the stages."""
        done = set(self.changed)
        kinds = {type(part) for part in self.parts}
        stub = any(isinstance(part, Note) and part.kind == "stub" for part in self.parts)
        others = {"summarized": Summary in kinds, "pinned": Pinned in kinds, "stub": stub}
        done |= {name for name, was_done in others.items() if was_done}
        return tuple(action for action in ACTIONS if action in done)


@dataclass(frozen=True, slots=True)
class Path:
    """Chunks that join end to start from the root, and what they cost in a view."""

    chunks: tuple[SummaryChunk, ...] = ()
    covered: int = 0
    """How many messages they stand for."""
    tokens: int = 0
    """Their summaries and carried messages."""

    @property
    def rank(self) -> tuple[int, int, tuple[int, ...], tuple[str, ...]]:
        """Ties between equal coverage: fewest chunks, fewest tokens, highest version, smallest id."""
        return len(self.chunks), self.tokens, tuple(-c.version for c in self.chunks), tuple(c.id for c in self.chunks)


def whole(conversation: Conversation) -> View:
    """The view that changes nothing."""
    return build_view(conversation, Path())


@dataclass(frozen=True, slots=True)
class Masking:
    """What masks do to a conversation, and the boundaries there are, ascending."""

    masks: Masks
    boundaries: tuple[Boundary, ...] = ()

    def usable(self, covered: int) -> list[int]:
        """The positions of the boundaries for views in which summaries cover so many messages."""
        return [boundary.position for boundary in self.boundaries if boundary.position > covered >= boundary.start]


def build_view(conversation: Conversation, path: Path, masks: Masks | None = None, boundary: int = 0) -> View:
    """The view over a path; with `masks` tool results that were answered before the boundary are masked."""
    transcript = conversation.transcript
    parts: list[Part] = []
    for chunk in path.chunks:
        start = conversation.chain.positions[chunk.from_digest]
        parts.append(Summary(chunk))
        parts.extend(Carried(start + offset) for offset in chunk.carried)
    parts += _pinned(conversation, path)
    position, saved = path.covered, 0
    if masks is not None:
        saved = masks.saved(path.covered, boundary)
        for index, mask in masks.between(path.covered, boundary):
            if position < index:
                parts.append(Verbatim(position, index))
            parts.append(Altered(index, mask.texts, mask.tokens, "masked"))
            position = index + 1
    if position < len(transcript):
        parts.append(Verbatim(position, len(transcript)))
    return View(tuple(parts), _view_tokens(conversation, path) - saved)


def least_view(
    conversation: Conversation,
    found: Collection[Path],
    trigger: Trigger,
    masking: Masking | None = None,
    masked_at_most: int | None = None,
) -> View | None:
    """Of the views over these paths the one that covers the fewest messages and does not fire the trigger, or None.

    For each coverage first without masks, then with the earliest boundary that suffices. `masked_at_most`: a view of
    more tokens has as much masked as can be, even where it does not fire the trigger.
    """
    candidates = [(path.covered, 0, path.rank, path, _view_tokens(conversation, path)) for path in found]
    if masking is not None:
        candidates += [
            (covered, boundary, rank, path, tokens - masking.masks.saved(covered, boundary))
            for covered, _, rank, path, tokens in candidates
            for boundary in masking.usable(covered)
        ]
    fitting = [c for c in candidates if not trigger.fires(_size(conversation, c[3], c[-1], trigger.tail_turns))]
    if masked_at_most is not None and masking is not None:
        most = {c[0]: max(masking.usable(c[0]), default=0) for c in fitting}
        fitting = [c for c in fitting if c[-1] <= masked_at_most or c[1] == most[c[0]]]
    best = min(fitting, key=lambda candidate: candidate[:3], default=None)
    if best is None:
        return None
    _, boundary, _, path, _ = best
    return build_view(conversation, path, masking.masks if masking and boundary else None, boundary)


def _size(conversation: Conversation, path: Path, tokens: int, tail_turns: int) -> Size:
    """How large the view over a path is that has so many tokens."""
    return size_after(conversation, path.covered, tokens, tail_turns, tokens - _before_rest(conversation, path))


def size_after(conversation: Conversation, covered: int, tokens: int, tail_turns: int, since: int) -> Size:
    """How large a view of so many tokens is in which summaries stand for so many messages."""
    starts = conversation.transcript.turn_starts
    tail = starts[-1 - tail_turns] if len(starts) > tail_turns else 0
    return Size(
        tokens=tokens,
        since=since,
        turns=max(0, len(starts) - 1 - bisect_left(starts, covered)),
        messages=max(0, tail - covered),
    )


def widest_path(found: Iterable[Path]) -> Path:
    """The path that covers most: what a compaction extends."""
    return min(found, key=lambda path: (-path.covered, path.rank))


def paths(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[Path]:
    """Every path a view may use, best first for each coverage and number of chunks; the empty one is among them."""
    reached: dict[int, dict[_Reached, Path]] = {0: {_Reached(0): Path()}}
    usable = _usable(conversation, chunks)
    beginnings = {(start, chunk.level > 0) for start, _, chunk in usable}
    for start, stop, chunk in usable:
        is_fold = chunk.level > 0
        companion = is_fold if chunk.continued and (stop, is_fold) in beginnings else None
        carried = sum(conversation.transcript.tokens_of(start + offset) for offset in chunk.carried)
        for before, path in reached.get(start, {}).items():
            if before.companion not in (None, is_fold):
                continue
            longer = Path((*path.chunks, chunk), stop, path.tokens + chunk.tokens + carried)
            arrived = reached.setdefault(stop, {})
            now = _Reached(before.length + 1, is_fold, companion)
            # One path for each number of chunks: what another of that length could serve, the best one serves too.
            if now not in arrived or longer.rank < arrived[now].rank:
                arrived[now] = longer
    return [path for found in reached.values() for place, path in found.items() if place.may_end]


@dataclass(frozen=True, slots=True)
class _Reached:
    """What decides how a path may go on, beside its position."""

    length: int
    in_fold: bool = False
    companion: bool | None = None
    """What has to follow, as it was made together with the last chunk: a fold, or none. None: anything may."""

    @property
    def may_end(self) -> bool:
        # A fold stands before newer chunks only: at the end it would replace what was read in detail a turn ago.
        return not self.in_fold and self.companion is None


def _usable(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[tuple[int, int, SummaryChunk]]:
    """The chunks that apply to this history with the positions they join, in order of their start."""
    transcript = conversation.transcript
    positions = conversation.chain.positions
    cuts = frozenset(transcript.cuts)
    newest: dict[tuple[int, int, int], SummaryChunk] = {}
    for chunk in chunks:
        start, stop = positions.get(chunk.from_digest), positions.get(chunk.through_digest)
        if start is None or stop is None or start >= stop or stop not in cuts:
            continue
        if start <= transcript.last_user < stop and transcript.last_user - start not in chunk.carried:
            continue  # The last user message must stay verbatim.
        key = (start, stop, chunk.level)
        held = newest.get(key)
        if held is None or (-chunk.version, chunk.id) < (-held.version, held.id):
            newest[key] = chunk
    return sorted(((*key[:2], chunk) for key, chunk in newest.items()), key=lambda edge: (edge[0], edge[1], edge[2].id))


def _view_tokens(conversation: Conversation, path: Path) -> int:
    return _before_rest(conversation, path) + conversation.transcript.tokens(path.covered)


def _before_rest(conversation: Conversation, path: Path) -> int:
    pinned = sum(_part_tokens(conversation, part) for part in _pinned(conversation, path))
    return conversation.instruction_tokens + path.tokens + pinned


def pinned_tokens(conversation: Conversation, covered: int) -> int:
    """What pins add at most to a view in which summaries stand for so many messages."""
    if not covered:
        return 0
    copies = sum(conversation.transcript.tokens(*unit) for unit in conversation.pinned_units if unit[0] < covered)
    return copies + (conversation.pins.note.tokens if conversation.pins.note else 0)


def _part_tokens(conversation: Conversation, part: Note | Pinned) -> int:
    return part.tokens if isinstance(part, Note) else conversation.transcript.tokens(part.start, part.stop)


def _pinned(conversation: Conversation, path: Path) -> list[Note | Pinned]:
    """Copies of the pinned units that the path's summaries stand for, and the operator's text."""
    if not path.chunks:
        return []
    positions = conversation.chain.positions
    carried = {positions[chunk.from_digest] + offset for chunk in path.chunks for offset in chunk.carried}
    copies: list[Note | Pinned] = [
        Pinned(start, stop)
        for start, stop in conversation.pinned_units
        if start < path.covered
        and not carried.issuperset(range(start, stop))
        and conversation.transcript.is_answered(start, stop)
    ]
    return [*copies, conversation.pins.note] if conversation.pins.note else copies

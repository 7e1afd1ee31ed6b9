"""Reading: the view over the chunks and masks there are.

Rule: the least that fits. Of all sequences of chunks that begin at the root, join end to start and leave at least the
last unit verbatim, the view takes the one that covers the fewest messages and does not fire the trigger. Neither clocks
nor the order of insertion play a part, so every replica sees the same view; and what was made ahead, by a branch or by
another replica, waits until it is needed, so between two compactions each payload extends the previous one. (A chunk
that was used as soon as it is there would break the prompt's prefix for nothing.) Where nothing fits a compaction is
due: it extends the sequence that covers most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.chunks import SummaryChunk
from app.compaction.mask import Masking, Masks
from app.compaction.view import Altered, Carried, Conversation, Note, Part, Pinned, Pruned, Summary, Verbatim, View
from app.conversation.client_context import CarriedContext


class Path(Struct, frozen=True):
    """Chunks that join end to start from the root, and what they cost in a view."""

    chunks: tuple[SummaryChunk, ...] = ()
    covered: int = 0
    """How many messages they stand for."""
    tokens: int = 0
    """Their summaries and carried messages."""

    @property
    def rank(self) -> tuple[int, int, tuple[str, ...]]:
        """Ties between equal coverage: fewest chunks, fewest tokens, smallest id."""
        return len(self.chunks), self.tokens, tuple(chunk.id for chunk in self.chunks)


def whole(conversation: Conversation) -> View:
    """The view that changes nothing."""
    return build_view(conversation, Path())


def build_view(conversation: Conversation, path: Path, masks: Masks | None = None, boundary: int = 0) -> View:
    """The view over a path; with `masks` tool results that were answered before the boundary are masked."""
    transcript = conversation.transcript
    parts: list[Part] = [*_context_note(conversation, path)]
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
            parts.append(Altered(index, mask.texts, mask.tokens, "masked", media=mask.media))
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
    """View over one of these paths that covers the fewest messages and does not fire the trigger, or None.

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
    fitting = [c for c in candidates if not trigger.fires(c[-1], c[-1] - _before_rest(conversation, c[3]))]
    if masked_at_most is not None and masking is not None:
        most = {c[0]: max(masking.usable(c[0]), default=0) for c in fitting}
        fitting = [c for c in fitting if c[-1] <= masked_at_most or c[1] == most[c[0]]]
    best = min(fitting, key=lambda candidate: candidate[:3], default=None)
    if best is None:
        return None
    _, boundary, _, path, _ = best
    return build_view(conversation, path, masking.masks if masking and boundary else None, boundary)


def widest_path(found: Iterable[Path]) -> Path:
    """The path that covers most: what a compaction extends."""
    return min(found, key=lambda path: (-path.covered, path.rank))


def paths(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[Path]:
    """Every path a view may use, best first for each coverage and number of chunks; the empty one is among them."""
    reached: dict[int, dict[_Reached, Path]] = {0: {_Reached(0): Path()}}
    found = usable(conversation, chunks)
    beginnings = {(start, chunk.level > 0) for start, _, chunk in found}
    for start, stop, chunk in found:
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
    return [path for arrived in reached.values() for place, path in arrived.items() if place.may_end]


class _Reached(Struct, frozen=True):
    """State that decides how a path may go on, beside its position."""

    length: int
    in_fold: bool = False
    companion: bool | None = None
    """Whether a fold has to follow, as it was made together with the last chunk, or none. None: anything may."""

    @property
    def may_end(self) -> bool:
        # A fold stands before newer chunks only: at the end it would replace what was read in detail a turn ago.
        return not self.in_fold and self.companion is None


def usable(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[tuple[int, int, SummaryChunk]]:
    """The chunks that apply to this history with the positions they join, in order of their start."""
    transcript = conversation.transcript
    positions = conversation.chain.positions
    cuts = frozenset(transcript.cuts)
    found = []
    for chunk in chunks:
        start, stop = positions.get(chunk.from_digest), positions.get(chunk.through_digest)
        if start is None or stop is None or start >= stop or stop not in cuts:
            continue
        if not conversation.superseded.isdisjoint(start + offset for offset in chunk.carried):
            continue  # It was made before these repeated so often.
        if start <= transcript.last_user < stop and transcript.last_user - start not in chunk.carried:
            continue  # The last user message must stay verbatim.
        found.append((start, stop, chunk))
    return sorted(found, key=lambda edge: (edge[0], edge[1], edge[2].id))


def _view_tokens(conversation: Conversation, path: Path) -> int:
    return _before_rest(conversation, path) + conversation.transcript.tokens(path.covered)


def covered_by(conversation: Conversation, view: View) -> int:
    """Number of messages that a view's summaries stand for."""
    chunks = view.chunks
    return conversation.chain.positions[chunks[-1].through_digest] if chunks else 0


def unmasked_tokens(conversation: Conversation, path: Path) -> int:
    """Tokens of the view over a path without masks, at most."""
    beside = pinned_tokens(conversation, path.covered) + sum(part.tokens for part in _context_note(conversation, path))
    return conversation.instruction_tokens + path.tokens + beside + conversation.transcript.tokens(path.covered)


def _before_rest(conversation: Conversation, path: Path) -> int:
    own = (*_context_note(conversation, path), *_pinned(conversation, path))
    return conversation.instruction_tokens + path.tokens + sum(_part_tokens(conversation, part) for part in own)


def pinned_tokens(conversation: Conversation, covered: int) -> int:
    """Tokens that pins add at most to a view in which summaries stand for so many messages."""
    if not covered:
        return 0
    copies = sum(conversation.transcript.tokens(*unit) for unit in conversation.pinned_units if unit[0] < covered)
    return copies + (conversation.pins.note.tokens if conversation.pins.note else 0)


def _part_tokens(conversation: Conversation, part: Note | Pinned) -> int:
    return part.tokens if isinstance(part, Note) else conversation.transcript.tokens(part.start, part.stop)


def with_carried_context(conversation: Conversation, view: View) -> View:
    """The view with the note that repeats omitted client context; itself where it has that note."""
    held = next((part for part in view.parts if _is_carried_context(part)), None)
    carried = carried_context(conversation, view.parts)
    if (held.text if held else "") == carried.text:
        return view
    others = [part for part in view.parts if part is not held]
    tokens = view.tokens - (held.tokens if held else 0) + carried.tokens
    return replace(view, parts=(*_note(carried), *others), tokens=tokens)


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
    positions, stands, reach = conversation.chain.positions, set[int](), 0
    for part in parts:
        match part:
            case Summary(chunk):
                reach = max(reach, positions.get(chunk.through_digest, 0))
            case Pruned(_, stop):
                reach = max(reach, stop)
            case Verbatim(start, stop) | Pinned(start, stop):
                stands.update(range(start, stop))
            case Carried(index) | Altered(index):
                stands.add(index)
            case _:
                pass
    return reach, stands


def _context_note(conversation: Conversation, path: Path) -> list[Note]:
    """The note that repeats the client context of the messages that the path's summaries replace."""
    if not path.chunks:
        return []
    positions = conversation.chain.positions
    stands = {positions[chunk.from_digest] + offset for chunk in path.chunks for offset in chunk.carried}
    pinned = (part for part in _pinned(conversation, path) if isinstance(part, Pinned))
    stands.update(index for part in pinned for index in range(part.start, part.stop))
    return [*_note(conversation.client_context.carry_over(path.covered, stands))]


def _note(carried: CarriedContext) -> Iterator[Note]:
    if carried.text:
        yield Note("client_instructions", carried.text, carried.tokens)


def _is_carried_context(part: Part) -> TypeGuard[Note]:
    return isinstance(part, Note) and part.kind == "client_instructions"


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

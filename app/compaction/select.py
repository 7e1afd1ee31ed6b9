"""Select: what is known of a request's history, and the view over the chunks and masks there are.

Rule: the least that fits. Of all sequences of chunks that begin at the root, join end to start and leave at least the
last unit verbatim, the view takes the one that covers the fewest messages and does not fire the trigger. Neither clocks
nor the order of insertion play a part, so every replica sees the same view; and what was made ahead, by a branch or by
another replica, waits until it is needed, so between two compactions each payload extends the previous one. (A chunk
that was used as soon as it is there would break the prompt's prefix for nothing.) Where nothing fits a compaction is
due: it extends the sequence that covers most.

A `PlanningState` does not change: what is found or made on the way makes another one, so what was worked out of this
one, each thing once, stays true of it.

A client that writes, say, the time into its first message shows another history each turn. Two of its summaries are a
habit, and a third one is not worth its price (`changes_every_turn`). Conversations that go on alike after different
beginnings look the same at a glance: those of a template, of an evaluation, of a gateway with one key. What
distinguishes them is time: a conversation only grows, so its forms follow one another, each a few messages longer and
seen no more once the next one is there; conversations of a template stand side by side. In doubt a history is not
taken for a changing one: that costs a summary, and the contrary leaves a conversation without.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import combinations

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, Trigger
from app.compaction.chunks import FirstChunk, SummaryChunk
from app.compaction.mask import MaskBoundary, Masking, Masks, drop_media, exceeds, moves, plan_mask
from app.compaction.policy import Policy
from app.compaction.trim import fit
from app.compaction.user_words import OmittedWords
from app.compaction.view import (
    Carried,
    Conversation,
    Note,
    Part,
    Pinned,
    Summary,
    Verbatim,
    View,
    context_note,
)
from app.conversation.client_context import ClientContext
from app.conversation.lazy import lazy
from app.conversation.messages import Kind, Transcript
from app.tokens.estimate import Cost


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
            parts.append(mask)
            position = index + 1
    if position < len(transcript):
        parts.append(Verbatim(position, len(transcript)))
    return View(tuple(parts), _before_rest(conversation, path) + transcript.tokens(path.covered) - saved)


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
    fitting: list[tuple[int, int, tuple[int, int, tuple[str, ...]], Path]] = []
    for path in found:
        covered, before = path.covered, _before_rest(conversation, path)
        boundaries = masking.usable(covered) if masking else []
        for boundary in (0, *boundaries):
            saved = masking.masks.saved(covered, boundary) if masking and boundary else 0
            rest = conversation.transcript.tokens(covered) - saved
            is_last = boundary == max(boundaries, default=0)
            as_masked = masked_at_most is None or before + rest <= masked_at_most or is_last
            if as_masked and not trigger.fires(before + rest, rest):
                fitting.append((covered, boundary, path.rank, path))
    best = min(fitting, key=lambda candidate: candidate[:3], default=None)
    if best is None:
        return None
    _, boundary, _, path = best
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
    # A fold stands before newer chunks only: at the end it would replace what was read in detail a turn ago.
    return [
        path
        for arrived in reached.values()
        for place, path in arrived.items()
        if not place.in_fold and place.companion is None
    ]


class _Reached(Struct, frozen=True):
    """State that decides how a path may go on, beside its position."""

    length: int
    in_fold: bool = False
    companion: bool | None = None
    """Whether a fold has to follow, as it was made together with the last chunk, or none. None: anything may."""


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


def unmasked_tokens(conversation: Conversation, path: Path) -> int:
    """Tokens of the view over a path without masks, at most."""
    beside = pinned_tokens(conversation, path.covered) + sum(part.tokens for part in _context_note(conversation, path))
    return conversation.instruction_tokens + path.tokens + beside + conversation.transcript.tokens(path.covered)


def _before_rest(conversation: Conversation, path: Path) -> int:
    notes = sum(note.tokens for note in _context_note(conversation, path))
    copies = sum(conversation.transcript.tokens(part.start, part.stop) for part in _pinned(conversation, path))
    return conversation.instruction_tokens + path.tokens + notes + copies


def pinned_tokens(conversation: Conversation, covered: int) -> int:
    """Tokens that pins add at most to a view in which summaries stand for so many messages."""
    if not covered:
        return 0
    return sum(conversation.transcript.tokens(*unit) for unit in conversation.kept.units if unit[0] < covered)


def _context_note(conversation: Conversation, path: Path) -> list[Note]:
    """The note that repeats the client context of the messages that the path's summaries replace."""
    if not path.chunks:
        return []
    positions = conversation.chain.positions
    stands = {positions[chunk.from_digest] + offset for chunk in path.chunks for offset in chunk.carried}
    stands.update(index for part in _pinned(conversation, path) for index in range(part.start, part.stop))
    return context_note(conversation.client_context.carry_over(path.covered, stands))


def _pinned(conversation: Conversation, path: Path) -> list[Pinned]:
    """Copies of the pinned units that the path's summaries stand for."""
    if not path.chunks:
        return []
    positions = conversation.chain.positions
    carried = {positions[chunk.from_digest] + offset for chunk in path.chunks for offset in chunk.carried}
    return [
        Pinned(start, stop)
        for start, stop in conversation.kept.units
        if start < path.covered
        and not carried.issuperset(range(start, stop))
        and conversation.transcript.is_answered(start, stop)
    ]


CONTEXT_SHARE = 0.10
"""Share of the limit that the note of client context may take."""


class PlanningState(Struct, frozen=True, eq=False, dict=True):
    conversation: Conversation
    """Conversation with its pins: views over it never change."""
    policy: Policy
    budget: Budget
    cost: Cost
    chunks: Collection[SummaryChunk] = ()
    masking: Masking | None = None
    words: OmittedWords | None = None
    """The user's words for stubs; None where none are kept."""

    def with_pins(self, pins: tuple[int, ...]) -> PlanningState:
        """A copy with these pins in place of its own: what is pinned is not masked."""
        if pins == self.conversation.kept.pins:
            return self
        conversation = self.conversation.with_pins(pins)
        masks = _masks(conversation, self.policy, self.cost)
        masking = Masking(masks, self.boundaries) if masks else None
        return replace(self, conversation=conversation, masking=masking)

    def with_chunks(self, found: Iterable[SummaryChunk]) -> PlanningState:
        """A copy that knows these chunks too; self if it already does."""
        known = {chunk.id: chunk for chunk in self.chunks}
        all_ = known | {chunk.id: chunk for chunk in found}
        return self if all_ == known else replace(self, chunks=tuple(all_.values()))

    def with_boundaries(self, found: Iterable[MaskBoundary]) -> PlanningState:
        """A copy that knows these boundaries too; self if it already does."""
        if self.masking is None:
            return self
        boundaries = tuple(sorted({*self.masking.boundaries, *found}))
        if boundaries == self.masking.boundaries:
            return self
        return replace(self, masking=replace(self.masking, boundaries=boundaries))

    def without_memories(self) -> PlanningState:
        """The state as it was before any chunk or mask was found."""
        if not self.chunks and not self.boundaries:
            return self
        return replace(self, chunks=(), masking=self.masking and replace(self.masking, boundaries=()))

    @property
    def boundaries(self) -> tuple[MaskBoundary, ...]:
        return self.masking.boundaries if self.masking else ()

    @lazy
    def paths(self) -> tuple[Path, ...]:
        return tuple(paths(self.conversation, self.chunks))

    @lazy
    def widest_path(self) -> Path:
        return widest_path(self.paths)

    def widest_path_to(self, cut: int) -> Path:
        return widest_path(path for path in self.paths if path.covered <= cut)

    @lazy
    def least_view(self) -> View | None:
        """The view that does not fire the trigger and changes least, or None if a compaction is due."""
        mask, at_most = self.policy.mask, None
        if mask is not None and mask.pressure is not None:
            at_most = self.conversation.instruction_tokens + int(mask.pressure * self.budget.limit) - 1
        view = least_view(self.conversation, self.paths, self.budget.trigger, self.masking, at_most)
        return view and self._without_large_media(view)

    @lazy
    def widest_view(self) -> View:
        """The view with every chunk and mask in use."""
        path = self.widest_path
        if self.masking is None:
            return build_view(self.conversation, path)
        boundary = max(self.masking.usable(path.covered), default=0)
        return self._without_large_media(build_view(self.conversation, path, self.masking.masks, boundary))

    def masked_before(self, position: int) -> int:
        """Tokens that masks in use take away from the messages between the widest path and a position."""
        if self.masking is None:
            return 0
        covered, saved = self.widest_path.covered, self.masking.masks.saved
        boundary = max(self.masking.usable(covered), default=0)
        return saved(covered, boundary) - saved(position, boundary)

    @property
    def bare_view(self) -> View:
        """The view with every mask in use, and without a chunk."""
        if self.masking is None:
            return build_view(self.conversation, Path())
        # Also by one that was set behind a summary: it takes the place of that.
        boundary = max((boundary.position for boundary in self.boundaries), default=0)
        return self._without_large_media(build_view(self.conversation, Path(), self.masking.masks, boundary))

    def _without_large_media(self, view: View) -> View:
        """The view without the pictures that are too many bytes."""
        masking, settings, most = self.masking, self.policy.mask, self.budget.body_bytes
        if masking is None or settings is None or not exceeds(self.conversation, settings, most):
            return view
        return drop_media(self.conversation, view, masking.masks, most)

    @lazy
    def fitted_view(self) -> View:
        """The widest view with its large texts shortened, which may still be over the limit."""
        return fit(self.conversation, self.widest_view, self.budget.limit, self.cost)

    @lazy
    def is_settled(self) -> bool:
        """Whether no new summary is needed, or none could help."""
        return not self.policy.summarises or self.least_view is not None or self.fits_shortened

    def worked_out(self) -> PlanningState:
        """Itself, once the paths and views are worked out by which it is settled or not."""
        _ = self.is_settled
        return self

    @lazy
    def can_do_without_summary(self) -> bool:
        """Whether something under the limit can be sent without a new summary and without leaving anything out."""
        view = self.widest_view
        if view.tokens > self.budget.limit and self.policy.fit:
            view = self.fitted_view
        return view.tokens <= self.budget.limit

    @lazy
    def fits_shortened(self) -> bool:
        """Whether shortening single messages is enough where the last unit alone is too large for a summary to help."""
        if not self.policy.fit or self.conversation.whole_floor < self.budget.limit:
            return False
        return self.fitted_view.tokens <= self.budget.trigger.quiet_tokens


def initial_state(
    conversation: Conversation,
    policy: Policy,
    budget: Budget,
    cost: Cost,
    pins: tuple[int, ...],
    words: OmittedWords | None = None,
) -> PlanningState:
    context = ClientContext(
        conversation.transcript, budget.steady_estimate(CONTEXT_SHARE * budget.reported_limit), cost
    )
    pinned = conversation.with_client_context(context).with_pins(pins)
    masks = _masks(pinned, policy, cost)
    masking = Masking(masks) if masks else None
    kept = words if policy.stub and policy.user_words else None
    return PlanningState(pinned, policy, budget, cost, masking=masking, words=kept)


def _masks(conversation: Conversation, policy: Policy, cost: Cost) -> Masks | None:
    if policy.mask is None:
        return None
    return Masks(conversation.transcript, policy.mask, cost, conversation.kept.whole)


def due_mask(state: PlanningState) -> MaskBoundary | None:
    settings = state.policy.mask
    if state.masking is None or settings is None:
        return None
    if settings.pressure is None and (not state.policy.summarises or state.least_view is not None):
        return None
    path = state.widest_path
    unmasked = unmasked_tokens(state.conversation, path)
    return plan_mask(state.conversation, path.covered, unmasked, state.budget, state.masking, settings)


def without_summary(state: PlanningState, at_most: int, *, shortens: bool) -> PlanningState | None:
    """The state by which the request goes on while the summary that is due for it is made, in a view of at most so many
    tokens, or None where it has to wait.

    As it is, where it fits well. Else tool results that the assistant has answered are masked, by a boundary that
    stays: the requests that follow begin alike until the summary is used. Where that is not enough, single large texts
    are cut as well (`fit`), for this request only. Nothing is left out: a request that would need that waits.

    `shortens`: whether anything may be done to the view there is.
    """
    if state.widest_view.tokens <= at_most:
        return state
    if not shortens:
        return None
    boundary = mask_for_now(state)
    masked = state.with_boundaries([boundary]) if boundary else state
    closer = replace(masked, budget=replace(state.budget, limit=at_most))
    return closer if closer.can_do_without_summary else None


def mask_for_now(state: PlanningState) -> MaskBoundary | None:
    """The boundary with which a request goes on for which a summary is due: no further than the trigger needs, but as
    far as there is something to mask where that is not enough. None where it frees nothing."""
    masking = state.masking
    if masking is None:
        return None
    path = state.widest_path
    ahead, masked = moves(state.conversation, path.covered, unmasked_tokens(state.conversation, path), masking)
    if not ahead:
        return None
    enough = bisect_left(ahead, -state.budget.trigger.quiet_tokens, key=lambda position: -masked(position))
    position = ahead[min(enough, len(ahead) - 1)]
    frees = masked(position) < state.widest_view.tokens
    return MaskBoundary(position, path.covered) if frees else None


TELLING_TOKENS = 20
"""A message of this size hardly stands at the same place of two unrelated conversations."""
SHORT_LIVED_TURNS = 3
"""A form of a history that lasts longer is worth a summary."""
MOST_COMPARED = 100
"""Summaries, the latest; there are messages that thousands of histories hold at the same place."""


class Succession(Struct, frozen=True):
    """Two summarised forms of a history that may be earlier ones of this history, the second after the first."""

    known_beyond: int
    """A form seen with more messages than this differs from the second one."""
    length: int
    """Messages of the second one."""
    lasted: int
    """Number of messages by which the history grew before the first one was gone."""

    def is_refuted(self, length: int, seen: Collection[int]) -> bool:
        """Whether this history, of `length` messages, is none of theirs, or does not change as often any more.

        `seen`: the lengths it was seen with before, in the form it has now.
        """
        since = min((each for each in seen if each > self.known_beyond), default=length)
        return since <= self.length or length - since > self.lasted


def successions(
    conversation: Conversation, recent: Iterable[FirstChunk], conversation_id: str, *, named: bool
) -> list[Succession]:
    """Evidence for a history that keeps changing, among the chunks made recently.

    `named`: the client said which conversation it is. Otherwise a changed history is a new conversation for us, and
    what comes from a single other one is its own growth.
    """
    transcript, positions = conversation.transcript, conversation.chain.positions
    messages = transcript.messages
    forms = [
        form
        for form in recent
        if form.history_length < len(messages)
        and (not named or form.conversation_id == conversation_id)
        and form.through_digest not in positions
        and messages[form.last_index].digest == form.last_message_digest
        and transcript.tokens_of(form.last_index) >= TELLING_TOKENS
    ]
    forms.sort(key=lambda form: (form.created_at, form.history_length))
    turns = {form.history_length: transcript.turn_at(form.history_length) for form in forms}
    return [
        Succession(then.last_index, then.history_length, then.history_length - first.history_length)
        for first, then in combinations(forms[-MOST_COMPARED:], 2)
        if first.history_length < then.history_length
        and turns[then.history_length] - turns[first.history_length] <= SHORT_LIVED_TURNS
        and (first.conversation_id != then.conversation_id or then.conversation_id == conversation_id)
    ]


def changes_every_turn(conversation: Conversation, found: Iterable[Succession], heads: Iterable[bytes]) -> bool:
    """Whether one of the successions holds. `heads`: what earlier requests with this very history left behind."""
    positions, length = conversation.chain.positions, len(conversation.transcript)
    seen = _lengths(conversation.transcript, [place for head in heads if (place := positions[head]) < length])
    return any(not each.is_refuted(length, seen) for each in found)


def _lengths(transcript: Transcript, heads: Collection[int]) -> list[int]:
    """How many messages those requests had.

    What stands before a turn shows only that a request had more, and counts as the turn's first message. It is needed
    where the end is not found: some clients add to the last message what they leave out of it a turn later.
    """
    messages = transcript.messages
    ends = {place: transcript.turn_at(place) for place in heads if messages[place - 1].kind is not Kind.ASSISTANT}
    begun = [place + 1 for place in heads if messages[place].begins_turn]
    ended = frozenset(ends.values())
    return [*ends, *(place for place in begun if transcript.turn_at(place) not in ended)]

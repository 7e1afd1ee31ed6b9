"""Planning state: a request's history, its policy, and its best view with the existing chunks and masks.

Steno changes the history as little as possible. A path is a sequence of chunks that starts at the first message, has no
gaps, and leaves at least the last unit verbatim. The view uses the path that covers the fewest messages without firing
the trigger. When and in which order the chunks were stored does not matter, so every replica selects the same view.
Steno does not use a chunk before it is needed, because the chunk would change the prompt's prefix. If every path fires
the trigger, a compaction is due: it extends the path that covers the most messages.

A `PlanningState` is immutable. A new chunk or mask makes a new state.

Some clients change the first message in every turn, for example by writing the time into it. Old summaries then do not
apply to the new form of the history, so after two useless summaries Steno makes no third (`changes_every_turn`).
Separate conversations from one template look similar: they have the same messages after different beginnings. But they
exist side by side. A changing history has one form at a time, a few messages longer than the previous form.
In doubt, Steno makes the summary: at worst it pays for one useless summary. The opposite error would leave a
conversation without summaries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.budget import CONTEXT_SHARE, Budget, Trigger
from app.compaction.chunks import FirstChunk, SummaryChunk
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks, drop_media, exceeds, plan_mask
from app.compaction.trim import FADE_AT, SessionPruning, fit, is_quiet
from app.compaction.user_words import OmittedWords
from app.compaction.view import Carried, Conversation, Note, Part, Pinned, Summary, Verbatim, View, context_note
from app.conversation.client_context import ClientContext
from app.conversation.messages import Kind, Transcript, lazy
from app.tokens.estimate import Cost

Strategy = Literal["additive", "full", "checkpoint", "rolling", "window", "none"]
"""`additive`: a summary for each range of messages. `full`: one summary of the whole history. `checkpoint`, `rolling`:
one summary, made from the previous summary and the messages after it. `window`, `none`: no summaries."""

CUMULATIVE: frozenset[Strategy] = frozenset({"full", "checkpoint", "rolling"})
"""Strategies in which a single summary replaces the whole history before the tail."""
SUMMARISING: frozenset[Strategy] = CUMULATIVE | {"additive"}


class Policy(Struct, frozen=True):
    strategy: Strategy = "additive"
    mask: MaskPolicy | None = field(default_factory=MaskPolicy)
    session_pruning: SessionPruning | None = None
    window_turns: int | None = None
    """Number of complete turns that are sent before the current turn; None for as many as fit."""
    fade: bool = False
    fit: bool = True
    prune: bool = True
    stub: bool = True
    """Whether a note replaces omitted messages."""
    emergency: bool = True
    cost_gate: bool = True
    user_words: bool = True
    """Whether Steno quotes the user's words when it summarises or omits user messages."""
    folds_in: bool = True
    """Whether a due fold is made in the same call as the new summary."""
    failed_results: int = 0
    """Maximum number of failed tool calls that Steno appends to a summary verbatim. Steno takes the latest."""
    alternates: bool = False
    """Whether the provider refuses two consecutive messages of one role."""

    @property
    def summarises(self) -> bool:
        return self.strategy in SUMMARISING

    def leaves_alone(self, conversation: Conversation, budget: Budget, *, counts: bool = True) -> bool:
        """Return whether no stage would change the conversation. If this depends on the exact number of tokens, count
        the tokens. Without `counts`, return False instead of counting."""
        bound, quiet = conversation.bound, self.quiet_tokens(budget)
        if not (conversation.is_within(quiet) if counts else bound is not None and bound <= quiet):
            return False
        # The thresholds of these stages are not tokens.
        if self.mask and exceeds(conversation, self.mask, budget.body_bytes):
            return False
        if self.session_pruning and not is_quiet(conversation, self.session_pruning, budget.window):
            return False
        most = self.window_turns
        return most is None or len(conversation.transcript.turn_starts) <= most + 1

    def quiet_tokens(self, budget: Budget) -> int:
        """Return the number of tokens up to which a history exceeds no threshold."""
        quiet = min(budget.limit, budget.trigger.quiet_tokens)
        if self.fade:
            quiet = min(quiet, int(FADE_AT * budget.limit) - 1)
        if self.mask and self.mask.pressure is not None:
            quiet = min(quiet, int(self.mask.pressure * budget.limit) - 1)
        return quiet


class Path(Struct, frozen=True):
    """Sequence of chunks from the first message on, without gaps."""

    chunks: tuple[SummaryChunk, ...] = ()
    covered: int = 0
    """Number of messages that the chunks replace."""
    tokens: int = 0
    """Tokens of the summaries, and of the messages that the chunks carry verbatim."""

    @property
    def rank(self) -> tuple[int, int, tuple[str, ...]]:
        """Return the sort key of paths with equal coverage: number of chunks, then tokens, then ids."""
        return len(self.chunks), self.tokens, tuple(chunk.id for chunk in self.chunks)


def build_view(conversation: Conversation, path: Path, masks: Masks | None = None, boundary: int = 0) -> View:
    """Build the view with a path's summaries. With `masks`, also apply the masks of this `boundary`."""
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
    return View(tuple(parts), unmasked_tokens(conversation, path) - saved)


def least_view(
    conversation: Conversation,
    found: Collection[Path],
    trigger: Trigger,
    masking: Masking | None = None,
    masked_at_most: int | None = None,
) -> View | None:
    """Return the view that summarises the fewest messages without firing the trigger; None if every view fires it.

    Of views with equal coverage, the one without masks is best, then the one with the earliest boundary.
    `masked_at_most`: a view with more tokens than this is used only with all known masks.
    """
    fitting: list[tuple[int, int, tuple[int, int, tuple[str, ...]], Path]] = []
    for path in found:
        covered, unmasked = path.covered, unmasked_tokens(conversation, path)
        boundaries = masking.usable(covered) if masking else []
        for boundary in (0, *boundaries):
            saved = masking.masks.saved(covered, boundary) if masking and boundary else 0
            tokens = unmasked - saved
            is_last = boundary == max(boundaries, default=0)
            as_masked = masked_at_most is None or tokens <= masked_at_most or is_last
            if as_masked and not trigger.fires(tokens, conversation.transcript.tokens(covered) - saved):
                fitting.append((covered, boundary, path.rank, path))
    best = min(fitting, key=lambda candidate: candidate[:3], default=None)
    if best is None:
        return None
    _, boundary, _, path = best
    return build_view(conversation, path, masking.masks if masking and boundary else None, boundary)


def widest_path(found: Iterable[Path]) -> Path:
    """Return the path that covers the most messages. A compaction extends it."""
    return min(found, key=lambda path: (-path.covered, path.rank))


def paths(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[Path]:
    """Return the paths that a view may use, including the empty path. Of paths with the same coverage and number of
    chunks, return only the best."""
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
            # Keep the best path of each length: it can replace any other path of that length.
            if now not in arrived or longer.rank < arrived[now].rank:
                arrived[now] = longer
    # A fold is used only before newer chunks. At the end it would replace more detailed chunks of the latest messages.
    return [
        path
        for arrived in reached.values()
        for place, path in arrived.items()
        if not place.in_fold and place.companion is None
    ]


class _Reached(Struct, frozen=True):
    """End of a path: facts that decide which chunk may follow."""

    length: int
    in_fold: bool = False
    companion: bool | None = None
    """Kind of the chunk that must follow, because the last chunk is `continued`: True for a fold, False for another
    chunk. None if the path may end here."""


def usable(conversation: Conversation, chunks: Iterable[SummaryChunk]) -> list[tuple[int, int, SummaryChunk]]:
    """Return each chunk that applies to this history, with its start and stop, sorted by start."""
    transcript = conversation.transcript
    positions = conversation.chain.positions
    cuts = frozenset(transcript.cuts)
    found = []
    for chunk in chunks:
        start, stop = positions.get(chunk.from_digest), positions.get(chunk.through_digest)
        if start is None or stop is None or start >= stop or stop not in cuts:
            continue
        if not conversation.superseded.isdisjoint(start + offset for offset in chunk.carried):
            continue  # Newer instructions have replaced the chunk's carried instructions.
        if start <= transcript.last_user < stop and transcript.last_user - start not in chunk.carried:
            continue  # The last user message must stay verbatim.
        found.append((start, stop, chunk))
    return sorted(found, key=lambda edge: (edge[0], edge[1], edge[2].id))


def unmasked_tokens(conversation: Conversation, path: Path) -> int:
    """Return the tokens of a path's view without masks."""
    transcript = conversation.transcript
    notes = sum(note.tokens for note in _context_note(conversation, path))
    copies = sum(transcript.tokens(part.start, part.stop) for part in _pinned(conversation, path))
    return conversation.instruction_tokens + path.tokens + notes + copies + transcript.tokens(path.covered)


def _context_note(conversation: Conversation, path: Path) -> list[Note]:
    """Return a list with the note that repeats client context of the summarised messages; empty if there is none."""
    if not path.chunks:
        return []
    positions = conversation.chain.positions
    stands = {positions[chunk.from_digest] + offset for chunk in path.chunks for offset in chunk.carried}
    stands.update(index for part in _pinned(conversation, path) for index in range(part.start, part.stop))
    return context_note(conversation.client_context.carry_over(path.covered, stands))


def _pinned(conversation: Conversation, path: Path) -> list[Pinned]:
    """Return copies of the pinned units among the summarised messages."""
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


class PlanningState(Struct, frozen=True, eq=False, dict=True):
    conversation: Conversation
    """Conversation, including its pinned messages."""
    policy: Policy
    budget: Budget
    cost: Cost
    chunks: Collection[SummaryChunk] = ()
    masking: Masking | None = None
    words: OmittedWords | None = None
    """Source of the user's words that are quoted after the note on omitted messages; None if the policy quotes none."""

    def with_pins(self, pins: tuple[int, ...]) -> PlanningState:
        """Return the state with these pinned messages instead of its previous pins. Pinned messages are not masked."""
        if pins == self.conversation.kept.pins:
            return self
        conversation = self.conversation.with_pins(pins)
        masks = _masks(conversation, self.policy, self.cost)
        masking = Masking(masks, self.boundaries) if masks else None
        return replace(self, conversation=conversation, masking=masking)

    def with_chunks(self, found: Iterable[SummaryChunk]) -> PlanningState:
        """Return the state with these chunks added; the same state if it already has all of them."""
        known = {chunk.id: chunk for chunk in self.chunks}
        all_ = known | {chunk.id: chunk for chunk in found}
        return self if all_ == known else replace(self, chunks=tuple(all_.values()))

    def with_boundaries(self, found: Iterable[MaskBoundary]) -> PlanningState:
        """Return the state with these boundaries added; the same state if it already has all of them."""
        if self.masking is None:
            return self
        boundaries = tuple(sorted({*self.masking.boundaries, *found}))
        if boundaries == self.masking.boundaries:
            return self
        return replace(self, masking=replace(self.masking, boundaries=boundaries))

    @property
    def boundaries(self) -> tuple[MaskBoundary, ...]:
        return self.masking.boundaries if self.masking else ()

    @lazy
    def paths(self) -> tuple[Path, ...]:
        return tuple(paths(self.conversation, self.chunks))

    @lazy
    def widest_path(self) -> Path:
        return widest_path(self.paths)

    @lazy
    def least_view(self) -> View | None:
        """Return the view that changes the history least without firing the trigger; None if a compaction is due."""
        mask, at_most = self.policy.mask, None
        if mask is not None and mask.pressure is not None:
            at_most = self.conversation.instruction_tokens + int(mask.pressure * self.budget.limit) - 1
        view = least_view(self.conversation, self.paths, self.budget.trigger, self.masking, at_most)
        return view and self._without_large_media(view)

    @lazy
    def widest_view(self) -> View:
        """Return the view of the widest path with all masks."""
        boundaries = self.masking.usable(self.widest_path.covered) if self.masking else ()
        return self._masked_view(self.widest_path, max(boundaries, default=0))

    @property
    def bare_view(self) -> View:
        """Return the view with all masks and without summaries."""
        # Here a boundary applies even if it was set after a summary, because this view has no summaries.
        return self._masked_view(Path(), max((boundary.position for boundary in self.boundaries), default=0))

    def _masked_view(self, path: Path, boundary: int) -> View:
        masks = self.masking.masks if self.masking else None
        return self._without_large_media(build_view(self.conversation, path, masks, boundary))

    def _without_large_media(self, view: View) -> View:
        """Mask the view's oldest media if the history has too many bytes. Otherwise return the view unchanged."""
        masking, settings, most = self.masking, self.policy.mask, self.budget.body_bytes
        if masking is None or settings is None or not exceeds(self.conversation, settings, most):
            return view
        return drop_media(self.conversation, view, masking.masks, most)

    @lazy
    def fitted_view(self) -> View:
        """Return the widest view with its large texts shortened. It may still exceed the limit."""
        return fit(self.conversation, self.widest_view, self.budget.limit, self.cost)

    @lazy
    def needs_no_summary(self) -> bool:
        """Return whether a new summary is unnecessary or useless."""
        return not self.policy.summarises or self.least_view is not None or self.fits_shortened

    @lazy
    def can_do_without_summary(self) -> bool:
        """Return whether all messages, some of them shortened, fit into the limit without a new summary."""
        view = self.widest_view
        if view.tokens > self.budget.limit and self.policy.fit:
            view = self.fitted_view
        return view.tokens <= self.budget.limit

    @lazy
    def fits_shortened(self) -> bool:
        """Return whether only shortening helps: the messages that no summary can replace already reach the limit."""
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


TELLING_TOKENS = 20
"""A message with this many tokens is unlikely to be at the same position in two unrelated conversations."""
SHORT_LIVED_TURNS = 3
"""Maximum turns between the summaries of two forms of a changing history: a form that lasts longer needs summaries."""
MOST_COMPARED = 100
"""Maximum number of forms, the latest ones, that Steno compares in pairs. A form is a recent first chunk whose last
message is also in this history, at the same position. Conversations from one template may have thousands."""


class Succession(Struct, frozen=True):
    """Two earlier, shorter forms of a history, both summarised: a sign that the history changes with each turn."""

    known_beyond: int
    """Index of the last summarised message of the second form. The history has this message, but differs before it."""
    length: int
    """Number of messages of the second form."""
    lasted: int
    """Number of messages that the history gained between the summaries of the first and the second form."""

    def is_refuted(self, length: int, seen: Collection[int]) -> bool:
        """Return whether the sign is wrong: the current form existed before the second form was summarised, or has
        lasted longer than the first form. `length`: number of messages. `seen`: this number in earlier requests."""
        since = min((each for each in seen if each > self.known_beyond), default=length)
        return since <= self.length or length - since > self.lasted


def successions(
    conversation: Conversation, recent: Iterable[FirstChunk], conversation_id: str, *, named: bool
) -> list[Succession]:
    """Return signs that the history changes with every turn. Each sign is a pair of recently made chunks.

    `named`: whether the client named the conversation. If so, Steno compares only this conversation's chunks. Without a
    name, each change of the history starts a new conversation id. If both chunks belong to one other conversation, they
    only show that the other conversation grew, so Steno skips the pair.
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
    """Return whether at least one of `found` is not refuted. `heads`: digests that earlier requests stored."""
    positions, length = conversation.chain.positions, len(conversation.transcript)
    seen = _lengths(conversation.transcript, [place for head in heads if (place := positions[head]) < length])
    return any(not each.is_refuted(length, seen) for each in found)


def _lengths(transcript: Transcript, heads: Collection[int]) -> list[int]:
    """Return the number of messages of each request that stored one of these heads.

    A request stores two heads: at its end, and before its last turn. If the client later changed the last message, only
    the second head is found. Steno then assumes that the request ended with the first message of its last turn.
    """
    messages = transcript.messages
    ends = {place: transcript.turn_at(place) for place in heads if messages[place - 1].kind is not Kind.ASSISTANT}
    begun = [place + 1 for place in heads if messages[place].begins_turn]
    ended = frozenset(ends.values())
    return [*ends, *(place for place in begun if transcript.turn_at(place) not in ended)]

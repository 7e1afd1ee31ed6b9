"""A case: one request's history, and all there is to decide about it with.

It does not change. What is found or made on the way makes another one, so what was worked out of this one, each thing
once and when it is first asked for, stays true of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget
from app.compaction.chunks import SummaryChunk
from app.compaction.mask import Boundary, Masking, Masks, drop_media, exceeds, moves, plan_mask
from app.compaction.policy import Policy
from app.compaction.select import Path, build_view, least_view, paths, unmasked_tokens, widest_path
from app.compaction.trim import fit
from app.compaction.user_words import OmittedWords
from app.compaction.view import Conversation, Pins, View
from app.conversation.client_context import ClientContext
from app.conversation.lazy import lazy
from app.tokens.estimate import Cost

CONTEXT_SHARE = 0.10
"""Share of the limit that the note of client context may take."""


class Case(Struct, frozen=True, eq=False, dict=True):
    conversation: Conversation
    """Conversation with its pins: views over it never change."""
    policy: Policy
    budget: Budget
    cost: Cost
    chunks: Collection[SummaryChunk] = ()
    masking: Masking | None = None
    words: OmittedWords | None = None
    """The user's words for stubs; None where none are kept."""

    def with_pins(self, pins: Pins) -> Case:
        """A copy with these pins in place of its own: what is pinned is not masked."""
        if pins == self.conversation.pins:
            return self
        conversation = self.conversation.with_pins(pins)
        masks = _masks(conversation, self.policy, self.cost)
        masking = Masking(masks, self.boundaries) if masks else None
        return replace(self, conversation=conversation, masking=masking)

    def with_chunks(self, found: Iterable[SummaryChunk]) -> Case:
        """A copy that knows these chunks too; self if it already does."""
        known = {chunk.id: chunk for chunk in self.chunks}
        all_ = known | {chunk.id: chunk for chunk in found}
        return self if all_ == known else replace(self, chunks=tuple(all_.values()))

    def with_boundaries(self, found: Iterable[Boundary]) -> Case:
        """A copy that knows these boundaries too; self if it already does."""
        if self.masking is None:
            return self
        boundaries = tuple(sorted({*self.masking.boundaries, *found}))
        if boundaries == self.masking.boundaries:
            return self
        return replace(self, masking=replace(self.masking, boundaries=boundaries))

    def without_memories(self) -> Case:
        """The case as it was before any chunk or mask was found."""
        if not self.chunks and not self.boundaries:
            return self
        return replace(self, chunks=(), masking=self.masking and replace(self.masking, boundaries=()))

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Boundaries before which results are masked."""
        return self.masking.boundaries if self.masking else ()

    @lazy
    def paths(self) -> tuple[Path, ...]:
        """Every path of chunks that a view may use."""
        return tuple(paths(self.conversation, self.chunks))

    @lazy
    def widest_path(self) -> Path:
        """Path that a compaction extends."""
        return widest_path(self.paths)

    @property
    def unmasked_tokens(self) -> int:
        """Tokens of the view over the widest path without masks."""
        return unmasked_tokens(self.conversation, self.widest_path)

    def widest_path_to(self, cut: int) -> Path:
        """The path that covers most and ends there or before."""
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


def case_of(
    conversation: Conversation,
    policy: Policy,
    budget: Budget,
    cost: Cost,
    pins: Pins,
    words: OmittedWords | None = None,
) -> Case:
    """Case that a request begins with, before anything is looked up."""
    context = ClientContext(
        conversation.transcript, budget.steady_estimate(CONTEXT_SHARE * budget.reported_limit), cost
    )
    pinned = conversation.with_client_context(context).with_pins(pins)
    masks = _masks(pinned, policy, cost)
    masking = Masking(masks) if masks else None
    kept = words if policy.stub and policy.user_words else None
    return Case(pinned, policy, budget, cost, masking=masking, words=kept)


def _masks(conversation: Conversation, policy: Policy, cost: Cost) -> Masks | None:
    if policy.mask is None:
        return None
    return Masks(conversation.transcript, policy.mask, cost, conversation.unchangeable)


def due_mask(case: Case) -> Boundary | None:
    """The boundary that is due in this case, or None."""
    settings = case.policy.mask
    if case.masking is None or settings is None:
        return None
    if settings.pressure is None and (not case.policy.summarises or case.least_view is not None):
        return None
    covered, unmasked = case.widest_path.covered, case.unmasked_tokens
    return plan_mask(case.conversation, covered, unmasked, case.budget, case.masking, settings)


def without_summary(case: Case, at_most: int, *, shortens: bool) -> Case | None:
    """The case by which the request goes on while the summary that is due for it is made, in a view of at most so many
    tokens, or None where it has to wait.

    As it is, where it fits well. Else tool results that the assistant has answered are masked, by a boundary that
    stays: the requests that follow begin alike until the summary is used. Where that is not enough, single large texts
    are cut as well (`fit`), for this request only. Nothing is left out: a request that would need that waits.

    `shortens`: whether anything may be done to the view there is.
    """
    if case.widest_view.tokens <= at_most:
        return case
    if not shortens:
        return None
    boundary = mask_for_now(case)
    masked = case.with_boundaries([boundary]) if boundary else case
    closer = replace(masked, budget=replace(case.budget, limit=at_most))
    return closer if closer.can_do_without_summary else None


def mask_for_now(case: Case) -> Boundary | None:
    """The boundary with which a request goes on for which a summary is due: no further than the trigger needs, but as
    far as there is something to mask where that is not enough. None where it frees nothing."""
    masking = case.masking
    if masking is None:
        return None
    ahead, masked = moves(case.conversation, case.widest_path.covered, case.unmasked_tokens, masking)
    if not ahead:
        return None
    enough = bisect_left(ahead, -case.budget.trigger.quiet_tokens, key=lambda position: -masked(position))
    position = ahead[min(enough, len(ahead) - 1)]
    frees = masked(position) < case.widest_view.tokens
    return Boundary(position, case.widest_path.covered) if frees else None

"""Masking: when the boundary moves before which answered tool results are masked, and how far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from app.compaction.budget import Budget
from app.compaction.mask import Boundary, Masking, MaskPolicy
from app.compaction.planning_state import Case
from app.compaction.select import Path, unmasked_tokens
from app.compaction.view import Conversation

FLAT = MaskPolicy()


def due_mask(case: Case) -> Boundary | None:
    """The boundary that is due in this case, or None."""
    settings = case.policy.mask
    if case.masking is None or settings is None:
        return None
    if settings.pressure is None and (not case.policy.summarises or case.least_view is not None):
        return None
    return plan_mask(case.conversation, case.widest_path, case.budget, case.masking, settings)


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
    ahead, masked = _moves(case.conversation, case.widest_path, masking)
    if not ahead:
        return None
    enough = bisect_left(ahead, -case.budget.trigger.quiet_tokens, key=lambda position: -masked(position))
    position = ahead[min(enough, len(ahead) - 1)]
    frees = masked(position) < case.widest_view.tokens
    return Boundary(position, case.widest_path.covered) if frees else None


def plan_mask(
    conversation: Conversation,
    base: Path,
    budget: Budget,
    masking: Masking,
    settings: MaskPolicy = FLAT,
) -> Boundary | None:
    """The boundary that makes a summary after `base` unnecessary for now; None without one.

    It is moved rarely, and then for a gain, as far as the target needs and no further: as many of the latest results
    stay whole as there is room for. Where pressure decides about masks it is set from that on, too, and everything
    before the last unit is masked. What the model has not answered in text stays whole anyway.
    """
    ahead, masked = _moves(conversation, base, masking)
    if not ahead:
        return None
    before = masked(max(masking.usable(base.covered), default=base.covered))
    pressed = settings.pressure is not None and (
        before - conversation.instruction_tokens >= settings.pressure * budget.limit
    )
    enough = bisect_left(ahead, -budget.target, key=lambda position: -masked(position))
    if enough == len(ahead) and not pressed:
        return None
    position = ahead[enough] if settings.pressure is None else ahead[-1]
    if before - masked(position) < max(1, settings.minimum_gain * before):
        return None
    return Boundary(position, base.covered)


def _moves(conversation: Conversation, base: Path, masking: Masking) -> tuple[Sequence[int], Callable[[int], int]]:
    """Positions that the boundary may move to, and how many tokens the view has with a boundary."""
    cuts, masks = conversation.transcript.cuts, masking.masks
    held = max(masking.usable(base.covered), default=base.covered)
    view = unmasked_tokens(conversation, base)
    ahead = cuts[bisect_right(cuts, held) :]
    return ahead, lambda position: view - masks.saved(base.covered, position)

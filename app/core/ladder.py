"""The ladder: what is sent, from the stored summaries down to the client's own bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from app.core.budget import Budget
from app.core.chunks import SummaryChunk
from app.core.estimate import Cost
from app.core.fit import fit
from app.core.verify import problems
from app.core.view import Conversation, Masking, View, build_view, least_view, whole, widest_path


@dataclass(frozen=True, slots=True)
class Decision:
    """What will be sent, and what was done."""

    view: View | None
    """None: the client's own bytes."""
    actions: tuple[str, ...] = ()
    reason: str | None = None
    """Why something could not be done."""
    failed: bool = False
    """A compaction that the client was told of brought no summary."""

    @property
    def status(self) -> Literal["full", "summarized"]:
        return "summarized" if self.view and self.view.chunks else "full"


def untouched(conversation: Conversation, budget: Budget, model: str) -> Decision | None:
    """The decisions that need no chunks, or None where more is to be decided."""
    if conversation.is_within(budget.trigger):
        return Decision(None)
    if conversation.floor >= budget.limit:
        floor, limit = budget.line.reported(conversation.floor), budget.line.reported(budget.limit)
        return Decision(
            None,
            reason=f"floor_exceeds_limit: the instructions, tools and last turn take about {floor} tokens;"
            f" {model} leaves room for {limit}",
        )
    return None


def settle(
    conversation: Conversation,
    budget: Budget,
    chunks: Collection[SummaryChunk],
    cost: Cost,
    reason: str | None = None,
    *,
    masking: Masking | None = None,
    in_vain: bool = False,
) -> Decision:
    """The first step of the ladder that holds; where none does, the client's own bytes.

    `reason` is why no compaction brought the view under the trigger, `in_vain` whether one was tried.
    """
    for view, why in _steps(conversation, budget, chunks, cost, reason, masking):
        failed = in_vain and why is not None
        if view == whole(conversation):
            return Decision(None, (), why, failed)
        if not (wrong := problems(conversation, view, budget.limit)):
            done = {"masked": view.masked, "summarized": bool(view.chunks), "shortened": view.shortened}
            return Decision(view, tuple(action for action, was_done in done.items() if was_done), why, failed)
        reason = f"{reason}: {', '.join(wrong)}" if reason else ", ".join(wrong)
    return Decision(None, (), reason, in_vain)


def smallest_view(
    conversation: Conversation,
    budget: Budget,
    chunks: Collection[SummaryChunk],
    cost: Cost,
    masking: Masking | None = None,
) -> View:
    """What can be had without a new summary: every chunk and mask in use, and large texts shortened."""
    return fit(conversation, _widest_view(conversation, chunks, masking), budget.limit, cost)


def _widest_view(conversation: Conversation, chunks: Collection[SummaryChunk], masking: Masking | None) -> View:
    path = widest_path(conversation, chunks)
    if masking is None:
        return build_view(conversation, path)
    return build_view(conversation, path, masking.masks, max(masking.usable(path.covered), default=0))


def _steps(
    conversation: Conversation,
    budget: Budget,
    chunks: Collection[SummaryChunk],
    cost: Cost,
    reason: str | None,
    masking: Masking | None,
) -> Iterator[tuple[View, str | None]]:
    """The least view under the trigger; else the one that keeps every chunk and mask in use; that shortened."""
    if (view := least_view(conversation, chunks, budget.trigger, masking)) is not None:
        yield view, None
    widest = _widest_view(conversation, chunks, masking)
    if widest.tokens <= budget.limit:
        yield widest, reason
    yield fit(conversation, widest, budget.limit, cost), reason

"""Recovery: the budget for sending a request once more, after the provider refused it for its size.

Its numbers count where it gives them: the limit, or how much the prompt was over it, scaled by what we had estimated.
Else 70 % of what was sent is tried.
"""

from __future__ import annotations

from msgspec.structs import replace

from app.core.limits.budget import Budget
from app.core.limits.overflow import Overflow
from app.core.limits.trigger import over

CEILING_SHARE = 0.95
SENT_SHARE = 0.70
TARGET_SHARE = 0.60
"""Target of a summary as a share of the ceiling, so that the next turn does not overflow again."""
LEAST_ROOM = 2_000
LEAST_SHARE = 0.25
"""Tokens beside the instructions, or this share of the limit in small windows; with less there is no conversation
left."""
PRESSURE = 0.80


def recovery_budget(
    overflow: Overflow, budget: Budget, sent: int, instructions: int, output: int | None, *, holds_media: bool = False
) -> Budget | None:
    """The limits to make the prompt anew with, or None where a smaller prompt cannot help.

    `sent` and `instructions` are our estimates of the refused prompt and of what no compaction takes away; `output` is
    what the request asked for, in tokens. Like every budget the result is in our estimate.

    Where the provider counts more than was expected, all of it is taken to cost as much more. With `holds_media` the
    difference is taken to be that of pictures, which stay: it is the same for a smaller prompt. Where that leaves no
    room, it is that of pictures which can go.
    """
    expected = budget.line.reported(sent)
    if not overflow.fixable or (overflow.needs_pressure and expected < PRESSURE * budget.window):
        return None
    least = least_room(budget)
    # How much more the provider counts than we did, as a factor and in tokens, and the least room: one way, or two.
    more: list[tuple[float, int, float]] = [(1.0, 0, least)]
    if overflow.limit is None:
        in_force = budget.line.reported(budget.limit)
        allowed = SENT_SHARE * (expected if SENT_SHARE * expected < in_force else in_force)
        target = allowed
    else:
        ceiling = overflow.limit - _completion(overflow, budget, output)
        allowed = CEILING_SHARE * ceiling
        if overflow.prompt is None:
            allowed = min(allowed, SENT_SHARE * expected)
        else:
            factor = overflow.prompt / expected  # Applied once, here.
            more = [(factor, 0, least)]
            if holds_media and overflow.prompt > expected:
                more = [(1.0, overflow.prompt - expected, least), (factor, 0, least / factor)]
        target = min(allowed, TARGET_SHARE * ceiling)
    for factor, media, room in more:
        limit = budget.line.estimate(allowed / factor - media)
        if limit >= instructions + room:
            aim = budget.line.estimate(max(target / factor - media, LEAST_SHARE * target))
            return _within(budget, limit, aim)
    return None


def _within(budget: Budget, limit: int, aim: int) -> Budget:
    share = limit / budget.limit if budget.limit else 0.0
    return replace(
        budget,
        limit=limit,
        room=min(budget.room, limit),
        trigger=over(aim),
        target=aim,
        tail=int(budget.tail * share),
        fold=int(budget.fold * share),
        hold=0,
    )


def least_room(budget: Budget) -> int:
    """Least tokens of a prompt beside the instructions; a smaller one is not made."""
    return max(1, min(LEAST_ROOM, int(LEAST_SHARE * budget.limit)))


def _completion(overflow: Overflow, budget: Budget, output: int | None) -> int:
    """Tokens to be kept free for the completion: as many as the provider counted, or else no more than before."""
    if overflow.requested is not None and overflow.prompt is not None:
        return overflow.requested - overflow.prompt
    return min(output or 0, budget.reserve) if budget.given_way else output or 0

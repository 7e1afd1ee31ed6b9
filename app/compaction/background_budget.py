"""The limits of a background compaction: when it begins, and the size of view it aims for.

A request over the trigger goes on without its summary while it fits, and the summary is made after its answer. Where
the conversation grows fast, or summaries take long, the next requests would no longer fit, and would wait. So a summary
begins below the trigger, and is no longer put off for its cost, once the free room is less than the expected growth of
the history while the summary is made (`RequestRate.growth`).

The expected growth counts against the target and the tail, so that the view is as large when the summary is used as if
the compaction had been made at that moment.
"""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.budget import Budget

SOFT_SHARE = 0.55
"""Share of the room (see `Budget.room`) up to which no summary is made before it is due."""
LEAST_ROOM = 1.10
"""Times the target, likewise: below that a summary frees hardly anything."""
WAIT_SHARE = 0.97
"""Share of the limit over which a view is not sent without the summary that is due."""
MOST_OVER = 1.04
"""Times the room, likewise: a cap that keeps below a price step is exceeded by no more than this."""
REMEMBERED_SHARE = 0.5
"""Share of `background_threshold` from which on requests are counted."""
LEAST_KEPT = 0.5
"""Share of target and tail that the expected growth leaves: it may not come."""


def most_without_summary(budget: Budget) -> int:
    """The largest view that may be sent although a compaction is due."""
    return int(budget.caution * min(WAIT_SHARE * budget.limit, MOST_OVER * budget.room))


def background_threshold(budget: Budget) -> int:
    """The largest view for which nothing is made in the background, however fast the history grows."""
    soft = max(SOFT_SHARE * budget.caution * budget.room, LEAST_ROOM * budget.target)
    return min(int(soft), budget.trigger.quiet_tokens)


def least_counted(budget: Budget) -> int:
    """The largest history whose requests need not be counted."""
    return int(REMEMBERED_SHARE * background_threshold(budget))


def latest_start(budget: Budget, growth: int) -> int:
    return max(background_threshold(budget), most_without_summary(budget) - growth)


def background_budget(budget: Budget, growth: int) -> Budget:
    """The limits for a compaction that begins now. Its trigger fires wherever the request's own does."""
    start = latest_start(budget, growth)

    def less(tokens: int) -> int:
        return max(int(LEAST_KEPT * tokens), tokens - growth)

    return replace(
        budget,
        trigger=replace(budget.trigger, tokens=min(budget.trigger.tokens, start)),
        target=less(budget.target),
        tail=less(budget.tail),
        tail_fill=less(budget.tail_fill),
        cost_gate_limit=min(budget.cost_gate_limit, start),
    )

"""Ahead: how early a compaction begins so that nobody has to wait for its summary.

A request that fires the trigger need not wait while it still fits well: it goes on with the view there is, and the
compaction is made after its answer. Begun even earlier it would be found by that very request; but a summary that is
made early stands for less, and the next one is due sooner. From one compaction to the next a view grows by a fifth of
the limit or more, so what begins a fiftieth early costs at most a tenth more summaries. Hence the two reasons to begin
below the trigger, both reckoned from what the history may grow by while a summary is made:

- it is expected to fire the trigger meanwhile, and to be early enough costs little (`MOST_EARLY`). To be early, but not
  early enough, would cost and bring nothing;
- it may come so far meanwhile that a request would be too large to be sent without.

Never below a soft threshold.

A compaction that begins now is used when more messages have come. It is planned for then: what is expected to come
counts against the target and the tail, so that the view is as large, and as much of it verbatim, as if the compaction
had been made when it is used. Planned for now it would leave a larger view, and the next one be due sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from msgspec.structs import replace

from app.core.history.messages import Kind, Transcript
from app.core.limits.budget import Budget
from app.core.limits.trigger import Trigger

SOFT_SHARE = 0.55
"""Share of the room below which no compaction begins."""
WAIT_SHARE = 0.97
"""Share of the limit over which a view is not sent without the summary that is due."""
MOST_OVER = 1.04
"""Times the cap, likewise: from a cap that keeps below a price step, no further than to that."""
STEPS = 4
"""The latest requests that tell how fast a history grows."""
MOST_EARLY = 0.02
"""Share of the room by which a compaction begins earlier at most, to be found by the request that fires the
trigger."""
LEAST_ROOM = 1.10
"""Times the target: below that there is hardly anything to free."""
REMEMBERED_SHARE = 0.5
"""Share of `least_looked_at` from which on paces are remembered: shorter histories cost nothing."""
LEAST_HOLD = 0.95
"""Share of what a request may have without a compaction, from which on one that is made ahead is not put off for its
cost."""
LEAST_KEPT = 0.5
"""Least share of target and tail that is kept in any case: what is expected to come may not come."""


def most_without(budget: Budget) -> int:
    """The largest view, in tokens, that may be sent although a compaction is due."""
    return int(budget.caution * min(WAIT_SHARE * budget.limit, MOST_OVER * budget.room))


def soft_threshold(budget: Budget) -> int:
    """Tokens up to which nothing is made for a view before it is due."""
    return int(max(SOFT_SHARE * budget.caution * budget.room, LEAST_ROOM * budget.target))


def least_looked_at(budget: Budget) -> int:
    """A view of at most so many tokens needs no look: nothing is due for it, or made ahead."""
    return min(soft_threshold(budget), budget.trigger.tokens)


def least_remembered(budget: Budget) -> int:
    """A history that is surely of at most so many tokens needs no thought: it cannot be due for long."""
    return int(REMEMBERED_SHARE * least_looked_at(budget))


def latest_steps(transcript: Transcript) -> tuple[int, ...]:
    """Tokens by which the history grew from each of its latest requests to the next.

    A request ended where an answer of the assistant begins: an agent sends several in one turn.
    """
    return tuple(transcript.tokens(start, stop) for stop, start in pairwise(_latest_ends(transcript)))


def _latest_ends(transcript: Transcript) -> list[int]:
    """Ends of the latest requests, the last one first."""
    messages = transcript.messages
    ends = [len(transcript)]
    for index in range(len(transcript) - 1, 0, -1):
        if len(ends) > STEPS:
            break
        if messages[index].kind is Kind.ASSISTANT:
            ends.append(index)
    return ends


def requests_meanwhile(summary_seconds: float, request_seconds: float) -> int:
    """How many requests come, one each `request_seconds`, until a summary that is begun now can be used."""
    return max(1, ceil(summary_seconds / max(request_seconds, 0.001)))


def nearer_trigger(budget: Budget, steps: Sequence[int], requests: int) -> Trigger:
    """The trigger by which a compaction begins now that may be due within so many requests; the same or a nearer one.

    What does not count tokens stays as it is.
    """
    expected = requests * _usual(steps)
    early = expected if expected <= MOST_EARLY * budget.room else 0.0
    soft, in_time = soft_threshold(budget), _in_time(budget, steps, requests)
    conditions = (
        replace(condition, tokens=min(condition.tokens, max(soft, int(min(condition.tokens - early, in_time)))))
        for condition in budget.trigger.conditions
    )
    return replace(budget.trigger, conditions=tuple(conditions))


def _in_time(budget: Budget, steps: Sequence[int], requests: int) -> int:
    """The largest view from which on no request is too large to be sent without its summary before that is there."""
    return most_without(budget) - int((requests - 1) * _usual(steps)) - max(steps, default=0)


def _usual(steps: Sequence[int]) -> float:
    return sum(steps) / len(steps) if steps else 0.0


def budget_ahead(budget: Budget, transcript: Transcript, requests: int) -> Budget:
    """Budget of a compaction that begins now and whose summary can be used in so many requests. For its cost it is put
    off less long where a request might have to wait for it."""
    ends, steps = _latest_ends(transcript), latest_steps(transcript)
    usual = _usual(steps)
    turns = sum(ends[-1] <= start for start in transcript.turn_starts) / len(steps) if steps else 0.0

    def less(tokens: int) -> int:
        return max(int(LEAST_KEPT * tokens), tokens - int(requests * usual))

    return replace(
        budget,
        trigger=nearer_trigger(budget, steps, requests),
        target=less(budget.target),
        tail=less(budget.tail),
        tail_fill=less(budget.tail_fill),
        tail_turns=max(ceil(LEAST_KEPT * budget.tail_turns), budget.tail_turns - round(requests * turns)),
        hold=min(budget.hold, max(int(LEAST_HOLD * budget.hold), _in_time(budget, steps, requests))),
    )

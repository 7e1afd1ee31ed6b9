"""Request rates: how fast conversations grew lately, and how long their summaries took, as this process saw it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from time import monotonic

from msgspec import Struct

from app.compaction.planning_request import Place
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.erased import Erased

REMEMBERED_SECONDS = 24 * 3_600.0
LATEST_REQUESTS = 8
LATEST_SUMMARIES = 4
GROWTH_MARGIN = 1.25
"""Times the latest pace: it varies."""
FIRST_SUMMARY_SECONDS = 20.0
"""Seconds that a summary is expected to take before one was seen."""
LEAST_SECONDS = 0.001
"""Seconds that pass at least between two requests, for a rate."""
HOUR = 3_600.0

LIKELY_REQUESTS = 3
LIKELY_TOKENS_PER_HOUR = 10_000
"""Requests, and prompt tokens an hour, from which on a conversation is likely to continue."""


class Answered(Struct, frozen=True):
    at: float
    """End of the answer, by the monotonic clock."""
    history: int
    """Tokens of the client's history."""
    forwarded: int
    """Tokens of the payload."""


class RequestRate(Struct, frozen=True):
    """The latest requests of a conversation."""

    requests: int = 0
    """Number of requests in all; a repeated one counts once."""
    latest: tuple[Answered, ...] = ()

    def after(self, answered: Answered) -> RequestRate:
        if self.latest and self.latest[-1].history == answered.history:
            return self
        return RequestRate(self.requests + 1, (*self.latest, answered)[-LATEST_REQUESTS:])

    @property
    def is_likely_to_continue(self) -> bool:
        if self.requests < LIKELY_REQUESTS:
            return False
        hours = (self.latest[-1].at - self.latest[0].at) / HOUR
        return sum(answered.forwarded for answered in self.latest[1:]) >= LIKELY_TOKENS_PER_HOUR * hours

    def growth(self, seconds: float) -> int:
        """Tokens by which the history may grow in so many seconds: at the pace of the latest requests with a margin,
        and by one more as large as the largest of them. A pause longer than `seconds` counts as that long, since the
        client may be faster after it."""
        steps = [max(0, later.history - earlier.history) for earlier, later in pairwise(self.latest)]
        passed = sum(min(later.at - earlier.at, seconds) for earlier, later in pairwise(self.latest))
        return int(GROWTH_MARGIN * sum(steps) / max(passed, LEAST_SECONDS) * seconds) + max(steps, default=0)


class RequestRates:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rates: BoundedMap[Place, RequestRate] = BoundedMap(
            MOST_REMEMBERED, seconds=REMEMBERED_SECONDS, clock=clock
        )
        self._summaries: BoundedMap[Hashable, tuple[float, ...]] = BoundedMap(MOST_REMEMBERED)

    def answered(self, place: Place, history: int, forwarded: int) -> None:
        """Record an answered request by the tokens of its history and of its payload."""
        self._rates.keep(place, self.of(place).after(Answered(self._clock(), history, forwarded)))

    def of(self, place: Place) -> RequestRate:
        return self._rates.get(place) or RequestRate()

    def forget(self, erased: Erased) -> None:
        self._rates.drop(lambda place, _: erased.covers(*place))

    def summarised(self, by: Hashable, seconds: float) -> None:
        """Record the seconds of a summary call; `by`: upstream and model."""
        self._summaries.keep(by, (*(self._summaries.get(by) or ()), seconds)[-LATEST_SUMMARIES:])

    def summary_seconds(self, by: Hashable) -> float:
        """Seconds that the next summary may take: as long as the longest of the latest."""
        return max(self._summaries.get(by) or (FIRST_SUMMARY_SECONDS,))

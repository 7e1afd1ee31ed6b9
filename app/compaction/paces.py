"""Paces: how fast conversations came back recently, and how long their summaries take, as this process saw it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from msgspec import Struct

from app.core.deciding.request import Place
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.erased import Erased

REMEMBERED_SECONDS = 24 * 3_600.0
LATEST = 4
"""Number of requests, and of summaries, that a pace is reckoned from."""
FIRST_SUMMARY_SECONDS = 20.0
"""Seconds that a summary is expected to take before any was seen."""
HOUR = 3_600.0

LIKELY_REQUESTS = 3
LIKELY_TOKENS_PER_HOUR = 10_000
"""Requests, and prompt tokens an hour, from which a conversation is likely to come back: who asks once may not."""


class Pace(Struct, frozen=True):
    requests: int
    """Requests seen in all; one that is repeated counts once."""
    seconds: float
    """Seconds from one request to the next, recently; infinite after the first."""
    tokens_per_hour: float
    """Tokens forwarded in an hour at that pace."""


NEVER_SEEN = Pace(0, inf, 0.0)


@dataclass(slots=True)
class _Seen:
    requests: int = 0
    history: int = 0
    """Tokens of the latest history."""
    latest: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=LATEST))
    """(end of the answer by the clock, tokens sent) of the latest requests."""


class Paces:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: BoundedMap[Place, _Seen] = BoundedMap(MOST_REMEMBERED, seconds=REMEMBERED_SECONDS, clock=clock)
        self._summaries: BoundedMap[Hashable, deque[float]] = BoundedMap(MOST_REMEMBERED)

    def answered(self, place: Place, history: int, forwarded: int) -> None:
        """Record an answered request with a history of so many tokens, of which `sent` were sent."""
        seen = self._seen.get(place) or _Seen()
        if not seen.requests or history != seen.history:  # A crowd with the same history is one request.
            seen.requests += 1
            seen.history = history
            seen.latest.append((self._clock(), forwarded))
        self._seen.keep(place, seen)

    def of(self, place: Place) -> Pace:
        seen = self._seen.get(place)
        if seen is None:
            return NEVER_SEEN
        hours = (seen.latest[-1][0] - seen.latest[0][0]) / HOUR
        if len(seen.latest) < 2:
            return Pace(seen.requests, inf, 0.0)
        later = list(seen.latest)[1:]
        tokens = sum(forwarded for _, forwarded in later)
        return Pace(seen.requests, hours * HOUR / len(later), tokens / hours if hours else inf)

    def forget(self, erased: Erased) -> None:
        self._seen.drop(lambda place, _: erased.covers(*place))

    def summarised(self, by: Hashable, seconds: float) -> None:
        """Record the seconds of a summary call."""
        latest = self._summaries.get(by) or deque(maxlen=LATEST)
        latest.append(seconds)
        self._summaries.keep(by, latest)

    def summary_seconds(self, by: Hashable) -> float:
        """Seconds that the next summary may take: as long as the longest of the latest."""
        return max(self._summaries.get(by) or (FIRST_SUMMARY_SECONDS,))

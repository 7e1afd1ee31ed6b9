"""Guesses: wrong passwords and keys of no tenant, counted by the address that they come from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import structlog

from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, LogThrottle

MOST_GUESSES = 10
PERIOD_SECONDS = 600.0
"""Period in which an address has a number of guesses."""

log = structlog.get_logger("steno.inspector")


class Guesses:
    """Wrong guesses by address, in one process: several replicas allow several times as many."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._made: BoundedMap[str, deque[float]] = BoundedMap(MOST_REMEMBERED)
        """Times of each address's latest guesses, the oldest first."""
        self._throttle = LogThrottle(clock)

    def wait(self, address: str) -> float:
        """Seconds until the address may guess again; 0 if it may now."""
        made = self._made.get(address)
        if made is None or len(made) < MOST_GUESSES:
            return 0.0
        return max(0.0, made[0] + PERIOD_SECONDS - self._clock())

    def count(self, address: str) -> None:
        """Count a guess that was wrong or, after too many, not examined."""
        if not (refused := self.wait(address) > 0):
            made = self._made.get(address) or deque(maxlen=MOST_GUESSES)
            made.append(self._clock())
            self._made.keep(address, made)
        if (times := self._throttle.count(address)) is not None:
            log.warning("sign-in guessed", address=address, refused=refused, times=times)

"""Repeats: an event that lasts is logged once, then once a minute with a count, and once when it is over."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

from app.runtime.bounded import BoundedMap

REMINDER_SECONDS = 60.0
MOST_REMEMBERED = 1_000


@dataclass(slots=True)
class _Repeat:
    """One event that lasts. Times are the clock's."""

    began: float
    reported: float
    times: int = 0


class Repeats:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lasting: BoundedMap[Hashable, _Repeat] = BoundedMap(MOST_REMEMBERED)

    def again(self, what: Hashable) -> int | None:
        """Record an event. Returns how often it happened since it began, if that is to be reported now."""
        now = self._clock()
        repeat = self._lasting.get(what)
        if repeat is None:
            repeat = _Repeat(began=now, reported=now)
            self._lasting.keep(what, repeat)
        repeat.times += 1
        if repeat.times > 1 and now - repeat.reported < REMINDER_SECONDS:
            return None
        repeat.reported = now
        return repeat.times

    def over(self, what: Hashable) -> tuple[int, float] | None:
        """Record that the event did not happen. If it had: how often, and for how many seconds."""
        repeat = self._lasting.pop(what)
        return None if repeat is None else (repeat.times, round(self._clock() - repeat.began, 1))

"""Repeats: what happens again and again is logged once, then once a minute with a count, and once when it is over."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

REMINDER_SECONDS = 60.0
MOST_REMEMBERED = 1_000


@dataclass(slots=True)
class _Repeat:
    """One that lasts. Times are the clock's."""

    began: float
    told: float
    times: int = 0


class Repeats:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lasting: dict[Hashable, _Repeat] = {}

    def again(self, what: Hashable) -> int | None:
        """It happened. How often since it began, where that is to be told now."""
        now = self._clock()
        repeat = self._lasting.get(what)
        if repeat is None:
            if len(self._lasting) >= MOST_REMEMBERED:
                del self._lasting[next(iter(self._lasting))]
            repeat = self._lasting[what] = _Repeat(began=now, told=now)
        repeat.times += 1
        if repeat.times > 1 and now - repeat.told < REMINDER_SECONDS:
            return None
        repeat.told = now
        return repeat.times

    def over(self, what: Hashable) -> tuple[int, float] | None:
        """It did not happen. If it had: how often, and for how many seconds."""
        repeat = self._lasting.pop(what, None)
        return None if repeat is None else (repeat.times, round(self._clock() - repeat.began, 1))

"""Troubles: what goes wrong again and again, told once, then once a minute with a count, and once when it is over."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

REMINDER_SECONDS = 60.0
MOST_REMEMBERED = 1_000


@dataclass(slots=True)
class _Trouble:
    """One that lasts. Times are the clock's."""

    began: float
    told: float
    times: int = 0


class Troubles:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lasting: dict[Hashable, _Trouble] = {}

    def again(self, what: Hashable) -> int | None:
        """It happened. How often since it began, where that is to be told now."""
        now = self._clock()
        trouble = self._lasting.get(what)
        if trouble is None:
            if len(self._lasting) >= MOST_REMEMBERED:
                del self._lasting[next(iter(self._lasting))]
            trouble = self._lasting[what] = _Trouble(began=now, told=now)
        trouble.times += 1
        if trouble.times > 1 and now - trouble.told < REMINDER_SECONDS:
            return None
        trouble.told = now
        return trouble.times

    def over(self, what: Hashable) -> tuple[int, float] | None:
        """It did not happen. If it had: how often, and for how many seconds."""
        trouble = self._lasting.pop(what, None)
        return None if trouble is None else (trouble.times, round(self._clock() - trouble.began, 1))

"""Periods: amounts that tenants or addresses used lately, in bounded memory."""

from __future__ import annotations

from collections import deque

from app.runtime.bounded import MOST_REMEMBERED, BoundedMap

SLOTS = 60
"""Parts of a period in which its amounts are added up."""


class Period:
    """Amounts that each key used in the last so many seconds, to the sixtieth part of them. None is no limit."""

    def __init__(self, seconds: float, most: int | None) -> None:
        self._slot_seconds = seconds / SLOTS
        self._most = most
        self._used: BoundedMap[str, deque[tuple[int, int]]] = BoundedMap(MOST_REMEMBERED)
        """Slots and amounts, the oldest first."""

    def add(self, name: str, amount: int, now: float) -> None:
        if self._most is None:
            return
        used, slot = self._recent(name, now), int(now // self._slot_seconds)
        if used and used[-1][0] == slot:
            amount += used.pop()[1]
        used.append((slot, amount))
        self._used.keep(name, used)

    def wait(self, name: str, now: float) -> float:
        """Seconds until something may be used again."""
        if self._most is None:
            return 0.0
        used = self._recent(name, now)
        left = sum(amount for _, amount in used)
        for slot, amount in used:
            if left < self._most:
                break
            left -= amount
            ends = (slot + SLOTS + 1) * self._slot_seconds
            if left < self._most:
                return ends - now
        return 0.0

    def _recent(self, name: str, now: float) -> deque[tuple[int, int]]:
        used = self._used.get(name)
        if used is None:
            return deque()
        while used and (used[0][0] + SLOTS + 1) * self._slot_seconds <= now:
            used.popleft()
        return used

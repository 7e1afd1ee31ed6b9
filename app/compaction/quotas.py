"""Quotas: what one tenant may ask of the summariser, so that something is left for the others. Of this process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf
from time import monotonic

from app.core.reasons import Code
from app.memory.bounded import MOST_REMEMBERED, BoundedMap

MINUTE, HOUR = 60.0, 3_600.0
SLOTS = 60
"""Parts of a period in which its amounts are added up."""


class Quotas:
    """None for a limit is no limit."""

    def __init__(
        self,
        compactions: int | None = None,
        forced_per_minute: int | None = None,
        summary_tokens_per_hour: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._most = inf if compactions is None else compactions
        self._forced = _Period(MINUTE, forced_per_minute)
        self._tokens = _Period(HOUR, summary_tokens_per_hour)
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {}
        """How many compactions of which conversations, by tenant."""

    def begin(self, tenant: str, conversation_id: str) -> Code | None:
        """Why no compaction may begin now. None is to be followed by `end`.

        A crowd of requests of one conversation counts once: most of them only wait for the one that makes the summary.
        """
        if self.are_tokens_spent(tenant):
            return Code.SUMMARY_TOKENS_SPENT
        own = self._under_way.get(tenant, Counter())
        if conversation_id not in own and len(own) >= self._most:
            return Code.TOO_MANY_COMPACTIONS
        own[conversation_id] += 1
        self._under_way[tenant] = own
        return None

    def are_tokens_spent(self, tenant: str) -> bool:
        """Whether none begins for a while, in the background or not."""
        return self._tokens.wait(tenant, self._clock()) > 0

    def end(self, tenant: str, conversation_id: str) -> None:
        own = self._under_way[tenant]
        own[conversation_id] -= 1
        if not own[conversation_id]:
            del own[conversation_id]
        if not own:
            del self._under_way[tenant]

    def force(self, tenant: str) -> float:
        """Seconds until a compaction may be demanded; 0 if it may be now, which is counted."""
        now = self._clock()
        seconds = self._forced.wait(tenant, now)
        if not seconds:
            self._forced.add(tenant, 1, now)
        return seconds

    def spend(self, tenant: str, tokens: int) -> None:
        """So many of a summary call, prompt and completion."""
        self._tokens.add(tenant, tokens, self._clock())


class _Period:
    """How much each tenant has used in the last so many seconds, to the sixtieth part of them."""

    def __init__(self, seconds: float, most: int | None) -> None:
        self._slot_seconds = seconds / SLOTS
        self._most = most
        self._used: BoundedMap[str, deque[tuple[int, int]]] = BoundedMap(MOST_REMEMBERED)
        """Slots and amounts, the oldest first."""

    def add(self, tenant: str, amount: int, now: float) -> None:
        if self._most is None:
            return
        used, slot = self._recent(tenant, now), int(now // self._slot_seconds)
        if used and used[-1][0] == slot:
            amount += used.pop()[1]
        used.append((slot, amount))
        self._used.keep(tenant, used)

    def wait(self, tenant: str, now: float) -> float:
        """Seconds until something may be used again."""
        if self._most is None:
            return 0.0
        used = self._recent(tenant, now)
        left = sum(amount for _, amount in used)
        for slot, amount in used:
            if left < self._most:
                break
            left -= amount
            ends = (slot + SLOTS + 1) * self._slot_seconds
            if left < self._most:
                return ends - now
        return 0.0

    def _recent(self, tenant: str, now: float) -> deque[tuple[int, int]]:
        used = self._used.get(tenant)
        if used is None:
            return deque()
        while used and (used[0][0] + SLOTS + 1) * self._slot_seconds <= now:
            used.popleft()
        return used

"""Quotas of this process: limits of one tenant's calls to the summariser, and of compactions in the background."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from time import monotonic

from msgspec import Struct

from app.core.deciding.request import Place
from app.core.reasons import Code
from app.runtime.periods import Period

MINUTE, HOUR = 60.0, 3_600.0


class Quotas:
    """Limits of each tenant; None is no limit."""

    def __init__(
        self,
        compactions: int | None = None,
        forced_per_minute: int | None = None,
        summary_tokens_per_hour: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._most = inf if compactions is None else compactions
        self._forced = Period(MINUTE, forced_per_minute)
        self._tokens = Period(HOUR, summary_tokens_per_hour)
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {}
        """Number of compactions under way, by tenant and conversation."""

    def begin(self, tenant: str, conversation_id: str) -> Code | None:
        """Begin a compaction; returns why it may not, or None, which is to be followed by `end`. A crowd of requests
        of one conversation counts once: most of them only wait for the one that makes the summary."""
        if self.are_tokens_spent(tenant):
            return Code.SUMMARY_TOKENS_SPENT
        own = self._under_way.get(tenant, Counter())
        if conversation_id not in own and len(own) >= self._most:
            return Code.TOO_MANY_COMPACTIONS
        own[conversation_id] += 1
        self._under_way[tenant] = own
        return None

    def are_tokens_spent(self, tenant: str) -> bool:
        """True if no compaction begins for a while, in the background or not."""
        return self._tokens.wait(tenant, self._clock()) > 0

    def end(self, tenant: str, conversation_id: str) -> None:
        own = self._under_way[tenant]
        own[conversation_id] -= 1
        if not own[conversation_id]:
            del own[conversation_id]
        if not own:
            del self._under_way[tenant]

    def force(self, tenant: str) -> float:
        """Count a demanded compaction, if it may be made now: returns 0, otherwise the seconds until then."""
        now = self._clock()
        seconds = self._forced.wait(tenant, now)
        if not seconds:
            self._forced.add(tenant, 1, now)
        return seconds

    def spend(self, tenant: str, tokens: int) -> None:
        """Spend tokens of a summary call, prompt and completion."""
        self._tokens.add(tenant, tokens, self._clock())


class BackgroundLimits(Struct, frozen=True):
    compactions: int = 16
    """Compactions under way at once."""
    per_tenant: int = 8
    body_bytes: int = 64_000_000
    """Bytes of all histories together that compactions are made from; one tenant may have half of it."""


class BackgroundRoom:
    """Room for background compactions: how many may be under way, and of how large histories."""

    def __init__(self, limits: BackgroundLimits) -> None:
        self._limits = limits
        self._taken: dict[Place, int] = {}
        """Bytes by conversation."""

    def __len__(self) -> int:
        return len(self._taken)

    def is_taken(self, place: Place) -> bool:
        """True if a compaction is under way for the conversation."""
        return place in self._taken

    def is_free(self, tenant: str, size: int) -> bool:
        """True if one more may begin, for a history of so many bytes."""
        limits, own = self._limits, Counter(owner for owner, _ in self._taken)[tenant]
        bytes_of_all = sum(self._taken.values())
        own_bytes = sum(held for (owner, _), held in self._taken.items() if owner == tenant)
        return (
            len(self._taken) < limits.compactions
            and own < limits.per_tenant
            and bytes_of_all + size <= limits.body_bytes
            and own_bytes + size <= limits.body_bytes / 2
        )

    def take(self, place: Place, size: int) -> None:
        self._taken[place] = size

    def leave(self, place: Place) -> None:
        del self._taken[place]

"""Quotas: limits of one tenant's calls to the summariser, and of compactions in the background."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from app.core.deciding.request import Place
from app.core.reasons import Code
from app.store.tallies import HOUR, MINUTE, Tallies, Window

FORCED = Window("forced_compactions", MINUTE)
SUMMARY_TOKENS = Window("summary_tokens", HOUR)


class Quotas:
    """Limits of each tenant; None is no limit. Demanded compactions and tokens are counted by all processes together,
    compactions under way by each; those under way everywhere are known by their leases."""

    def __init__(
        self,
        tallies: Tallies,
        compactions: int | None = None,
        forced_per_minute: int | None = None,
        summary_tokens_per_hour: int | None = None,
    ) -> None:
        self._tallies = tallies
        self.compactions = compactions
        self._forced = forced_per_minute
        self._tokens = summary_tokens_per_hour
        self._under_way: dict[str, Counter[str]] = {}
        """Number of compactions under way, by tenant and conversation."""

    def begin(self, tenant: str, conversation_id: str) -> Code | None:
        """Begin a compaction; returns why it may not, or None, which is to be followed by `end`. A crowd of requests
        of one conversation counts once: most of them only wait for the one that makes the summary."""
        if self.are_tokens_spent(tenant):
            return Code.SUMMARY_TOKENS_SPENT
        own = self._under_way.get(tenant, Counter())
        if self.compactions is not None and conversation_id not in own and len(own) >= self.compactions:
            return Code.TOO_MANY_COMPACTIONS
        own[conversation_id] += 1
        self._under_way[tenant] = own
        return None

    def are_tokens_spent(self, tenant: str) -> bool:
        """True if no compaction begins for a while, in the background or not."""
        return self._tokens is not None and self._tallies.used(tenant, SUMMARY_TOKENS) >= self._tokens

    def end(self, tenant: str, conversation_id: str) -> None:
        own = self._under_way[tenant]
        own[conversation_id] -= 1
        if not own[conversation_id]:
            del own[conversation_id]
        if not own:
            del self._under_way[tenant]

    def force(self, tenant: str) -> float:
        """Count a demanded compaction, if it may be made now: returns 0, otherwise the seconds until then."""
        if self._forced is None:
            return 0.0
        if self._tallies.used(tenant, FORCED) >= self._forced:
            return self._tallies.seconds_left(FORCED)
        self._tallies.add(tenant, FORCED, 1)
        return 0.0

    def spend(self, tenant: str, tokens: int) -> None:
        """Spend tokens of a summary call, prompt and completion."""
        if self._tokens is not None:
            self._tallies.add(tenant, SUMMARY_TOKENS, tokens)


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

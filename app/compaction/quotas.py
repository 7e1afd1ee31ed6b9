"""Quotas: how many conversations of one tenant are compacted at once, and the room of background compactions."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from app.compaction.planning_request import Place


class Quotas:
    """Compactions that each tenant has under way in this process; those of all processes are counted by leases."""

    def __init__(self, compactions: int | None = None) -> None:
        """`compactions`: the most conversations of one tenant; None for any number."""
        self.compactions = compactions
        self._under_way: dict[str, Counter[str]] = {}
        """Number of compactions under way, by tenant and conversation."""

    def begin(self, tenant: str, conversation_id: str) -> bool:
        """Begin a compaction, to be followed by `end`; False if it may not begin. A crowd of requests of one
        conversation counts once: most of them only wait for the one that makes the summary."""
        own = self._under_way.get(tenant, Counter())
        if self.compactions is not None and conversation_id not in own and len(own) >= self.compactions:
            return False
        own[conversation_id] += 1
        self._under_way[tenant] = own
        return True

    def end(self, tenant: str, conversation_id: str) -> None:
        own = self._under_way[tenant]
        own[conversation_id] -= 1
        if not own[conversation_id]:
            del own[conversation_id]
        if not own:
            del self._under_way[tenant]


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

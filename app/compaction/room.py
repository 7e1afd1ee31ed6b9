"""Room: how many compactions may be under way in the background, and of how large histories. Of this process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Place = tuple[str, str]
"""Whose conversation, and which."""


@dataclass(frozen=True, slots=True)
class BackgroundLimits:
    compactions: int
    """Under way at once."""
    per_tenant: int = 8
    body_bytes: int = 64_000_000
    """Of the histories that they are made from, all together; one tenant may have half of it."""


class BackgroundRoom:
    def __init__(self, limits: BackgroundLimits) -> None:
        self._limits = limits
        self._taken: dict[Place, int] = {}
        """How many bytes, by the conversation."""

    def __len__(self) -> int:
        return len(self._taken)

    def is_taken(self, place: Place) -> bool:
        """Whether one is under way for the conversation."""
        return place in self._taken

    def is_free(self, tenant: str, size: int) -> bool:
        """Whether one more may begin, for a history of so many bytes."""
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

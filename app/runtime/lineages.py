"""Lineages: values remembered of histories by their content, not by their name.

Many histories may have one name: those of an agent and its sub-agents, or all that come through one gateway.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from app.runtime.bounded import MOST_REMEMBERED, BoundedMap

V = TypeVar("V")


class Lineage(Struct, frozen=True):
    """Identity of a history that lasts when it has grown or its last turn was edited."""

    scope: Hashable
    """Purpose of the look-up: two scopes know nothing of each other."""
    places: Sequence[bytes]
    """Digests of the history's beginnings, the shortest first, the longest up to its last unit. None is the whole
    history's: that may be edited."""


class Lineages(Generic[V]):
    """Latest value for each history, branches apart. So many are remembered that their number does not matter."""

    def __init__(self) -> None:
        self._kept: BoundedMap[tuple[Hashable, bytes], V] = BoundedMap(MOST_REMEMBERED)

    def find(self, lineage: Lineage) -> V | None:
        """Return the value kept for the history when it was shorter, or for the one it branched off from."""
        keys = ((lineage.scope, place) for place in reversed(lineage.places))
        return next((self._kept[key] for key in keys if key in self._kept), None)

    def keep(self, lineage: Lineage, value: V) -> None:
        if lineage.places:
            self._kept.keep((lineage.scope, lineage.places[-1]), value)

    def forget(self, lineage: Lineage) -> None:
        for place in lineage.places:
            self._kept.pop((lineage.scope, place))

"""Histories: what is remembered of them by what they hold, not by what they are called.

Many histories may have one name: those of an agent and its sub-agents, or all that come through one gateway.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_REMEMBERED = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """The entries that were kept last."""

    def keep(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > MOST_REMEMBERED:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True)
class History:
    """A history as it is known again later, when it has grown or its last turn was edited."""

    scope: Hashable
    """What it is looked at for: two scopes know nothing of each other."""
    places: Sequence[bytes]
    """Digests of its beginnings, the shortest first, the longest up to its last unit. None is the whole history's:
    that may be edited."""


class Histories(Generic[V]):
    """The latest value for each history, branches apart. So many that their number does not matter are remembered."""

    def __init__(self) -> None:
        self._kept: Recent[tuple[Hashable, bytes], V] = Recent()

    def find(self, history: History) -> V | None:
        """What was kept for the history when it was shorter, or for the one it branched off from."""
        keys = ((history.scope, place) for place in reversed(history.places))
        return next((self._kept[key] for key in keys if key in self._kept), None)

    def keep(self, history: History, value: V) -> None:
        if history.places:
            self._kept.keep((history.scope, history.places[-1]), value)

    def forget(self, history: History) -> None:
        for place in history.places:
            self._kept.pop((history.scope, place), None)

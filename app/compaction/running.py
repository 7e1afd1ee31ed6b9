"""Compactions under way in this process, for whoever watches a conversation. Nobody has to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from msgspec import Struct

from app.compaction.planning_request import Place


class Running(Struct, frozen=True, eq=False):
    messages: int
    """Number of messages that it summarises."""
    ahead: bool
    """True if it is made for requests to come: nobody waits for it."""
    began: float
    """Start by the clock of `RunningCompactions`, in seconds."""


class RunningCompactions:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: dict[Place, list[Running]] = {}
        self._watching: dict[Place, list[asyncio.Event]] = {}

    @contextmanager
    def during(self, place: Place, messages: int, *, ahead: bool) -> Iterator[None]:
        """Show a compaction from its start to its end, whatever comes of it."""
        running = Running(messages, ahead, self._clock())
        self._running.setdefault(place, []).append(running)
        self._wake(place)
        try:
            yield
        finally:
            left = [each for each in self._running[place] if each is not running]
            if left:
                self._running[place] = left
            else:
                del self._running[place]
            self._wake(place)

    def at(self, place: Place) -> tuple[Running, ...]:
        """Return the compactions of a conversation, the oldest first."""
        return tuple(self._running.get(place, ()))

    def told(self, place: Place) -> tuple[int, float, bool] | None:
        """Return what whoever watches is told: how many messages are being summarised, and of the oldest compaction for
        how many seconds, and whether it is made ahead. None if there is none."""
        if not (running := self.at(place)):
            return None
        first, messages = running[0], sum(each.messages for each in running)
        return messages, round(self._clock() - first.began, 1), first.ahead

    @contextmanager
    def watched(self, place: Place) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever a compaction begins or ends there; the watcher clears it."""
        event = asyncio.Event()
        self._watching.setdefault(place, []).append(event)
        try:
            yield event
        finally:
            left = [each for each in self._watching[place] if each is not event]
            if left:
                self._watching[place] = left
            else:
                del self._watching[place]

    def _wake(self, place: Place) -> None:
        for event in self._watching.get(place, ()):
            event.set()

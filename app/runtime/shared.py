"""Shared work: something that many ask for at the same time is done once for all, and never before they asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedWork(Generic[T]):
    """Work by key: one run is under way, and one waits that serves everybody who came meanwhile."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[T]] = {}

    async def do(self, what: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a run that began after this call, perhaps another caller's: equal `what`, equal work."""
        task = self._next.get(what)
        if task is None:
            task = self._next[what] = asyncio.ensure_future(self._begin(what, work))
        # Waited for, not awaited: one caller that leaves does not end it for the others.
        await asyncio.wait({task})
        return task.result()

    async def _begin(self, what: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        me, before = self._next[what], self._running.get(what)
        await (asyncio.sleep(0) if before is None else asyncio.wait({before}))
        del self._next[what]
        self._running[what] = me
        try:
            return await work()
        finally:
            if self._running[what] is me:
                del self._running[what]

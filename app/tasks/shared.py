"""Shared: what many ask for at the same time is done once for all of them, and never older than their asking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedWork(Generic[T]):
    """For each thing one work is under way, and one waits for it that serves everybody who came meanwhile."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[T]] = {}

    async def do(self, what: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """The result of work that began after this call, perhaps another caller's: `what` is the same for the same."""
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

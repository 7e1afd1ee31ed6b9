"""Tasks the application owns: a client that leaves does not end them, a stopping server waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._told_at = inf
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False
        """True once the server is stopping: nothing new may be started."""

    def stop(self) -> None:
        """Begin the time of `drain`, as the server was asked to stop, however long open answers take before it."""
        self.draining = True
        self._told_at = min(self._told_at, self._clock())

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task and hold it: the loop itself holds only a weak reference."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, seconds: float) -> None:
        """Wait for running tasks until so many seconds after the stop, then cancel the rest."""
        self.stop()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=max(0.0, self._told_at + seconds - self._clock()))
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

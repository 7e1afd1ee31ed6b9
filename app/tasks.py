"""Tasks the application owns: a client that leaves does not end them, a stopping server waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False
        """The server is stopping: nothing new may be started."""

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """The set's strong reference keeps the task alive: the loop itself holds only a weak one."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, seconds: float) -> None:
        """Waits for what runs, then cancels what is left."""
        self.draining = True
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

"""Background work: tasks that the application owns, and threads for work that takes more than a few milliseconds. Also
the limits of the heap, so that freed memory returns to the system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from math import inf
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS = 4
"""Number of threads. More would not help: the GIL lets one thread run at a time, except threads that count tokens."""
AT_ONCE = 2
"""Maximum number of pieces of one tenant's work in the pool, so that other tenants get threads."""
IDLE_SECONDS = 1.0
"""Time without work after which `afterwards` is called."""

_LIBRARY = CDLL(None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
LARGE = 1 << 20
"""Allocations of at least this many bytes get their own pages, which return to the system once freed."""
KEPT = 8 << 20
"""Free bytes at the end of a malloc arena that may stay with the process."""
ARENAS = 2
"""Number of malloc arenas: one for the event loop, one for the worker threads. Usually one thread runs at a time."""


class OwnedTasks:
    """Tasks that go on when the client disconnects. A stopping server waits for them."""

    def __init__(self) -> None:
        self._told_at = inf
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False
        """True once the server is stopping. Callers must then start no new work."""

    def stop(self) -> None:
        """Start the time limit of `drain`. Call it as soon as the server is asked to stop, before open answers end."""
        self.draining = True
        self._told_at = min(self._told_at, monotonic())

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task, and keep a reference to it: the event loop's weak reference does not keep it alive."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, seconds: float) -> None:
        """Wait for running tasks until `seconds` after the first `stop`, then cancel the rest."""
        self.stop()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=max(0.0, self._told_at + seconds - monotonic()))
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


class WorkerThreads:
    """Threads that tenants share. At most `at_once` pieces of work of each tenant are in the pool; more pieces wait."""

    def __init__(
        self,
        threads: int = THREADS,
        at_once: int = AT_ONCE,
        afterwards: Callable[[], object] | None = None,
        waited: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Call `afterwards` in a thread after `IDLE_SECONDS` without work. For each piece of work, call `waited` in
        its thread with the seconds that the piece waited for the thread."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="steno-work")
        self._at_once = at_once
        self._of_tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Semaphores by tenant. Each exists while a piece of the tenant's work waits or runs."""
        self._running = 0
        self._afterwards = afterwards
        self._waited = waited
        self._resting: asyncio.TimerHandle | None = None

    async def do(self, tenant: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result. If the caller is cancelled, work that has begun continues."""
        since = monotonic()
        turns = self._of_tenants.get(tenant)
        if turns is None:
            turns = self._of_tenants[tenant] = asyncio.Semaphore(self._at_once)
        await turns.acquire()

        def run() -> T:
            self._waited(monotonic() - since)
            return work()

        self._running += 1
        loop = asyncio.get_running_loop()
        piece = self._pool.submit(run)
        # The callback runs when the piece ends, because the caller may be cancelled earlier.
        piece.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end, turns))
        return await asyncio.wrap_future(piece)

    async def stop(self) -> None:
        """Wait for work that has begun. Call it after the last request."""
        if self._resting is not None:
            self._resting.cancel()
        await asyncio.to_thread(self._pool.shutdown)

    def _end(self, turns: asyncio.Semaphore) -> None:
        turns.release()
        self._running -= 1
        if self._afterwards is not None and not self._running:
            if self._resting is not None:
                self._resting.cancel()
            self._resting = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._pool.submit, self._afterwards)


# glibc keeps freed memory in its arenas. After a large block is freed, it allocates blocks of that size in arenas, too.
# So after a few bodies of megabytes a process would keep its maximum size. Without glibc, these functions do nothing.


def keep_heap_small() -> None:
    """Set the limits `LARGE`, `KEPT` and `ARENAS`. Call it before other threads start."""
    if hasattr(_LIBRARY, "mallopt"):
        for limit, value in ((_MMAP_THRESHOLD, LARGE), (_TRIM_THRESHOLD, KEPT), (_ARENA_MAX, ARENAS)):
            _LIBRARY.mallopt(limit, value)


def return_freed_memory() -> None:
    """Return freed memory to the system. Other threads may wait some milliseconds for memory meanwhile."""
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)

"""Work beside the requests: tasks that the application owns, work that many callers share, and a few threads for what
takes longer than a few milliseconds, whose memory goes back to the system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_int, c_size_t
from functools import cache
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

THREADS = 4
"""Number of threads. More would not do more: except for counting tokens, one of them runs at a time."""
AT_ONCE = 2
"""Maximum number of pieces of one tenant at once, so that threads are left for others."""
REST_SECONDS = 1.0
"""Seconds without work after which `afterwards` is done."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
LARGE = 1 << 20
"""Bytes from which a piece of memory has pages of its own, which go back as soon as it is freed."""
KEPT = 8 << 20
"""Bytes at the end of an arena that are kept for the next request."""
ARENAS = 2
"""Arenas: one for the event loop, one for the threads beside it, which take turns at the interpreter anyway."""


class OwnedTasks:
    """Tasks that a client which leaves does not end, and a stopping server waits for."""

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


class SingleFlight(Generic[T]):
    """Work by key: one run is under way, and one waits that serves all callers who came meanwhile."""

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


class Work:
    """Threads that tenants share: a tenant with a hundred pieces has at most two of them running or first in line."""

    def __init__(
        self,
        threads: int = THREADS,
        at_once: int = AT_ONCE,
        afterwards: Callable[[], object] | None = None,
        waited: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Call `afterwards` in a thread when there was nothing to do for a while, and `waited` in a thread with the
        seconds that each piece waited for it."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="steno-work")
        self._at_once = at_once
        self._of_tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Each tenant's turns, as long as a piece of its work waits or runs."""
        self._running = 0
        self._afterwards = afterwards
        self._waited = waited
        self._resting: asyncio.TimerHandle | None = None

    async def do(self, tenant: str, work: Callable[[], T]) -> T:
        """Return the work's result. A cancelled caller does not wait, but work that has begun goes on to its end."""
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
        # Behind the piece, not behind its caller, who may be cancelled.
        piece.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end, turns))
        return await asyncio.wrap_future(piece)

    async def stop(self) -> None:
        """Wait for work that has begun. Called after the requests are over."""
        if self._resting is not None:
            self._resting.cancel()
        await asyncio.to_thread(self._pool.shutdown)

    def _end(self, turns: asyncio.Semaphore) -> None:
        turns.release()
        self._running -= 1
        if self._afterwards is not None and not self._running:
            if self._resting is not None:
                self._resting.cancel()
            self._resting = asyncio.get_running_loop().call_later(REST_SECONDS, self._pool.submit, self._afterwards)


# glibc keeps what was freed for later, in an arena for each few threads, and takes ever larger pieces from there once
# one was freed. After a few bodies of megabytes a process would be as large for good as it was at its worst moment.
# With another C library nothing is done.


def keep_heap_small() -> None:
    """Limit the heap. Called before other threads begin."""
    if (tune := _c_function("mallopt", c_int, c_int)) is not None:
        tune(_MMAP_THRESHOLD, LARGE)
        tune(_TRIM_THRESHOLD, KEPT)
        tune(_ARENA_MAX, ARENAS)


def return_freed_memory() -> None:
    """Return freed memory to the system. Takes some milliseconds, in which other threads may wait for memory."""
    if (trim := _c_function("malloc_trim", c_size_t)) is not None:
        trim(0)


@cache
def _c_function(name: str, *arguments: Any) -> Callable[..., int] | None:
    found = getattr(CDLL(None), name, None)
    if found is not None:
        found.argtypes = arguments
    return found

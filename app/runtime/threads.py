"""Work that takes longer than a few milliseconds: a few threads do it beside the event loop, for everybody."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

THREADS = 4
"""Number of threads. More would not do more: except for counting tokens, one of them runs at a time."""
AT_ONCE = 2
"""Maximum number of pieces of one tenant at once, so that threads are left for others."""
REST_SECONDS = 1.0
"""Seconds without work after which `afterwards` is done."""


class _Piece(Struct, frozen=True, eq=False):
    work: Callable[[], Any]
    result: asyncio.Future[Any]
    since: float
    """Time at which the piece came, by the monotonic clock."""


class Work:
    """Threads in which tenants take turns: one with a hundred pieces does not hold up the others."""

    def __init__(
        self,
        threads: int = THREADS,
        at_once: int = AT_ONCE,
        afterwards: Callable[[], object] | None = None,
        waited: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Call `afterwards` in a thread when there was nothing to do for a while, and `waited` with the seconds that
        each piece waited for its thread."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="steno-work")
        self._free = threads
        self._at_once = at_once
        self._waiting: dict[str, deque[_Piece]] = {}
        """Waiting pieces by tenant; the tenant whose turn it is comes first."""
        self._running: Counter[str] = Counter()
        self._afterwards = afterwards
        self._waited = waited
        self._resting: asyncio.TimerHandle | None = None

    async def do(self, tenant: str, work: Callable[[], T]) -> T:
        """Return the work's result. A cancelled caller does not wait, but work that has begun goes on to its end."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(_Piece(work, result, monotonic()))
        self._begin()
        return await result

    async def stop(self) -> None:
        """Wait for work that has begun. Called after the requests are over."""
        if self._resting is not None:
            self._resting.cancel()
        await asyncio.to_thread(self._pool.shutdown)

    def _begin(self) -> None:
        while self._free:
            tenant = next((each for each in self._waiting if self._running[each] < self._at_once), None)
            if tenant is None:
                return
            pieces = self._waiting.pop(tenant)
            piece = pieces.popleft()
            if pieces:  # At the end: all others come before the next one.
                self._waiting[tenant] = pieces
            if not piece.result.cancelled():
                self._start(tenant, piece)

    def _start(self, tenant: str, piece: _Piece) -> None:
        self._free -= 1
        self._running[tenant] += 1
        self._waited(monotonic() - piece.since)
        loop = piece.result.get_loop()
        self._pool.submit(piece.work).add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._end, tenant, piece, done)
        )

    def _end(self, tenant: str, piece: _Piece, done: Future[Any]) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if not piece.result.cancelled():
            if (error := done.exception()) is not None:
                piece.result.set_exception(error)
            else:
                piece.result.set_result(done.result())
        self._begin()
        if self._afterwards is not None and not self._running:
            self._rest(piece.result.get_loop(), self._afterwards)

    def _rest(self, loop: asyncio.AbstractEventLoop, afterwards: Callable[[], object]) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = loop.call_later(REST_SECONDS, lambda: self._pool.submit(afterwards))

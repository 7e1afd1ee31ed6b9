"""The guarded call: no caller waits longer for the database than it said it would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import structlog

from app.runtime.bounded import Repeats
from app.store.errors import DATABASE_ERRORS, Contended, StatementRefused, StoreUnavailable, describe, unavailable

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]
"""Begun each time it is called."""

log = structlog.get_logger("steno.store")

FAILURES_TO_OPEN = 3
PROBE_SECONDS = 1.0
SLICES = 10
"""Parts in which a call's time is measured: each ends late where the loop is held up."""
REMEDY = "Start the database, or correct storage.url; `steno doctor` tries it. Requests go on without it meanwhile."


class Guard:
    """Bounded calls, and a breaker that spares requests the wait while the database is away.

    A call that takes too long is abandoned, not cancelled: cancelling makes asyncpg open a second connection to tell
    the server, and on a silent network that one never returns.
    """

    def __init__(
        self, probe: Work[object], *, open_seconds: float = 5.0, opened: Callable[[], object] = lambda: None
    ) -> None:
        self._probe = probe
        self._opened = opened
        self._open_seconds = open_seconds
        self._failures = 0
        self._answers = 0
        self._opened_at = 0.0
        self._refused = 0
        """Calls, since it was set aside."""
        self._abandoned: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._repeats = Repeats()
        self.reason: str | None = None
        """Why the breaker is open; None while it is closed."""

    async def call(self, work: Work[T], timeout: float, late: Callable[[T], Awaitable[object]] | None = None) -> T:  # noqa: ASYNC109 - not a cancellation
        """Bounded, and refused at once while the breaker is open. `late` gets a result that nobody waited for."""
        if self.reason is not None:
            self._refused += 1
            raise StoreUnavailable(self.reason)
        answers_before = self._answers
        try:
            result = await self.bounded(work, timeout, late)
        except (StatementRefused, Contended):
            self._count_answer()
            raise
        except StoreUnavailable as error:
            # If others were answered meanwhile it was the queue in front of the database, as when 200 requests come
            # at once: this one goes on without the store, the next one need not.
            if self._answers == answers_before:
                self._count_failure(error.reason)
            raise
        self._count_answer()
        return result

    async def bounded(self, work: Work[T], timeout: float, late: Callable[[T], Awaitable[object]] | None = None) -> T:  # noqa: ASYNC109 - not a cancellation
        """Bounded only: for calls that may take longer than a request waits."""
        task = asyncio.ensure_future(work())
        try:
            finished = await _finishes(task, timeout)
        except asyncio.CancelledError:
            # The caller's client left. The call may have ended in this very moment: its result has nobody else.
            self._abandon(task, late)
            raise
        if not finished:
            self._abandon(task, late)
            raise StoreUnavailable(f"the database did not answer within {timeout * 1000:.0f} ms")
        try:
            return task.result()
        except DATABASE_ERRORS as error:
            raise unavailable(error) from error

    async def close(self) -> None:
        """Stop probing."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})

    async def abandoned_calls(self, seconds: float) -> None:
        """Give the calls nobody waits for any more time to end; those on a silent network end with its connections."""
        if self._abandoned:
            await asyncio.wait(set(self._abandoned), timeout=seconds)

    def _abandon(self, task: asyncio.Task[T], late: Callable[[T], Awaitable[object]] | None) -> None:
        async def outlive() -> None:
            await asyncio.wait({task})
            if task.cancelled():
                return
            if error := task.exception():
                log.warning("abandoned database call failed", reason=describe(error))
            elif late is not None:
                await late(task.result())

        keeper = asyncio.ensure_future(outlive())
        self._abandoned.add(keeper)
        keeper.add_done_callback(self._forget)

    def _forget(self, keeper: asyncio.Task[None]) -> None:
        self._abandoned.discard(keeper)
        if not keeper.cancelled() and (error := keeper.exception()):
            log.warning("cleaning up after a database call failed", reason=describe(error))

    def _count_answer(self) -> None:
        self._answers += 1
        self._failures = 0

    def _count_failure(self, reason: str) -> None:
        self._failures += 1
        if self._failures < FAILURES_TO_OPEN or self.reason is not None:
            return
        self.reason, self._opened_at, self._refused = reason, monotonic(), 0
        log.warning("database away", reason=reason, remedy=REMEDY)
        self._probing = asyncio.ensure_future(self._probe_until_well())

    async def _probe_until_well(self) -> None:
        """No request pays for finding out."""
        self._opened()
        while self.reason is not None:
            await asyncio.sleep(self._open_seconds)
            try:
                await self.bounded(self._probe, PROBE_SECONDS)
            except StoreUnavailable as error:
                self.reason = error.reason
            except Exception:  # Otherwise the breaker would be open for ever.
                if (times := self._repeats.again("probe")) is not None:
                    log.exception("probing the database failed", times=times)
            else:
                self.reason = None
                self._repeats.over("probe")
                self._count_answer()
                log.info("database back", refused=self._refused, seconds=round(monotonic() - self._opened_at, 1))


async def _finishes(task: asyncio.Future[T], timeout: float) -> bool:  # noqa: ASYNC109 - not a cancellation
    """Whether it ends within so many seconds in which the loop attends to it: what else the loop is held up with says
    nothing about the database, and a call needs the loop several times."""
    for _ in range(SLICES):
        done, _ = await asyncio.wait({task}, timeout=timeout / SLICES)
        if done:
            return True
    return False

"""Readiness: connected and migrated, at once or as soon as the database appears."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from app.runtime.bounded import Repeats
from app.store.errors import DatabaseUnusable, StoreUnavailable
from app.store.guard import REMEDY

log = structlog.get_logger("steno.store")

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


class Readiness:
    """Tries to connect until it works. A database that is there and unusable is only an error at the first try."""

    def __init__(self, connect: Callable[[], Awaitable[object]]) -> None:
        self._connect = connect
        self._retrying: asyncio.Task[None] | None = None
        self._repeats = Repeats()
        self.ready = asyncio.Event()
        self.reason: str | None = "not started"

    async def start(self) -> None:
        """Raise DatabaseUnusable if waiting would not help; otherwise return, connected or not."""
        try:
            await self._try()
        except StoreUnavailable as error:
            self._note(error.reason)
            self._retrying = asyncio.ensure_future(self._retry())

    async def stop(self) -> None:
        """Tries no more; an attempt under way is the guard's."""
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait({self._retrying})

    async def _try(self) -> None:
        await self._connect()
        self.reason = None
        self.ready.set()

    async def _retry(self) -> None:
        pause, began = FIRST_PAUSE_SECONDS, monotonic()
        while not self.ready.is_set():
            await sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                await self._try()
            except StoreUnavailable as error:
                self._note(error.reason)
            except DatabaseUnusable as error:
                # Requests are being served by now: go on without a store, and say why.
                self._note(str(error))
            except Exception:
                if (times := self._repeats.again("connect")) is not None:
                    log.exception("connecting to the database failed", times=times)
        log.info("database ready", seconds=round(monotonic() - began, 1))

    def _note(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("database away", reason=reason, remedy=REMEDY)
        self.reason = reason

"""Tidying: what nobody needs any more is removed. Nobody waits for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from app.store import lease, remains, retention
from app.store.calls import Calls, P, Query
from app.store.clock import DAY_MS
from app.store.errors import StoreUnavailable

log = structlog.get_logger("steno.store")

START_SECONDS = 10.0
EVERY_SECONDS = 3_600.0
PAUSE_SECONDS = 0.1
"""Between two transactions."""
ROWS = 500
REMOVED_ROWS = 100
"""Rows of conversations and the like that are removed at once: each has rows in other tables."""


class Tidying:
    """Tasks that tidy. Each raises StoreUnavailable, and may be done by several replicas side by side."""

    def __init__(self, calls: Calls, retention_days: int | None) -> None:
        self._calls = calls
        self.kept_ms = None if retention_days is None else retention_days * DAY_MS

    async def remove_old_leases(self) -> None:
        """Remove leases that ended a day ago."""
        await self._repeat(lease.remove_old_leases, ROWS)

    async def remove_unused(self) -> None:
        """Delete rows that no request used for `retention_days`."""
        await self._repeat(retention.date_chunks, ROWS)
        if self.kept_ms is None:
            return
        for remove in retention.REMOVALS:
            await self._repeat(remove, self.kept_ms, REMOVED_ROWS)

    async def clear_remains(self) -> None:
        """Clear what SQLite's files still hold of all that was deleted."""
        await remains.empty_log(self._calls)

    async def run(self) -> None:
        """Tidy soon after the start, then about once an hour."""
        await self._calls.readiness.ready.wait()
        await asyncio.sleep(START_SECONDS * random.uniform(0.5, 1.5))
        while True:
            for tidy in (self.remove_old_leases, self.remove_unused, self.clear_remains):
                await _carry_out(tidy)
            await asyncio.sleep(EVERY_SECONDS * random.uniform(0.5, 1.5))

    async def _repeat(self, change: Query[P, int], *arguments: P.args, **options: P.kwargs) -> None:
        """Make a change a few rows at a time, so that nobody waits long for the write lock of SQLite; until there are
        none left."""
        while await self._calls.task_change(change, *arguments, **options):  # noqa: ASYNC110 - not a poll
            await asyncio.sleep(PAUSE_SECONDS)


async def _carry_out(tidy: Callable[[], Awaitable[None]]) -> None:
    name = getattr(tidy, "__name__", "")
    try:
        await tidy()
    except StoreUnavailable as error:
        log.warning("tidying put off", task=name, reason=error.reason)
    except Exception:
        log.exception("tidying put off", task=name)

"""Tidying: what nobody needs any more is removed, what no search finds yet is indexed. Nobody waits for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from app.store import lease, remains, retention, summary_index
from app.store.calls import Calls, P, Query
from app.store.clock import DAY_MS
from app.store.errors import StoreUnavailable
from app.store.guard import Work

log = structlog.get_logger("steno.store")

START_SECONDS = 10.0
CLEAR_SECONDS = 5.0
"""Time from a deletion until its remains are cleared, so that several are cleared at once."""
CLEAR_PAUSE_SECONDS = 60.0
REMEDY = (
    "Make the role the owner of tables and database, or rewrite what is left in a quiet hour (VACUUM FULL, pg_repack)."
    " docs/operations.md says what the log needs."
)
EVERY_SECONDS = 3_600.0
PAUSE_SECONDS = 0.1
"""Between two transactions."""
ROWS = 500
INDEXED_ROWS = 100
REMOVED_ROWS = 100
"""Rows of conversations and the like that are removed at once: each has rows in other tables."""


class Tidying:
    """Tasks that tidy. Each raises StoreUnavailable, and may be done by several replicas side by side."""

    def __init__(self, calls: Calls, retention_days: int | None) -> None:
        self._calls = calls
        self.kept_ms = None if retention_days is None else retention_days * DAY_MS
        self.is_indexed = False
        """Whether a whole look at all summaries found none that was not indexed."""
        self._deleted = asyncio.Event()

    async def index_summaries(self) -> None:
        """Index the summaries of an earlier release, which no search finds; a few at a time, one replica at a time."""
        if self.is_indexed:
            return
        last: summary_index.Key | None = None
        indexed = 0
        while True:
            try:
                last, added = await self._calls.task_change(summary_index.index_some, last, INDEXED_ROWS)
            except summary_index.Busy:
                return
            indexed += added
            if last is None:
                self.is_indexed = not indexed
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def remove_old_leases(self) -> None:
        """Remove leases that ended a day ago."""
        await self._repeat(lease.remove_old_leases, ROWS)

    async def remove_unused(self) -> None:
        """Remove what nobody used for as long as things are kept."""
        await self._repeat(retention.date_chunks, ROWS)
        if self.kept_ms is None:
            return
        for remove in retention.REMOVALS:
            if await self._repeat(remove, self.kept_ms, REMOVED_ROWS):
                self._deleted.set()

    async def clear_remains(self) -> None:
        """Clear what SQLite's files still hold of all that was deleted, and on PostgreSQL of what was since the last
        time."""
        address = self._calls.database.address
        if address.kind != "postgresql":
            await remains.merge_indexes(self._calls)
            await remains.empty_log(self._calls)
        elif self._deleted.is_set():
            self._deleted.clear()
            began = monotonic()
            if left := await remains.write_anew(address.direct or address.dsn):
                log.warning("remains of deleted rows left", left=left, remedy=REMEDY)
            else:
                log.info("remains of deleted rows cleared", seconds=round(monotonic() - began, 1))

    def clear_soon(self) -> None:
        """Clear PostgreSQL's remains in some seconds: it takes longer than who erases should wait."""
        self._deleted.set()

    async def run_clearing(self) -> None:
        """Clear PostgreSQL's remains soon after rows were deleted, at most once a minute."""
        while True:
            await self._deleted.wait()
            await asyncio.sleep(CLEAR_SECONDS)
            await _carry_out(self.clear_remains)
            await asyncio.sleep(CLEAR_PAUSE_SECONDS)

    async def run(self) -> None:
        """Tidy soon after the start, then about once an hour."""
        await self._calls.readiness.ready.wait()
        await asyncio.sleep(START_SECONDS * random.uniform(0.5, 1.5))
        while True:
            tasks = (*(self.remove_old_leases, self.remove_unused, self.index_summaries, self.clear_remains),)
            for tidy in tasks:
                await _carry_out(tidy)
            await asyncio.sleep(EVERY_SECONDS * random.uniform(0.5, 1.5))

    async def _repeat(self, change: Query[P, int], *arguments: P.args, **options: P.kwargs) -> int:
        return await _until_none(lambda: self._calls.task_change(change, *arguments, **options))


async def _carry_out(tidy: Callable[[], Awaitable[None]]) -> None:
    name = getattr(tidy, "__name__", "")
    try:
        await tidy()
    except StoreUnavailable as error:
        log.warning("tidying put off", task=name, reason=error.reason)
    except Exception:
        log.exception("tidying put off", task=name)


async def _until_none(change: Work[int]) -> int:
    """Make a change a few rows at a time, so that nobody waits long for the write lock of SQLite; until there are none
    left. Number of rows that were changed."""
    rows = 0
    while changed := await change():
        rows += changed
        await asyncio.sleep(PAUSE_SECONDS)
    return rows

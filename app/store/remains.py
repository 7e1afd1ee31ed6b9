"""Remains: what SQLite keeps in its files of deleted rows. Nobody reads them, but whoever has the files can.

SQLite overwrites pages that it frees (`secure_delete`, see `database`). That leaves the log of changes (WAL), which
holds what pages were before, and the full text indexes, which only note that a row is gone until they are merged.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.calls import Calls

SEARCHES = ("summary_search", "message_search")
PAGES = 250
"""Pages merged in one transaction: others wait to write meanwhile."""


async def merge_indexes(calls: Calls) -> None:
    """Merge SQLite's search indexes, so that they hold no words of what was deleted."""
    if calls.database.address.path is None:
        return
    for search in SEARCHES:
        first = True
        while await calls.change_at_once(_merge_some, search, first=first):
            first = False


async def empty_log(calls: Calls) -> None:
    """Empty SQLite's log, so that it holds nothing of what was deleted. Waits some seconds for those who read."""
    if calls.database.address.path is not None:
        await calls.at_once(_cut_log)


async def _merge_some(connection: AsyncConnection, search: str, *, first: bool) -> bool:
    """A step of merging all parts of an index into one, and whether there are more. `first`: of the first step. Needs a
    transaction."""
    changes = select(func.total_changes())
    before = (await connection.execute(changes)).scalar_one()
    pages = -PAGES if first else PAGES
    await connection.exec_driver_sql(f"INSERT INTO {search}({search}, rank) VALUES('merge', {pages})")
    after = (await connection.execute(changes)).scalar_one()
    return bool(after - before > 1)  # The command is one itself.


async def _cut_log(connection: AsyncConnection) -> None:
    """Write the log into the file, and cut it. Needs to be no transaction."""
    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

"""Remains: what SQLite keeps in its files of rows that were deleted. Nobody reads them, but whoever has the files can.

Pages that are freed are overwritten (`secure_delete`, see `database`). That leaves the log of changes (WAL), which
holds what pages were before, and the full text indexes, which only note that a row is gone until they are merged.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

SEARCHES = ("summary_search", "message_search")
PAGES = 250
"""Pages merged in one transaction: others wait to write meanwhile."""


async def merge_some(connection: AsyncConnection, search: str, *, first: bool) -> bool:
    """A step of merging all parts of an index into one, and whether there are more. `first`: of the first step. Needs a
    transaction."""
    changes = select(func.total_changes())
    before = (await connection.execute(changes)).scalar_one()
    pages = -PAGES if first else PAGES
    await connection.exec_driver_sql(f"INSERT INTO {search}({search}, rank) VALUES('merge', {pages})")
    after = (await connection.execute(changes)).scalar_one()
    return bool(after - before > 1)  # The command is one itself.


async def empty_log(connection: AsyncConnection) -> None:
    """Write the log into the file, and cut it. Waits some seconds for those who read. Needs to be no transaction."""
    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

"""Remains: what SQLite keeps in its files of deleted rows. Nobody reads them, but whoever has the files can.

SQLite overwrites pages that it frees (`secure_delete`, see `database`). That leaves the log of changes (WAL), which
holds what pages were before.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.calls import Calls


async def empty_log(calls: Calls) -> None:
    """Empty SQLite's log, so that it holds nothing of what was deleted. Waits some seconds for those who read."""
    if calls.database.address.path is not None:
        await calls.at_once(_cut_log)


async def _cut_log(connection: AsyncConnection) -> None:
    """Write the log into the file, and cut it. Needs to be no transaction."""
    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

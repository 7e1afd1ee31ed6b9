"""The standby: a copy that follows the database, for reads of the REST API and the inspector.

It is read only where it has all that the database had when the read began: what one call stored, at whichever replica,
the next one sees. The database's place in its own log is asked for that, which costs it less than any read.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.errors import StoreUnavailable
from app.store.guard import Guard

log = structlog.get_logger("steno.store")

FOLLOW_SECONDS = 0.3
"""Longest wait for it to have what is read: longer than a commit may be on its way that nobody waited for."""
LOOK_SECONDS = 0.01
ANSWER_SECONDS = 1.0
"""Longest wait for its answer to what it has."""
AVOIDED_SECONDS = 5.0

_POSITION = text("SELECT pg_current_wal_insert_lsn()::text")
# Null where it is no standby: after a failover the address may lead to the database itself, which has everything.
_HAS = text("SELECT coalesce(pg_last_wal_replay_lsn() >= CAST(:position AS text)::pg_lsn, true)")


class Standby:
    """A standby, and whether it is of use now."""

    def __init__(self, database: Database, guard: Guard) -> None:
        self.database = database
        self._guard = guard
        self._avoided_until = 0.0
        self._is_avoided = False

    async def has(self, position: str) -> bool:
        """Whether it has the database's log up to that place, at once or in a moment."""
        if monotonic() < self._avoided_until:
            return False
        try:
            has = await self._guard.bounded(lambda: self._catches_up(position), ANSWER_SECONDS)
        except StoreUnavailable as error:
            self.avoid(error.reason)
            return False
        if not has:
            self.avoid("the standby is behind")
        elif self._is_avoided:
            self._is_avoided = False
            log.info("standby read again")
        return has

    def avoid(self, reason: str) -> None:
        """Read from the database for a while."""
        self._avoided_until = monotonic() + AVOIDED_SECONDS
        if not self._is_avoided:
            self._is_avoided = True
            log.warning("standby not read", reason=reason)

    async def _catches_up(self, position: str) -> bool:
        ends = monotonic() + FOLLOW_SECONDS
        async with self.database.reading() as connection:
            while not (await connection.execute(_HAS, {"position": position})).scalar_one():
                if monotonic() > ends:
                    return False
                await asyncio.sleep(LOOK_SECONDS)
        return True


async def position_of(connection: AsyncConnection) -> str:
    """Place in the database's log up to which everything is there."""
    return str((await connection.execute(_POSITION)).scalar_one())

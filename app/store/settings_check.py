"""The check of the server's secret: a digest in the database, by which another secret is refused.

The secret is the key of all digests in the database. With another one nothing stored would be found, and nothing would
say so.
"""

from __future__ import annotations

from hashlib import blake2b

from sqlalchemy import Connection, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import insert_into
from app.store.tables import settings_check

NAME = "secret"
MADE_WITH_ANOTHER = "was made with another secret, so that nothing it holds would be found"
WAYS_OUT = (
    "Give Steno the old secret (STENO_SECRET, or the file steno.secret beside a SQLite database). Or erase what was "
    "made with it: stop every Steno that uses the database, then empty it (docs/operations.md#another-secret)."
)


def digest_of(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=b"steno-check").digest()


async def read_digest(connection: AsyncConnection) -> bytes | None:
    """The digest of the database's secret; None if there is none, or not even a table for it."""
    return await connection.run_sync(_read_digest)


def _read_digest(connection: Connection) -> bytes | None:
    if not inspect(connection).has_table(settings_check.name):
        return None
    return connection.scalar(select(settings_check.c.digest).where(settings_check.c.name == NAME))


async def keep_digest(connection: AsyncConnection, digest: bytes) -> bool:
    """Keep the digest; False if there is one already. Needs a transaction."""
    statement = insert_into(connection, settings_check).values(name=NAME, digest=digest)
    return bool((await connection.execute(statement.on_conflict_do_nothing())).rowcount)


def keep_first_digest(connection: Connection, digest: bytes) -> None:
    """Keep the digest in tables that were just made."""
    connection.execute(insert(settings_check).values(name=NAME, digest=digest))

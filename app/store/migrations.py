"""Migrations: bring the schema to the newest revision, with one process at it at a time.

Imported only when needed: alembic costs a third of a second and is used once.
"""

from __future__ import annotations

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from app.store import release_0_1
from app.store.database import Database
from app.store.errors import DATABASE_ERRORS, MigrationFailed, describe_refusal, is_unreachable
from app.store.files import close_to_others
from app.store.release_0_1 import Decryption, Export
from app.store.schema import alone, create, current, newest, refuse_unknown, scripts


async def upgrade(database: Database, decryption: Decryption | None = None, export: Export | None = None) -> str | None:
    """Migrate, and return the revision before; None for an empty database. Without `decryption` a database with
    encrypted texts is refused, and without `export` one with rows to export.

    Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not.
    """
    async with alone(database) as connection:
        before = await current(connection)
        refuse_unknown(before)
        try:
            if before is None:
                await connection.run_sync(create)
            else:
                if before == release_0_1.REVISION:
                    await connection.run_sync((decryption or Decryption()).run)
                    await connection.run_sync((export or Export()).run)
                await connection.run_sync(_run)
        except (*DATABASE_ERRORS, CommandError) as error:
            if is_unreachable(error):
                raise
            raise MigrationFailed(f"Migrating from {before} to {newest()} failed: {describe_refusal(error)}") from error
    if (path := database.address.path) is not None:
        close_to_others(path)  # Not before: what is no database of ours stays as it is.
    return before


async def run_alone(database: Database, work: Callable[[Connection], None]) -> None:
    """Alembic's own commands, under the lock of `upgrade`; raises as that does."""
    async with alone(database) as connection:
        await connection.run_sync(work)


def _run(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

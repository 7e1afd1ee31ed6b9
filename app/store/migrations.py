"""Migrations: bring the schema to the newest revision, with one process at it at a time.

Imported only when needed: alembic costs a third of a second and is used once.
"""

from __future__ import annotations

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.errors import DATABASE_ERRORS, MigrationFailed, SchemaTooNew, describe_refusal, is_unreachable
from app.store.files import close_to_others
from app.store.schema import alone, scripts


class Migrated(Struct, frozen=True):
    """Revisions before and after a migration; `before` is None for an empty database."""

    before: str | None
    after: str


async def upgrade(database: Database, revision: str = "head") -> Migrated:
    """Migrate. Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not."""
    async with alone(database) as connection:
        migrated = await _upgrade_under_lock(connection, revision)
    if (path := database.address.path) is not None:
        close_to_others(path)  # Not before: what is no database of ours stays as it is.
    return migrated


async def run_alone(database: Database, work: Callable[[Connection], None]) -> None:
    """Alembic's own commands, under the lock of `upgrade`; raises as that does."""
    async with alone(database) as connection:
        await connection.run_sync(work)


async def current_revision(connection: AsyncConnection) -> str | None:
    """Revision of the schema; None for an empty database."""
    return await connection.run_sync(_current)


def head_revision() -> str:
    """The newest that this release knows."""
    return str(_scripts().get_current_head())


def refuse_newer(revision: str | None) -> None:
    """Raise SchemaTooNew where a later release has migrated the database."""
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaTooNew(
            f"The database is at revision {revision}; this release of Steno knows none after {head_revision()}. "
            "Start the release that migrated it, or a newer one."
        )


async def _upgrade_under_lock(connection: AsyncConnection, revision: str) -> Migrated:
    before = await current_revision(connection)
    refuse_newer(before)
    try:
        await connection.run_sync(_run, revision)
    except (*DATABASE_ERRORS, CommandError) as error:
        if is_unreachable(error):
            raise
        goal = head_revision() if revision == "head" else revision
        raise MigrationFailed(f"Migrating from {before} to {goal} failed: {describe_refusal(error)}") from error
    after = await current_revision(connection)
    return Migrated(before, str(after))


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _run(connection: Connection, revision: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()))
    return config

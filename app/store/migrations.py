"""Migrations: bring the schema to the newest revision, with one process at it at a time.

Imported only when needed: alembic costs a third of a second and is used once.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from msgspec import Struct
from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.errors import (
    DATABASE_ERRORS,
    AccessRefused,
    DatabaseURLError,
    MigrationFailed,
    SchemaTooNew,
    StoreUnavailable,
    describe,
    describe_refusal,
    is_closed_to_us,
    is_configuration,
    is_unreachable,
)
from app.store.files import PRIVATE_FILE, close_to_others, make_file, make_folder
from app.store.revisions import scripts

# The two-number form of the advisory lock, so that it cannot meet a lease's.
_LOCK = (0x57E0, 0x0001)
_FILE_LOCK_POLL_SECONDS = 0.05


class Migrated(Struct, frozen=True):
    """Revisions before and after a migration; `before` is None for an empty database."""

    before: str | None
    after: str


async def upgrade(database: Database, revision: str = "head") -> Migrated:
    """Migrate. Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not."""
    async with _alone(database) as connection:
        migrated = await _upgrade_under_lock(connection, revision)
    if (path := database.address.path) is not None:
        close_to_others(path)  # Not before: what is no database of ours stays as it is.
    return migrated


async def run_alone(database: Database, work: Callable[[Connection], None]) -> None:
    """Alembic's own commands, under the lock of `upgrade`; raises as that does."""
    async with _alone(database) as connection:
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


def translated(error: BaseException) -> StoreUnavailable | AccessRefused | DatabaseURLError:
    """The reason why the database could not be opened."""
    if is_unreachable(error) and not is_closed_to_us(error):
        return StoreUnavailable(describe(error))
    if is_configuration(error):
        return DatabaseURLError(f"The database URL cannot be used: {describe_refusal(error)}")
    return AccessRefused(f"The database cannot be opened: {describe_refusal(error)}")


@asynccontextmanager
async def _alone(database: Database) -> AsyncIterator[AsyncConnection]:
    """One transaction, while no other process migrates."""
    try:
        async with _only_process(database), database.migrating() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(select(func.pg_advisory_xact_lock(*_LOCK)))
            yield connection
    except DATABASE_ERRORS as error:
        raise translated(error) from error


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


@asynccontextmanager
async def _only_process(database: Database) -> AsyncIterator[None]:
    """A file lock for SQLite: its own lock does not cover switching to WAL. PostgreSQL is locked in the transaction."""
    path = database.address.path
    if path is None:
        yield
        return
    with _open_lock(path) as file:
        while not _locked(file.fileno()):  # noqa: ASYNC110 - no event shows what another process does
            await asyncio.sleep(_FILE_LOCK_POLL_SECONDS)
        make_file(path)
        yield


def _open_lock(database: Path) -> TextIO:
    try:
        make_folder(database.parent)
        return open(f"{database}.migrate.lock", "w", opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))
    except OSError as error:
        raise AccessRefused(f"The database file {database} cannot be made: {error.strerror}") from error


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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

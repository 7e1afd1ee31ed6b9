"""The schema: how far a database is migrated, and the tables of an empty one, made as the newest revision has them.

Without alembic, which costs a third of a second and 7 MB: it is for a database of an earlier release.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection

import app
from app.store.database import Database
from app.store.errors import (
    DATABASE_ERRORS,
    AccessRefused,
    DatabaseURLError,
    MigrationFailed,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
    describe,
    describe_refusal,
    is_closed_to_us,
    is_configuration,
    is_unreachable,
)
from app.store.files import PRIVATE_FILE, close_to_others, make_file, make_folder
from app.store.settings_check import keep_first_digest
from app.store.tables import metadata

_TABLE = "alembic_version"
# The two-number form of the advisory lock, so that it cannot meet a lease's.
_LOCK = (0x57E0, 0x0001)
_FILE_LOCK_POLL_SECONDS = 0.05


def scripts() -> Path:
    """The folder of the migrations: in a wheel inside the package, in a checkout beside it."""
    package = Path(app.__file__).parent
    packaged = package / "alembic"
    return packaged if packaged.is_dir() else package.parent / "alembic"


@cache
def revisions() -> tuple[str, ...]:
    """Revisions that this release knows, the oldest first: what the files are called begins with them."""
    return tuple(sorted(path.name.partition("_")[0] for path in (scripts() / "versions").glob("[0-9]*_*.py")))


def newest() -> str:
    return revisions()[-1]


async def current(connection: AsyncConnection) -> str | None:
    """Revision of the schema; None for an empty database."""
    return await connection.run_sync(_current)


def refuse_unknown(revision: str | None) -> None:
    """Raise SchemaTooNew where a later release has migrated the database, SchemaTooOld where migrations are missing."""
    if revision is None or revision in revisions():
        return
    if revision < revisions()[0]:
        raise SchemaTooOld(
            f"The database is at revision {revision}; this release of Steno migrates from {revisions()[0]} on. Run "
            "`steno migrate` of release 0.1 at commit 21db7e6e first, and then of this one."
        )
    raise SchemaTooNew(
        f"The database is at revision {revision}; this release of Steno knows none after {newest()}. "
        "Start the release that migrated it, or a newer one."
    )


async def is_newest(database: Database) -> bool:
    """Whether there is nothing to migrate. Also False where that cannot be known.

    Raises `StoreUnavailable` where the database cannot be reached: to try to migrate it would only take as long again.
    """
    path = database.address.path
    if database.address.kind == "memory" or (path is not None and not path.exists()):
        return False
    try:
        async with database.reading() as connection:
            return await current(connection) == newest()
    except DATABASE_ERRORS as error:
        if is_unreachable(error):
            raise StoreUnavailable(describe(error)) from error
        return False


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {_TABLE}")).scalar()  # noqa: S608 - a constant


async def make(database: Database, secret_digest: bytes | None = None) -> bool:
    """Make the tables in an empty database, which belongs to this secret then; False if there is one of them already.

    Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not.
    """
    async with alone(database) as connection:
        try:
            is_made = await connection.run_sync(_make, secret_digest)
        except DATABASE_ERRORS as error:
            if is_unreachable(error):
                raise
            raise MigrationFailed(f"The tables could not be made: {describe_refusal(error)}") from error
    if is_made and (path := database.address.path) is not None:
        close_to_others(path)
    return is_made


def _make(connection: Connection, secret_digest: bytes | None) -> bool:
    if {_TABLE, *metadata.tables}.intersection(inspect(connection).get_table_names()):
        return False
    create(connection)
    if secret_digest is not None:
        keep_first_digest(connection, secret_digest)
    return True


def create(connection: Connection) -> None:
    """Make the tables, and note the newest revision as alembic does."""
    metadata.create_all(connection, checkfirst=False)
    noted = Table(
        _TABLE, MetaData(), Column("version_num", String(32)), PrimaryKeyConstraint("version_num", name=f"{_TABLE}_pkc")
    )
    noted.create(connection, checkfirst=False)
    connection.execute(insert(noted).values(version_num=newest()))


def translated(error: BaseException) -> StoreUnavailable | AccessRefused | DatabaseURLError:
    """The reason why the database could not be opened."""
    if is_unreachable(error) and not is_closed_to_us(error):
        return StoreUnavailable(describe(error))
    if is_configuration(error):
        return DatabaseURLError(f"The database URL cannot be used: {describe_refusal(error)}")
    return AccessRefused(f"The database cannot be opened: {describe_refusal(error)}")


@asynccontextmanager
async def alone(database: Database) -> AsyncIterator[AsyncConnection]:
    """One transaction, while no other process migrates."""
    try:
        async with _only_process(database), database.migrating() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(select(func.pg_advisory_xact_lock(*_LOCK)))
            yield connection
    except DATABASE_ERRORS as error:
        raise translated(error) from error


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

"""The schema: creating the tables, migrating them, and checking the server's secret.

An empty database gets the tables of the newest revision. Alembic takes a third of a second and 7 MB to import, so it is
imported only to migrate a database of an earlier release. One process at a time creates or migrates tables.

`settings_check` has a digest of the server's secret. The secret is the key of all digests in the database: with another
secret Steno would find none of the stored rows, without an error. So Steno refuses to start with another secret.

Only the user who runs Steno may read the files of a SQLite database, because summaries are plain text.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

import app
from app.store.engine import DATABASE_ERRORS, Database, DatabaseUnusable, describe_refusal, is_away, unopened
from app.store.tables import insert_into, metadata, settings_check

log = structlog.get_logger("steno.store")

MADE_WITH_ANOTHER = "was made with another secret, so that nothing it holds would be found"
WAYS_OUT = (
    "Give Steno the old secret (STENO_SECRET, or the file steno.secret beside a SQLite database). Or erase what was "
    "made with it: stop every Steno that uses the database, then empty it (docs/operations.md#another-secret)."
)
REVISIONS = ("0029", "0030")
"""Revisions that this release can use or migrate, the oldest first."""
NEWEST = REVISIONS[-1]
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
OTHERS = 0o077
"""Mode bits of all users but the owner."""

_VERSION = "alembic_version"
_SECRET = "secret"  # noqa: S105 - the name of a row
# The key of this advisory lock has two numbers, and the keys of the leases' locks have one, so they differ.
_LOCK = (0x57E0, 0x0001)
_FILE_LOCK_POLL_SECONDS = 0.05


def scripts() -> Path:
    """Return the folder of the migrations: inside the package in a wheel, beside the package in a checkout."""
    package = Path(app.__file__).parent
    packaged = package / "alembic"
    return packaged if packaged.is_dir() else package.parent / "alembic"


async def current(connection: AsyncConnection) -> str | None:
    """Return the revision of the schema; None for an empty database."""
    if not await _has_table(connection, _VERSION):
        return None
    version: str | None = await connection.scalar(sa.text(f"SELECT version_num FROM {_VERSION}"))  # noqa: S608 - a constant
    return version


async def _has_table(connection: AsyncConnection, name: str) -> bool:
    return await connection.run_sync(lambda sync: sa.inspect(sync).has_table(name))


def refuse_unknown(revision: str | None) -> None:
    """Raise DatabaseUnusable if this release can neither use the revision nor migrate from it."""
    if revision is not None and revision not in REVISIONS:
        raise DatabaseUnusable(
            f"The database is at revision {revision}; this release of Steno migrates from {REVISIONS[0]} on, and knows "
            f"none after {NEWEST}. If it is older, run `steno migrate` of release 0.1 at commit 21db7e6e first. If it "
            "is newer, start the release that migrated it, or a later one."
        )


async def is_newest(database: Database) -> bool:
    """Whether the database has the newest revision. False also if its revision cannot be read.

    Raises `StoreUnavailable` if the database cannot be reached, because an attempt to migrate would fail, too.
    """
    path = database.address.path
    if database.address.kind == "memory" or (path is not None and not path.exists()):
        return False
    try:
        async with database.reading() as connection:
            return await current(connection) == NEWEST
    except DATABASE_ERRORS as error:
        if is_away(error, at_start=True):
            raise unopened(error) from error
        return False


async def upgrade(
    database: Database, export: Path | None = None, secret_digest: bytes | None = None, *, binds: bool = False
) -> tuple[str | None, bool]:
    """Migrate, or create the tables in an empty database. Return the old revision (None if the database was empty), and
    whether this call stored the digest of the secret.

    Store the digest in an empty database; with `binds`, also in a database without a digest. `export`: file for rows of
    release 0.1 that this release does not use. Without `export`, refuse a database with such rows. Raises
    StoreUnavailable if a retry may help, and DatabaseUnusable if not.
    """
    async with alone(database) as connection:
        before = await current(connection)
        refuse_unknown(before)
        if await belongs_to(connection, secret_digest) is False:
            raise wrong_secret(database)
        try:
            if before is None:
                await connection.run_sync(_create)
            else:
                await connection.run_sync(_migrate, before, export)
        except DATABASE_ERRORS as error:
            if is_away(error, at_start=True):
                raise
            what = f"Migrating from {before} to {NEWEST} failed" if before else "The tables could not be made"
            raise DatabaseUnusable(f"{what}: {describe_refusal(error)}") from error
        is_bound_now = False
        if secret_digest is not None and (binds or before is None):
            bind = insert_into(connection, settings_check).values(name=_SECRET, digest=secret_digest)
            is_bound_now = bool((await connection.execute(bind.on_conflict_do_nothing())).rowcount)
    close_to_others(database)  # Only now is it certain that the file is Steno's.
    return before, is_bound_now


def _create(connection: sa.Connection) -> None:
    """Create the tables, and store the newest revision as alembic does."""
    metadata.create_all(connection, checkfirst=False)
    key = sa.PrimaryKeyConstraint("version_num", name=f"{_VERSION}_pkc")
    version = sa.Table(_VERSION, sa.MetaData(), sa.Column("version_num", sa.String(32)), key)
    version.create(connection, checkfirst=False)
    connection.execute(sa.insert(version).values(version_num=NEWEST))


def _migrate(connection: sa.Connection, before: str, export: Path | None) -> None:
    from alembic import command  # noqa: PLC0415 - slow to import and needed once
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes |= {"connection": connection, "export": export}
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise DatabaseUnusable(f"Migrating from {before} to {NEWEST} failed: {error}") from error


@asynccontextmanager
async def alone(database: Database) -> AsyncIterator[AsyncConnection]:
    """Open one transaction. No other process migrates until the transaction ends."""
    try:
        async with _only_process(database.address.path), database.migrating() as connection:
            if not database.is_sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(*_LOCK)))
            yield connection
    except DATABASE_ERRORS as error:
        raise unopened(error) from error


@asynccontextmanager
async def _only_process(database: Path | None) -> AsyncIterator[None]:
    """Hold a file lock, because SQLite's own lock does not cover the switch to WAL. `database`: None for PostgreSQL."""
    if database is None:
        yield
        return
    try:
        make_folder(database.parent)
        lock = os.open(f"{database}.migrate.lock", os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        raise DatabaseUnusable(f"The database file {database} cannot be made: {error.strerror}") from error
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await asyncio.sleep(_FILE_LOCK_POLL_SECONDS)
        # Create the file with a private mode. SQLite gives its -wal and -shm files the same mode. An existing file is
        # not opened: closing it would release the locks that this process has on it.
        with suppress(FileExistsError):
            os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
        yield
    finally:
        os.close(lock)


def digest_of(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=b"steno-check").digest()


async def belongs_to(connection: AsyncConnection, secret_digest: bytes | None) -> bool | None:
    """Whether the stored digest equals `secret_digest`; None if one of the two digests is missing."""
    if secret_digest is None or not await _has_table(connection, settings_check.name):
        return None
    found = await connection.scalar(sa.select(settings_check.c.digest).where(settings_check.c.name == _SECRET))
    return None if found is None else found == secret_digest


def wrong_secret(database: Database) -> DatabaseUnusable:
    return DatabaseUnusable(f"The database {database.address.place} {MADE_WITH_ANOTHER}. {WAYS_OUT}")


def make_folder(folder: Path) -> None:
    """Make a private folder and its missing parents; existing folders keep their mode. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def obstacle(database: Path) -> str | None:
    """Return the reason why SQLite can neither write nor create the database file; None if it can do so."""
    if database.is_dir():
        return "it is a folder"
    if database.exists() and not os.access(database, os.R_OK | os.W_OK):
        return "it cannot be read and written"
    folder = next(path for path in database.absolute().parents if path.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def close_to_others(database: Database) -> None:
    """Make SQLite's files private. Log a warning for each file that an earlier release left open to other users."""
    if (file := database.address.path) is None:
        return
    for path in (file, *(file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))):
        if not path.is_file() or not (mode := stat.S_IMODE(path.stat().st_mode)) & OTHERS:
            continue
        try:
            path.chmod(mode & ~OTHERS)
        except PermissionError:
            log.warning("database file open to others", path=str(path), mode=f"{mode:o}")
        else:
            log.warning("database file closed to others", path=str(path), mode=f"{mode:o}")

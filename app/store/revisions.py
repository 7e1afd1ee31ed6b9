"""Revisions: how far a database is migrated, found out without alembic, which costs a third of a second and 7 MB."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, inspect, text

import app
from app.store.database import Database
from app.store.errors import DATABASE_ERRORS, StoreUnavailable, describe, is_unreachable

_TABLE = "alembic_version"


def scripts() -> Path:
    """The folder of the migrations: in a wheel inside the package, in a checkout beside it."""
    package = Path(app.__file__).parent
    packaged = package / "alembic"
    return packaged if packaged.is_dir() else package.parent / "alembic"


@cache
def newest() -> str:
    """The newest that this release knows: what the files are called begins with it."""
    return max(path.name.partition("_")[0] for path in (scripts() / "versions").glob("[0-9]*_*.py"))


async def is_newest(database: Database) -> bool:
    """Whether there is nothing to migrate. Also False where that cannot be known.

    Raises `StoreUnavailable` where the database cannot be reached: to try to migrate it would only take as long again.
    """
    path = database.address.path
    if database.address.kind == "memory" or (path is not None and not path.exists()):
        return False
    try:
        async with database.reading() as connection:
            return await connection.run_sync(_revision) == newest()
    except DATABASE_ERRORS as error:
        if is_unreachable(error):
            raise StoreUnavailable(describe(error)) from error
        return False


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {_TABLE}")).scalar()  # noqa: S608 - a constant

"""Alembic's entry. app/store/schema.py passes the connection, and with it the transaction and the lock.

From the command line (`.venv/bin/alembic current`) there is none: then it is opened here, as the settings say.
"""

import asyncio
import logging

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from app.settings import ConfigurationError, load
from app.store import StoreError
from app.store.engine import Database
from app.store.schema import alone
from app.store.tables import metadata

log = logging.getLogger("alembic.runtime.migration")


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite cannot alter a column in place
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_by_settings() -> None:
    database = Database(load().storage.address)
    log.info("Database %s", database.address.place)
    try:
        async with alone(database) as connection:
            await connection.run_sync(run)
    finally:
        await database.close()


def command_line() -> None:
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    if context.is_offline_mode():
        raise CommandError("--sql is not supported: migrations look at the database.")
    if context.config.cmd_opts and context.config.cmd_opts.cmd[0].__name__ == "downgrade":
        raise CommandError("Migrations only go forward. To go back, restore a backup.")
    if context.config.cmd_opts and context.config.cmd_opts.cmd[0].__name__ == "upgrade":
        raise CommandError("`steno migrate` upgrades: it decrypts and exports before that what would be lost.")
    try:
        asyncio.run(run_by_settings())
    except (ConfigurationError, StoreError) as error:
        raise CommandError(str(error)) from error


if (connection := context.config.attributes.get("connection")) is not None:
    run(connection)
else:
    command_line()

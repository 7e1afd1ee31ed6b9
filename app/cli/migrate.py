"""`steno migrate` and `steno tables`: prepare the database and the tokenizer tables of an installation."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from app.cli.command import Config, DatabaseURL, commands, fail, settings_of
from app.settings import ConfigurationError
from app.settings.checks import check_secret, open_store, server_secret
from app.settings.storage import home, tables_folder
from app.store import StoreError, StoreUnavailable
from app.store.schema import Upgrade
from app.tokens.tokenizer import TablesUnavailable, fetch, missing_in

cli = commands()


@cli.command()
def migrate(
    config: Config = None,
    database_url: DatabaseURL = None,
    if_reachable: Annotated[
        bool, typer.Option("--if-reachable", help="Exit 0 where the database is away: Steno migrates once it is there.")
    ] = False,
    decrypt: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Variable with a key of storage.encryption of release 0.1."),
    ] = None,
) -> None:
    """Bring the database to the newest schema. Several may run at once: one migrates, the others wait for it."""
    settings = settings_of(config, storage={"url": database_url})
    if (found := check_secret(settings)).state == "fatal":
        fail(found.sentence)
    upgrade = Upgrade([read_key(name) for name in decrypt or ()])

    async def run() -> tuple[str | None, str, bool]:
        store = open_store(settings, secret=server_secret(settings))
        typer.echo(f"Database {store.place}")
        folder = store.database.address.path.parent if store.database.address.path else home()
        upgrade.export = folder / f"steno-0.1-{int(time.time())}.jsonl"
        try:
            return *(await store.migrate(upgrade)), await store.bind_secret()
        finally:
            await store.close()

    try:
        before, after, is_bound_now = asyncio.run(run())
    except StoreUnavailable as error:
        if not if_reachable:
            fail(str(error))
        typer.echo(f"Not migrated: {error}. Steno does it once the database is there.")
        return
    except (ConfigurationError, StoreError) as error:
        fail(str(error))
    typer.echo(f"The schema is at {after}." if before == after else f"Migrated from {before or 'nothing'} to {after}.")
    if upgrade.decrypted:
        typer.echo(f"Decrypted the texts of {upgrade.decrypted} rows.")
    if upgrade.exported:
        typer.echo(f"Exported {upgrade.exported} rows of keys, links and the audit trail to {upgrade.export}.")
    if is_bound_now:
        typer.echo("The database belongs to this secret from now on: Steno refuses another one.")


def read_key(name: str) -> bytes:
    """Read a key from an environment variable. Exit if the key is invalid, without printing it."""
    key = b""
    with suppress(ValueError):
        key = bytes.fromhex(os.environ.get(name, "").strip())
    if len(key) != 32:
        fail(f"--decrypt takes environment variables that hold 64 hexadecimal digits each; {name} does not.")
    return key


@cli.command()
def tables(
    folder: Annotated[Path | None, typer.Argument(help="Otherwise `tables` in Steno's folder.")] = None,
) -> None:
    """Fetch the tables that tokens are counted with; without them tokens are estimated from bytes."""
    place = folder or tables_folder()
    try:
        if missing_in(place):
            fetch(place)
    except TablesUnavailable as error:
        fail(f"The token tables cannot be fetched: {error}.")
    typer.echo(f"Token tables {place}")

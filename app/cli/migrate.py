"""`steno migrate`: bring the database to the newest schema, and bind it to its secret."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from app.cli.command import Config, DatabaseURL, commands, fail, failing_on, settings_of
from app.main import open_store
from app.settings import ConfigurationError
from app.settings.checks import check_secret, server_secret
from app.settings.server import home
from app.store import StoreError, StoreUnavailable
from app.store.release_0_1 import Decryption, Export, keys_of

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
        typer.Option(metavar="NAME", help="Variable or file with a key of storage.encryption of release 0.1."),
    ] = None,
    drop_encrypted: Annotated[
        bool, typer.Option("--drop-encrypted", help="Delete texts whose key is in none of these.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            help="File for keys, links and the audit trail of release 0.1 [default: steno-0.1-<time>.jsonl beside the"
            " SQLite file or in Steno's folder]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Bring the database to the newest schema. Several may run at once: one migrates, the others wait for it."""
    settings = settings_of(config, storage={"url": database_url})
    if (found := check_secret(settings)).state == "fatal":
        fail(found.sentence)
    with failing_on(ValueError):
        decryption = Decryption(keys_of(decrypt or ()), drop=drop_encrypted)
    exported = Export()

    async def run() -> tuple[str | None, str, bool]:
        store = open_store(settings, secret=server_secret(settings))
        typer.echo(f"Database {store.place}")
        folder = store.database.address.path.parent if store.database.address.path else home()
        exported.file = export or folder / f"steno-0.1-{int(time.time())}.jsonl"
        try:
            return *(await store.migrate(decryption, exported)), await store.bind_secret()
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
    if decryption.decrypted:
        typer.echo(f"Decrypted the texts of {decryption.decrypted} rows.")
    if decryption.dropped:
        typer.echo(f"Deleted {decryption.dropped} rows whose texts could not be decrypted.")
    if exported.rows:
        typer.echo(f"Exported {exported.rows} rows of keys, links and the audit trail to {exported.file}.")
    if is_bound_now:
        typer.echo("The database belongs to this secret from now on: Steno refuses another one.")

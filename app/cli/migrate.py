"""`steno migrate` and `steno tables`: prepare the database and the tokenizer tables of an installation."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from app.checks import check_secret
from app.cli.command import Config, DatabaseURL, fail, settings_of
from app.settings import ConfigurationError
from app.settings.storage import home, open_store, server_secret, tables_folder
from app.store import StoreError, StoreUnavailable
from app.store.schema import NEWEST
from app.tokens.tokenizer import TablesUnavailable, fetch, missing_in

cli = typer.Typer(rich_markup_mode="markdown")


@cli.command()
def migrate(
    config: Config = None,
    database_url: DatabaseURL = None,
    if_reachable: Annotated[
        bool, typer.Option("--if-reachable", help="Exit 0 where the database is away: Steno migrates once it is there.")
    ] = False,
) -> None:
    """Bring the database to the newest schema. Several processes may do this at once: one migrates, the others wait."""
    settings = settings_of(config, storage={"url": database_url})
    if (found := check_secret(settings)).state == "fatal":
        fail(found.sentence)

    async def run() -> tuple[str | None, bool, Path]:
        store = open_store(settings, secret=server_secret(settings))
        address = store.database.address
        typer.echo(f"Database {address.place}")
        export = (address.path.parent if address.path else home()) / f"steno-0.1-{int(time.time())}.jsonl"
        try:
            return *(await store.migrate(export)), export
        finally:
            await store.close()

    try:
        before, is_bound_now, export = asyncio.run(run())
    except StoreUnavailable as error:
        if not if_reachable:
            fail(str(error))
        typer.echo(f"Not migrated: {error}. Steno does it once the database is there.")
        return
    except (ConfigurationError, StoreError) as error:
        fail(str(error))
    steps = f"Migrated from {before or 'nothing'} to {NEWEST}."
    typer.echo(f"The schema is at {NEWEST}." if before == NEWEST else steps)
    if export.exists():
        typer.echo(f"Exported the rows of keys, links and the audit trail to {export}.")
    if before and is_bound_now:
        typer.echo("The database belongs to this secret from now on: Steno refuses another one.")


@cli.command()
def tables(
    folder: Annotated[Path | None, typer.Argument(help="Otherwise `tables` in Steno's folder.")] = None,
) -> None:
    """Fetch the tables with which Steno counts tokens. Without them, Steno estimates tokens from bytes."""
    place = folder or tables_folder()
    try:
        if missing_in(place):
            fetch(place)
    except TablesUnavailable as error:
        fail(f"The token tables cannot be fetched: {error}.")
    typer.echo(f"Token tables {place}")

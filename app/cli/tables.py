"""`steno tables`: fetches the tokenizer's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.command import commands, fail
from app.settings.server import tables_folder
from app.tokens.token_tables import TablesUnavailable, fetch, missing_in

cli = commands()


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

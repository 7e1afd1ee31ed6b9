"""The command line: serve, migrate, doctor, demo, replay.

What a command needs is imported when it runs, so that the others start fast.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

cli = typer.Typer(
    name="steno",
    help="A proxy that keeps long conversations inside the model's context window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Upstream = Annotated[str | None, typer.Option(help="The provider's base URL, such as https://api.openai.com/v1.")]
Config = Annotated[str | None, typer.Option(help="YAML file with settings.")]
DatabaseURL = Annotated[str | None, typer.Option(help="PostgreSQL or SQLite URL, or `memory`.")]


def main() -> None:
    cli()


def _fail(message: str) -> NoReturn:
    """One line for the user, and exit status 1."""
    typer.echo(f"steno: {message}", err=True)
    raise typer.Exit(1)


def _settings(config: str | None, **flags: Any) -> Any:
    """The settings in force, flags first. Ends the program where they cannot be used."""
    from app.settings import ConfigurationError, load

    if config:
        os.environ["STENO_CONFIG"] = config
    sections = {name: {k: v for k, v in section.items() if v is not None} for name, section in flags.items()}
    try:
        return load(**{name: section for name, section in sections.items() if section})
    except ConfigurationError as error:
        _fail(str(error))


@cli.command()
def serve(
    upstream: Upstream = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Start the proxy."""
    settings = _settings(
        config,
        server={"host": host, "port": port},
        upstream={"base_url": upstream},
        storage={"url": database_url},
    )
    from app.serve import serve as run

    if (problem := run(settings)) is not None:
        _fail(problem)


@cli.command()
def migrate(config: Config = None, database_url: DatabaseURL = None) -> None:
    """Bring the database to the newest schema."""
    settings = _settings(config, storage={"url": database_url})
    from app.main import open_store
    from app.store import StoreError

    async def run() -> tuple[str | None, str]:
        store = open_store(settings)
        try:
            return await store.migrate()
        finally:
            await store.close()

    try:
        before, after = asyncio.run(run())
    except StoreError as error:
        _fail(str(error))
    typer.echo(f"The schema is at {after}." if before == after else f"Migrated from {before or 'nothing'} to {after}.")


@cli.command()
def doctor(upstream: Upstream = None, config: Config = None, database_url: DatabaseURL = None) -> None:
    """Check settings, provider, database, tokenizer tables and windows; exit 1 if something is wrong."""
    settings = _settings(config, upstream={"base_url": upstream}, storage={"url": database_url})
    from app.doctor import examine

    if not asyncio.run(examine(settings)):
        sys.exit(1)


if __name__ == "__main__":
    main()

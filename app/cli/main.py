"""The command line of Steno: `steno --help` lists its commands.

What a command needs is imported when it runs, so that the others start fast.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

cli = typer.Typer(
    name="steno",
    help="A proxy that keeps long conversations inside the model's context window.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

T = TypeVar("T")
Upstream = Annotated[str | None, typer.Option(help="The provider's base URL, such as https://api.openai.com/v1.")]
Config = Annotated[str | None, typer.Option(help="YAML file with settings.")]
DatabaseURL = Annotated[str | None, typer.Option(help="PostgreSQL or SQLite URL, or `memory`.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]

PASSED_ON: Any = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command whose arguments are read elsewhere."""
LEAST_WINDOW = 1_000
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of output that has no room; where nobody reads it any more, the command just ends."""
Window = Annotated[int | None, typer.Option(min=LEAST_WINDOW, help="Context window of every model, in tokens.")]


def main() -> None:
    try:
        cli()
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        # What could not be written would be tried again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"steno: The output cannot be written: {error.strerror}.")


def _print_version(asked: bool) -> None:
    if asked:
        from app import __version__

        typer.echo(f"Steno {__version__}")
        raise typer.Exit


@cli.callback()
def steno(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A proxy that keeps long conversations inside the model's context window."""


def fail(message: str, status: int = 1) -> NoReturn:
    """Print one line for the user and exit with this status."""
    typer.echo(f"steno: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def failing_on(*errors: type[Exception]) -> Iterator[None]:
    """Exit with the message of such an error."""
    try:
        yield
    except errors as error:
        fail(str(error))


def _utf8(given: str) -> str:
    """An argument as UTF-8, where the locale cannot decode it; exit if its bytes are none."""
    raw = given.encode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        fail(f"{raw!r:.50} is not UTF-8: write it in UTF-8.")


def _settings(config: str | None, **flags: Any) -> Any:
    """Return the settings in effect, flags first; exit if they are not valid."""
    from app.settings import ConfigurationError, load

    if config:
        os.environ["STENO_CONFIG"] = config
    sections = {name: {k: v for k, v in section.items() if v is not None} for name, section in flags.items()}
    with failing_on(ConfigurationError):
        return load(**{name: section for name, section in sections.items() if section})


def _silence_log() -> None:
    """Silence the log, for commands that report what happened themselves."""
    logging.getLogger().addHandler(logging.NullHandler())


def keep_quiet() -> None:
    """Silence all logging, for commands that run servers of their own and print the result."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    _silence_log()


def _pass_on(context: typer.Context) -> None:
    """Run a command of the lab, which reads its own arguments."""
    import_module("lab.commands.cli").run(context)


@cli.command()
def serve(
    upstream: Upstream = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve there (1).")] = None,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Start the proxy."""
    settings = _settings(
        config,
        server={"host": host, "port": port, "workers": workers},
        upstream={"base_url": upstream},
        storage={"url": database_url},
    )
    from app.cli.serve import serve as run

    if (problem := run(settings)) is not None:
        fail(problem)


@cli.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run, with its arguments.")],
    upstream: Upstream = None,
    window: Window = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 0,
    config: Config = None,
    database_url: DatabaseURL = None,
    preset: Annotated[str | None, typer.Option(help="How conversations are kept small: a preset.")] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="A scripted provider: no key, no network.")] = False,
) -> None:
    """Run a command with Steno in front of its provider: steno run -- codex

    The base URLs that OpenAI's and Anthropic's clients read are set for it. Where they were set before, requests go on
    to there. At the end Steno says what it compacted and saved. The exit status is the command's; 125 if Steno could
    not start, 126 or 127 if the command could not.
    """
    if upstream and simulated:
        fail("--upstream and --simulated exclude each other.")
    if config:
        os.environ["STENO_CONFIG"] = config
    from app.cli import child

    if shutil.which(command[0]) is None:
        fail(f"There is no command {command[0]!r}.", child.NOT_FOUND)
    from app.cli import run as running
    from app.settings import ConfigurationError
    from app.store import StoreError

    options = running.Options(upstream, port, window, preset, database_url, simulated)
    try:
        status = running.run(command, options)
    except (ConfigurationError, StoreError) as error:
        fail(str(error), child.CANNOT_START)
    except OSError as error:
        fail(f"{command[0]} cannot be started: {error.strerror}.", child.NOT_EXECUTABLE)
    raise typer.Exit(child.end_like(status))


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
    settings = _settings(config, storage={"url": database_url})
    _silence_log()
    from app.main import open_store
    from app.settings import ConfigurationError
    from app.settings.checks import check_secret, server_secret
    from app.settings.server import home
    from app.store import StoreError, StoreUnavailable
    from app.store.release_0_1 import Decryption, Export, keys_of

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


@cli.command()
def doctor(
    upstream: Upstream = None,
    config: Config = None,
    database_url: DatabaseURL = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all settings, each with its source.")] = False,
    round_trip: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Send a short request to this model, through Steno. It is billed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, providers, database, tokenizer tables, windows and port; exit 1 if something is wrong.

    With --round-trip MODEL the key is taken from OPENAI_API_KEY, or from ANTHROPIC_API_KEY where the provider speaks
    Messages alone.
    """
    settings = _settings(config, upstream={"base_url": upstream}, storage={"url": database_url})
    keep_quiet()
    from app.cli import doctor as examining

    found = asyncio.run(examining.examine(settings, round_trip))
    (examining.show_json if as_json else examining.show)(found, settings if verbose else None)
    if not examining.is_healthy(found):
        sys.exit(1)


@cli.command()
def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="These; otherwise all known.")] = None,
    upstream: Upstream = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List context windows, and where each comes from."""
    settings = _settings(config, upstream={"base_url": upstream})
    keep_quiet()
    from app.cli.models import show, show_json, windows_of

    (show_json if as_json else show)(asyncio.run(windows_of(settings, names or ())))


@cli.command()
def plan(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="A request body as JSON; - reads standard input.")],
    written: Annotated[
        str | None, typer.Option("--as", help="Its format: chat_completions, messages, responses.")
    ] = None,
    window: Window = None,
    upstream: Upstream = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what Steno would do to a request. No provider gets it, and no stored summary is used."""
    settings = _settings(config, upstream={"base_url": upstream})
    keep_quiet()
    from app.cli import plan as planning
    from app.cli.terminal import print_json
    from app.settings import ConfigurationError

    with failing_on(planning.UnusableRequest, ConfigurationError):
        planned = planning.plan(settings, file.read(), written, window)
    if as_json:
        print_json(planned.answer)
    else:
        for line in planning.in_words(planned):
            typer.echo(line)


@cli.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="Steno's address; otherwise ANTHROPIC_BASE_URL.")] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable with the key; otherwise Claude Code's.")
    ] = None,
) -> None:
    """Serve stored conversations to a model over MCP, on standard input and output: for a client's settings."""
    from app.cli.mcp import serve
    from app.settings.checks import install_command

    try:
        serve(url, key_env, os.environ)
    except ImportError:
        fail(f"This needs the extra `mcp`: {install_command('mcp')}.")


conversations = typer.Typer(
    help="List, show, export or delete stored conversations, of all tenants.", no_args_is_help=True
)
cli.add_typer(conversations, name="conversations")
ConversationId = Annotated[str, typer.Argument(metavar="ID", help="The conversation's id.", callback=_utf8)]
Tenant = Annotated[str, typer.Option(help="Only this tenant; the first characters of its id are enough.")]


def _with_store(config: str | None, database_url: str | None, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run work on the store and return its result; exit if the store or the conversation is not there."""
    settings = _settings(config, storage={"url": database_url})
    keep_quiet()
    from app.cli import conversations as stored
    from app.store import StoreError

    async def run() -> T:
        async with stored.opened(settings) as store:
            return await work(store)

    with failing_on(StoreError, stored.NotFound):
        return asyncio.run(run())


@conversations.command("list")
def list_conversations(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many, the latest first.")] = 20,
    tenant: Tenant = "",
    config: Config = None,
    database_url: DatabaseURL = None,
    as_json: AsJson = False,
) -> None:
    """List the latest conversations."""
    from app.cli import conversations as stored

    found = _with_store(config, database_url, lambda store: stored.latest(store, limit, tenant))
    (stored.list_as_json if as_json else stored.show_list)(found)


@conversations.command("show")
def show_conversation(
    conversation_id: ConversationId,
    tenant: Tenant = "",
    config: Config = None,
    database_url: DatabaseURL = None,
    as_json: AsJson = False,
) -> None:
    """Show a conversation and its summaries."""
    from app.cli import conversations as stored

    content = _with_store(config, database_url, lambda store: stored.content_of(store, conversation_id, tenant))
    (stored.one_as_json if as_json else stored.show_one)(content)


@conversations.command("export")
def export_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print all that is stored of a conversation, as JSON."""
    from app.cli import conversations as stored
    from app.cli.terminal import print_json

    print_json(_with_store(config, database_url, lambda store: stored.content_of(store, conversation_id, tenant)))


@conversations.command("delete")
def delete_conversation(
    conversation_id: ConversationId,
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Delete a conversation with its summaries, messages and usage."""
    from app.cli import conversations as stored

    if not yes:
        typer.confirm(f"Delete the conversation {conversation_id}?", abort=True)
    _with_store(config, database_url, lambda store: stored.delete(store, conversation_id, tenant))
    typer.echo(f"Deleted {conversation_id}.")


@cli.command()
def handoff(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print a document in Markdown from which another model, or a person, can go on with a conversation."""
    from app.cli import conversations as stored

    written = _with_store(config, database_url, lambda store: stored.handoff_of(store, conversation_id, tenant))
    typer.echo(written, nl=False)


@cli.command()
def tables(
    folder: Annotated[Path | None, typer.Argument(help="Otherwise `tables` in Steno's folder.")] = None,
) -> None:
    """Fetch the tables that tokens are counted with; without them tokens are estimated from bytes."""
    from app.settings.server import tables_folder
    from app.tokens.token_tables import TablesUnavailable, fetch, missing_in

    place = folder or tables_folder()
    try:
        if missing_in(place):
            fetch(place)
    except TablesUnavailable as error:
        fail(f"The token tables cannot be fetched: {error}.")
    typer.echo(f"Token tables {place}")


cli.command(
    "demo",
    help="Hold a long conversation with and without Steno, against a simulated provider: no key, no network.",
    context_settings=PASSED_ON,
)(_pass_on)
cli.command(
    "replay",
    help="Replay recorded conversations turn by turn and judge what the provider received; exit 1 if anything is lost.",
    context_settings=PASSED_ON,
)(_pass_on)


if __name__ == "__main__":
    main()

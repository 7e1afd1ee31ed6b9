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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
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
LEAST_MONEY = 1e-6
MOST_A_DAY = 1e15
"""Most tokens or money that a limit can name: numbers up to there are exact."""
LEAST_DAYS, MOST_DAYS = 0.001, 36_500
LONGEST_NAME = 200
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


def _name(argument: typer.CallbackParam, given: str) -> str:
    """A name that can be shown in a row; exit if it is none."""
    name = _utf8(given).strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        what = argument.metavar or argument.opts[0]
        fail(f"{what} cannot be {name!r:.50}: say 1 to {LONGEST_NAME} characters without line breaks or controls.")
    return name


def _names(option: typer.CallbackParam, given: list[str] | None) -> list[str]:
    return [_name(option, each) for each in given or ()]


def _within(least: float, most: float) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """Return a check of a number. A range of the command line's own would let NaN pass."""

    def check(option: typer.CallbackParam, given: float | None) -> float | None:
        if given is not None and not least <= given <= most:
            fail(f"{option.opts[0]} cannot be {given:g}: say a number from {least:g} to {most:,.0f}.")
        return given

    return check


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


def of_lab(module: str) -> Any:
    """Import a module of the lab; exit if the lab is not installed."""
    from app.commands.lab import lab
    from app.settings import ConfigurationError

    with failing_on(ConfigurationError):
        return lab(module)


def keep_quiet() -> None:
    """Silence all logging, for commands that run servers of their own and print the result."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    _silence_log()


def _pass_on(context: typer.Context) -> None:
    """Run a command of the lab, which reads its own arguments."""
    of_lab("commands.cli").run(context)


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
    from app.commands.serve import serve as run

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
    from app.commands import child

    if shutil.which(command[0]) is None:
        fail(f"There is no command {command[0]!r}.", child.NOT_FOUND)
    from app.commands import run as running
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
) -> None:
    """Bring the database to the newest schema. Several may run at once: one migrates, the others wait for it."""
    settings = _settings(config, storage={"url": database_url})
    _silence_log()
    from app.main import open_store
    from app.store import StoreError, StoreUnavailable

    async def run() -> tuple[str | None, str]:
        store = open_store(settings)
        typer.echo(f"Database {store.place}")
        try:
            return await store.migrate()
        finally:
            await store.close()

    try:
        before, after = asyncio.run(run())
    except StoreUnavailable as error:
        if not if_reachable:
            fail(str(error))
        typer.echo(f"Not migrated: {error}. Steno does it once the database is there.")
        return
    except StoreError as error:
        fail(str(error))
    typer.echo(f"The schema is at {after}." if before == after else f"Migrated from {before or 'nothing'} to {after}.")


@cli.command()
def rekey(config: Config = None, database_url: DatabaseURL = None) -> None:
    """Encrypt what is stored with the first key of `storage.encryption`. Steno may run meanwhile."""
    settings = _settings(config, storage={"url": database_url})
    if not settings.storage.encryption:
        fail("There is no key to encrypt with: storage.encryption is empty.")
    _silence_log()
    from app.commands.conversations import opened
    from app.store import StoreError

    async def run() -> dict[str, int]:
        async with opened(settings) as store:
            return await store.rekey()

    try:
        changed = asyncio.run(run())
    except StoreError as error:
        fail(f"Not everything is encrypted with the first key: {error}. Nothing is lost; run it again.")
    for table, rows in changed.items():
        typer.echo(f"{table}: {rows} rows")


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
    from app.commands import doctor as examining

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
    from app.commands.models import show, show_json, windows_of

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
    from app.commands import plan as planning
    from app.commands.terminal import print_json
    from app.settings import ConfigurationError

    with failing_on(planning.UnusableRequest, ConfigurationError):
        planned = planning.plan(settings, file.read(), written, window)
    if as_json:
        print_json(planned.answer)
    else:
        for line in planning.in_words(planned):
            typer.echo(line)


@cli.command()
def statusline(
    url: Annotated[str | None, typer.Option(help="Steno's address; otherwise ANTHROPIC_BASE_URL.")] = None,
) -> None:
    """Print a line about a session of Claude Code, named by what Claude Code writes to standard input."""
    from app.commands.statusline import status_line

    if line := status_line(sys.stdin.buffer.read(), os.environ, url):
        typer.echo(line)


@cli.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="Steno's address; otherwise ANTHROPIC_BASE_URL.")] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable with the key; otherwise Claude Code's.")
    ] = None,
) -> None:
    """Serve stored conversations to a model over MCP, on standard input and output: for a client's settings."""
    from app.commands.mcp import serve
    from app.runtime.extras import install_command

    try:
        serve(url, key_env, os.environ)
    except ImportError:
        fail(f"This needs the extra `mcp`: {install_command('mcp')}.")


cli.command(
    "bench",
    help="Measure what Steno costs on this machine, with a scripted provider: no key, no network.",
    context_settings=PASSED_ON,
)(_pass_on)

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
    from app.commands import conversations as stored
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
    from app.commands import conversations as stored

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
    from app.commands import conversations as stored

    content = _with_store(
        config, database_url, lambda store: stored.content_of(store, conversation_id, tenant, "show_conversation")
    )
    (stored.one_as_json if as_json else stored.show_one)(content)


@conversations.command("export")
def export_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print all that is stored of a conversation, as JSON."""
    from app.commands import conversations as stored
    from app.commands.terminal import print_json

    print_json(
        _with_store(
            config, database_url, lambda store: stored.content_of(store, conversation_id, tenant, "export_conversation")
        )
    )


@conversations.command("delete")
def delete_conversation(
    conversation_id: ConversationId,
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Delete a conversation with its summaries, messages and usage."""
    from app.commands import conversations as stored

    if not yes:
        typer.confirm(f"Delete the conversation {conversation_id}?", abort=True)
    _with_store(config, database_url, lambda store: stored.delete(store, conversation_id, tenant))
    typer.echo(f"Deleted {conversation_id}.")


tenants = typer.Typer(help="Tenants: whose it is that is stored.", no_args_is_help=True)
cli.add_typer(tenants, name="tenants")


@tenants.command("merge")
def merge_tenants(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Tenant whose data are there, or `key`.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Tenant that is to find them, or `key`.")],
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Let the tenant NEW find all that is stored of OLD, as after a key was changed. Both are one from then on.

    A tenant is its id, as GET /context/tenant says it, or the word key: it is then read from OLD_KEY or NEW_KEY in the
    environment, or asked for.
    """
    from app.commands import tenants as merging

    def ask(text: str) -> str:
        return str(typer.prompt(text, hide_input=True))

    settings = _settings(config, storage={"url": database_url})

    async def merge(store: Any) -> int:
        await store.links.look()
        first = merging.named(settings, store, old, lambda: merging.key_from("OLD_KEY", ask))
        second = merging.named(settings, store, new, lambda: merging.key_from("NEW_KEY", ask))
        return await merging.merge(store, first, second)

    with failing_on(merging.NoTenant):
        typer.echo(f"Both are one tenant. Rows moved: {_with_store(config, database_url, merge)}.")


MONEY = _within(LEAST_MONEY, MOST_A_DAY)
keys = typer.Typer(help="Give out keys to callers, list and revoke them: see clients.keys.", no_args_is_help=True)
cli.add_typer(keys, name="keys")


def _with_keys(work: Coroutine[Any, Any, T]) -> T:
    """Run work on the keys and return its result; exit if it cannot be done."""
    keep_quiet()
    from app.commands.keys import NoSuchKey
    from app.proxy.keyring import KeysUnusable
    from app.store import StoreError

    with failing_on(StoreError, NoSuchKey, KeysUnusable):
        return asyncio.run(work)


@keys.command("add")
def add_key(
    owner: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: a person or a service.", callback=_name)],
    days: Annotated[
        float | None, typer.Option(help="Days until it expires.", callback=_within(LEAST_DAYS, MOST_DAYS))
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model, or glob; may be repeated.", callback=_names)
    ] = None,
    upstream: Annotated[list[str] | None, typer.Option(help="Only this upstream; may be repeated.")] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(help="Tokens that its owner may use in a day.", callback=_within(1, MOST_A_DAY))
    ] = None,
    money_per_day: Annotated[
        float | None, typer.Option(help="Cost of its owner's calls in a day.", callback=MONEY)
    ] = None,
    money_per_conversation: Annotated[
        float | None, typer.Option(help="Cost of one conversation.", callback=MONEY)
    ] = None,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Give out a key, which is shown this once."""
    if sys.stdout is None:
        fail("The key could not be shown: standard output is closed.")
    settings = _settings(config, storage={"url": database_url})
    from app.commands import keys as giving
    from app.store.client_keys import KeyLimits

    allowed = tuple(model or ()), tuple(upstream or ())
    if unknown := set(allowed[1]) - set(settings.all_upstreams):
        fail(f"There is no upstream {', '.join(sorted(unknown))}; known: {', '.join(settings.all_upstreams)}.")
    limits = KeyLimits(*allowed, tokens_per_day, money_per_day, money_per_conversation)
    seconds = None if days is None else 86_400 * days
    shown, key = _with_keys(giving.add(settings, owner, limits, seconds))
    try:
        typer.echo(f"{key.id} of {owner}. The key is shown this once:", err=True)
        typer.echo(shown)
    except OSError:
        _with_keys(giving.revoke(settings, key.id))
        typer.echo(f"steno: {key.id} is revoked: it could not be shown.", err=True)
        raise


@keys.command("list")
def list_keys(config: Config = None, database_url: DatabaseURL = None) -> None:
    """List keys by their ids, with owner, state and limits."""
    settings = _settings(config, storage={"url": database_url})
    from app.commands import keys as giving

    giving.show(_with_keys(giving.keys_of(settings)))


@keys.command("revoke")
def revoke_key(
    named: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="The key's id, or an owner for all of his.", callback=_name)
    ],
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Revoke a key, or all keys of an owner."""
    settings = _settings(config, storage={"url": database_url})
    from app.commands import keys as giving

    ids = _with_keys(giving.revoke(settings, named))
    typer.echo(f"Revoked {', '.join(ids)}: refused everywhere within {giving.SECONDS_UNTIL_REFUSED} seconds.")


@cli.command()
def handoff(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print a document in Markdown from which another model, or a person, can go on with a conversation."""
    from app.commands import conversations as stored

    written = _with_store(config, database_url, lambda store: stored.handoff_of(store, conversation_id, tenant))
    typer.echo(written, nl=False)


@cli.command()
def inspector(
    link: Annotated[
        bool, typer.Option("--link", help="Print a link that opens one operator's session, within 24 hours.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Void all links so far, and sign out whom they let in.")
    ] = False,
    url: Annotated[str, typer.Option(help="Steno's address, as a browser reaches it.")] = "",
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Let operators in to the inspector, where they see every tenant, or sign them out."""
    if link == revoke:
        fail("Say --link or --revoke.")
    from app.settings.addresses import is_address

    if url and not is_address(url):  # Not repeated: there may be a password in it.
        fail(
            "--url: an http(s) URL without credentials, query or fragment is needed, such as https://steno.example.com."
        )
    settings = _settings(config, storage={"url": database_url})
    from app.commands import ports
    from app.commands.audit import user
    from app.inspector.links import LINK_SECONDS, id_of, operator_link
    from app.inspector.session import OPERATORS
    from app.settings import ConfigurationError
    from app.settings.secret import server_secret
    from app.store import DatabaseURLError, revocations
    from app.store.audit import record_act
    from app.store.database import read_url

    with failing_on(ConfigurationError, DatabaseURLError):
        if read_url(settings.storage.address).kind == "memory":
            fail("A database in memory is that of one Steno alone: use the link that it printed, and revoke it there.")
        secret = server_secret(settings)
    if revoke:

        async def revoke_all(store: Any) -> None:
            await store.change_at_once(record_act, user(), "revoke_links")
            await store.change_at_once(revocations.revoke, OPERATORS, LINK_SECONDS)

        _with_store(config, database_url, revoke_all)
        typer.echo("All links so far are void, and operators are signed out.")
        return
    server = settings.server
    made = operator_link(secret, url or ports.url_for_operators(server))
    id_ = id_of(made.partition("token=")[2])
    _with_store(config, database_url, lambda store: store.change_at_once(record_act, user(), "make_link", subject=id_))
    typer.echo(made)


@cli.command(hidden=True)
def link(
    url: Annotated[str, typer.Option()] = "",
    revoke: Annotated[bool, typer.Option("--revoke")] = False,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Do what `steno inspector` does: its name in the release before."""
    inspector(link=not revoke, revoke=revoke, url=url, config=config, database_url=database_url)


@cli.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many, the latest first.")] = 100,
    tenant: Tenant = "",
    config: Config = None,
    database_url: DatabaseURL = None,
    as_json: AsJson = False,
) -> None:
    """List what operators did: when, who, what, and whose data it was about."""
    from app.commands import audit as acts
    from app.store.audit import read_acts

    found = _with_store(config, database_url, lambda store: store.rest_of_all(read_acts, limit, tenant))
    (acts.list_as_json if as_json else acts.show_list)(found)


@cli.command()
def tables(
    folder: Annotated[Path | None, typer.Argument(help="Otherwise that of the settings.")] = None, config: Config = None
) -> None:
    """Fetch the tables that tokens are counted with; without them tokens are estimated from bytes."""
    settings = _settings(config)
    from app.providers.token_tables import TablesUnavailable, fetch, missing_in

    place = folder or settings.tokenizer.folder
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

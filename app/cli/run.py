"""`steno run -- COMMAND`: Steno on a free port for as long as a command runs, and what it saved at the end.

Steno is a thread of this process, and the command is its only child: the command keeps the terminal, and whatever ends
this process ends Steno. Nothing of Steno's is printed while the command runs; its log goes to a file, which is named at
the end if there is something wrong in it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct

from app import __version__
from app.cli import ports
from app.cli.child import Child
from app.cli.inside import at_window
from app.cli.logs import configure_logging
from app.cli.server import SWITCH_SECONDS, cannot_listen, with_password
from app.cli.spent import Spent
from app.cli.tools import ANTHROPIC_VARIABLES, KEY_VARIABLES, OPENAI_VARIABLES, prepared, variables_for
from app.http.loopback import serve
from app.http.protocol import protocol_within
from app.main import create_app
from app.settings import ConfigurationError, Settings, load
from app.settings.server import tables_folder
from app.settings.upstreams import ANTHROPIC
from app.store.engine import read_url
from app.tokens.rules import rules_for
from app.tokens.tokenizer import Tokenizer

HOST = "127.0.0.1"
DRAIN_SECONDS = 5.0
"""Seconds to wait at the end for a summary that is being made: the command is over, and somebody waits for a shell."""
SIMULATED_WINDOW = 8_000
SIMULATED_KEY = "sk-simulated"


class Options(Struct, frozen=True):
    upstream: str | None = None
    port: int = 0
    window: int | None = None
    """Context window of every model, in tokens."""
    preset: str | None = None
    database_url: str | None = None
    simulated: bool = False


def run(command: Sequence[str], options: Options) -> int:
    """Run the command and return its exit status; negative if a signal ended it.

    Raises `ConfigurationError` and `StoreError` before anything runs, and `OSError` if it cannot be started.
    """
    environment = dict(os.environ)
    with ExitStack() as stack:
        upstream = stack.enter_context(_simulated(options)) if options.simulated else options.upstream
        settings, password = with_password(settings_of(options, upstream, environment))
        log = stack.enter_context(_log_file(settings))
        spent = Spent()
        with _serving(settings, options.port, spent, log) as url:
            variables = variables_for(url, environment)
            if options.simulated:
                variables = dict.fromkeys(KEY_VARIABLES, SIMULATED_KEY) | variables
            mcp = settings.storage.messages and _serves_mcp()
            arguments = prepared(command, url, variables, anthropic=is_anthropic(settings), mcp=mcp)
            _introduce(settings, url, password, command, arguments)
            status = Child().run(arguments, variables)
        _sum_up(spent, log)
    return status


def settings_of(options: Options, upstream: str | None, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a run. Raises `ConfigurationError`.

    A plain DATABASE_URL is the command's own. The provider is the one that is named, else that of Steno's settings,
    else the one that the command itself would go to: what Steno is about to replace in its environment.
    """
    os.environ.pop("DATABASE_URL", None)
    sections: dict[str, dict[str, Any]] = {
        "server": {"host": HOST, "port": options.port, "workers": 1, "drain_seconds": DRAIN_SECONDS},
        "upstream": {"base_url": upstream} if upstream else {},
        "storage": {"url": options.database_url} if options.database_url else {},
        "compaction": {"preset": options.preset} if options.preset else {},
    }
    if options.simulated:  # To be looked at: what was said belongs to it, and is nobody's.
        sections["storage"] = {"url": options.database_url or "memory", "messages": True}
    sections = {name: section for name, section in sections.items() if any(section.values())}
    settings = load(**sections)
    if upstream is None and not (settings.upstreams or "base_url" in settings.upstream.model_fields_set):
        settings = load(**{**sections, **_providers_in(environment)})
    window = options.window or (SIMULATED_WINDOW if options.simulated else None)
    if window is not None:
        settings = at_window(settings, window)
    if options.simulated:  # A scripted provider costs nothing.
        settings = settings.model_copy(update={"prices": None, "upstreams": {}})
    return settings


def _providers_in(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings for the providers that the command's requests would go to without Steno."""
    found: dict[str, Any] = {}
    openai = next(filter(None, map(environment.get, OPENAI_VARIABLES)), None)
    anthropic = next(filter(None, map(environment.get, ANTHROPIC_VARIABLES)), None)
    if openai:
        found["upstream"] = {"base_url": openai, "formats": ["chat_completions", "responses"]}
    if anthropic:
        base = anthropic.rstrip("/")
        url = base if base.endswith("/v1") else f"{base}/v1"
        found["upstreams"] = {"anthropic": {"base_url": url, "formats": ["messages"]}}
    elif openai:
        found["upstreams"] = {"anthropic": {"base_url": "https://api.anthropic.com/v1"}}
    return found


def _serves_mcp() -> bool:
    """True if MCP's package is installed. It is imported before the command needs it: Codex asks once, and goes on
    without whatever is not there at once."""
    try:
        import_module("mcp.server.lowlevel")
    except ImportError:
        return False
    return True


def is_anthropic(settings: Settings) -> bool:
    """True if Messages can go to Anthropic alone."""
    hosts = {at.host for at in settings.all_upstreams.values() if "messages" in at.speaks}
    return hosts == {ANTHROPIC}


@contextmanager
def _simulated(options: Options) -> Iterator[str]:
    """Run a scripted provider in this process; yields its base URL."""
    count = Tokenizer(tables_folder()).counter(rules_for("gpt-4o").encoding)
    simulator = import_module("lab.simulator").Simulator  # which Steno's own packages do not import
    with simulator(window=options.window or SIMULATED_WINDOW, models="any", count=count).serve() as server:
        yield f"{server.url}/v1"


class _LogFile(logging.Handler):
    """A log, and the number of its warnings and errors, which somebody should look at."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path
        self.warnings = 0

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - logging prescribes it
        self.warnings += 1


@contextmanager
def _log_file(settings: Settings) -> Iterator[_LogFile]:
    """Send Steno's log to a file for its owner alone; it is removed if nothing in it is a warning or worse."""
    number, name = tempfile.mkstemp(prefix="steno-run-", suffix=".log")
    log = _LogFile(Path(name))
    with os.fdopen(number, "w", encoding="utf-8") as file:
        configure_logging(settings.log.level, settings.log.format, file)
        logging.getLogger().addHandler(log)
        try:
            yield log
        finally:
            logging.getLogger().handlers = [logging.NullHandler()]
    if not log.warnings:
        log.path.unlink()


@contextmanager
def _serving(settings: Settings, port: int, spent: Spent, log: _LogFile) -> Iterator[str]:
    """Run Steno; yields its address. Raises `ConfigurationError` or `StoreError` if it cannot serve."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        listener = ports.take(HOST, port)[0]
    except OSError as error:
        raise ConfigurationError(cannot_listen(settings, error)) from error
    taken = listener.getsockname()[1]
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": taken, "admin": None})})
    app = create_app(settings)
    app.state.services.ledger.heard.append(spent.add)
    try:
        server = serve(
            app,
            listener=listener,
            http=protocol_within(settings.limits.receive_seconds, settings.limits.connections),
            own_headers=False,
        )
    except RuntimeError as error:
        why: str | None = app.state.failure
        raise ConfigurationError(why or f"Steno could not start; {log.path} says why.") from error
    try:
        yield server.url
    finally:
        server.stop(2 * DRAIN_SECONDS)


def _introduce(
    settings: Settings, url: str, password: str | None, command: Sequence[str], arguments: Sequence[str]
) -> None:
    upstreams = ", ".join(dict.fromkeys(each.base_url for each in settings.all_upstreams.values()))
    _say(f"Steno {__version__} at {url}, in front of {upstreams}")
    _more(f"database   {read_url(settings.storage.address).place}")
    if settings.inspector.enabled:
        _more(f"inspector  {url}/ui{f' (password {password})' if password else ''}")
    if list(arguments) != list(command):
        _more(f"command    {shlex.join(arguments)}")


def _sum_up(spent: Spent, log: _LogFile) -> None:
    if spent.requests or spent.refused:
        first, *others = spent.lines()
        _say(f"Steno: {first}")
        for line in others:
            _more(line)
    else:
        _say("Steno: no request came through")
        _more("The command may read its base URL elsewhere: docs/run.md has what is known of tools.")
    if log.warnings:
        _more(f"Steno's log has warnings ({log.warnings}): {log.path}")


def _say(line: str) -> None:
    """Print to standard error: what the command writes to standard output may be somebody's input."""
    typer.secho(line, err=True, dim=True)


def _more(line: str) -> None:
    _say(f"       {line}")

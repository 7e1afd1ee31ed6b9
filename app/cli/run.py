"""`steno run -- COMMAND`: Steno on a free port for as long as a command runs, and what it saved at the end.

Steno is a thread of this process, and the command is its only child: the command keeps the terminal, and whatever ends
this process ends Steno. Nothing of Steno's is printed while the command runs; its log goes to a file, which is named at
the end if there is something wrong in it.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from app import __version__
from app.cli import ports
from app.cli.command import Config, DatabaseURL, Upstream, Window, at_window, commands, fail
from app.cli.logs import configure_logging
from app.cli.serve import SWITCH_SECONDS, with_password
from app.http.loopback import serve
from app.http.protocol import protocol_within
from app.inspector.formats import DOLLARS, counted, gain, money
from app.main import create_app
from app.settings import ConfigurationError, Settings, load
from app.settings.server import tables_folder
from app.settings.upstreams import ANTHROPIC
from app.store import StoreError, UsageRecord
from app.store.engine import read_url
from app.tokens.rules import rules_for
from app.tokens.tokenizer import Tokenizer

HOST = "127.0.0.1"
DRAIN_SECONDS = 5.0
"""Seconds to wait at the end for a summary that is being made: the command is over, and its user waits for a shell."""
SIMULATED_WINDOW = 8_000
SIMULATED_KEY = "sk-simulated"
CANNOT_START = 125
"""Exit status where Steno could not start; this and the next two are as in `env` and `timeout`."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127

OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables read by OpenAI's own clients, and by older ones and LiteLLM."""
ANTHROPIC_VARIABLES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")
"""Variables read by Anthropic's own clients and Claude Code, and by LiteLLM."""
KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OPENCODE = "OPENCODE_CONFIG_CONTENT"

FIRST_PARTY = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
"""Variable read by Claude Code: behind any other base URL than Anthropic's it believes in a window of 200,000 tokens
and not in the model's own, unless it is told that Anthropic is behind it."""

cli = commands()


class Options(Struct, frozen=True):
    upstream: str | None = None
    port: int = 0
    window: int | None = None
    """Context window of every model, in tokens."""
    preset: str | None = None
    database_url: str | None = None
    simulated: bool = False


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
    if shutil.which(command[0]) is None:
        fail(f"There is no command {command[0]!r}.", NOT_FOUND)
    try:
        status = _run(command, Options(upstream, port, window, preset, database_url, simulated))
    except (ConfigurationError, StoreError) as error:
        fail(str(error), CANNOT_START)
    except OSError as error:
        fail(f"{command[0]} cannot be started: {error.strerror}.", NOT_EXECUTABLE)
    if status == -signal.SIGINT:  # As the command did: a shell's loop ends, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise typer.Exit(status if status >= 0 else 128 - status)


def _run(command: Sequence[str], options: Options) -> int:
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
            status = _run_in_foreground(arguments, variables)
        _sum_up(spent, log)
    return status


# Settings


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
    if options.simulated:  # For the inspector: the messages are no person's.
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


def is_anthropic(settings: Settings) -> bool:
    """True if Messages can go to Anthropic alone."""
    return {at.host for at in settings.all_upstreams.values() if "messages" in at.speaks} == {ANTHROPIC}


def _serves_mcp() -> bool:
    """True if MCP's package is installed. It is imported before the command needs it: Codex asks once, and goes on
    without whatever is not there at once."""
    try:
        import_module("mcp.server.lowlevel")
    except ImportError:
        return False
    return True


# Steno


@contextmanager
def _simulated(options: Options) -> Iterator[str]:
    """Run a scripted provider in this process; yields its base URL."""
    count = Tokenizer(tables_folder()).counter(rules_for("gpt-4o").encoding)
    simulator = import_module("lab.simulator").Simulator  # which Steno's own packages do not import
    with simulator(window=options.window or SIMULATED_WINDOW, models="any", count=count).serve() as server:
        yield f"{server.url}/v1"


class _LogFile(logging.Handler):
    """A log, and the number of its warnings and errors."""

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
        raise ConfigurationError(ports.cannot_listen(settings, error)) from error
    taken = listener.getsockname()[1]
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": taken, "admin": None})})
    app = create_app(settings)
    app.state.services.ledger.heard.append(spent.add)
    protocol = protocol_within(settings.limits.receive_seconds, settings.limits.connections)
    try:
        server = serve(app, listener=listener, http=protocol, own_headers=False)
    except RuntimeError as error:
        why: str | None = app.state.failure
        raise ConfigurationError(why or f"Steno could not start; {log.path} says why.") from error
    try:
        yield server.url
    finally:
        server.stop(2 * DRAIN_SECONDS)


# The command


def _run_in_foreground(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command as if the shell had started it: its terminal, its signals. Returns its exit status, negative if a
    signal ended it. Raises `OSError` if it cannot start."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _has_the_terminal():
            return  # The terminal sent it to the whole foreground group: the command has it already.
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # Handlers, and not SIG_IGN: the command would inherit that. What nohup had ignored stays ignored.
    passed_on = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, pass_on) for number in passed_on if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603 - the user's own command
        for number in early:
            process.send_signal(number)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_the_terminal() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


# What makes a command send its requests to Steno: docs/run.md says what was tried of it


def variables_for(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command whose requests go to the Steno at `url`: scheme, host and port."""
    made = {
        **environment,
        **dict.fromkeys(OPENAI_VARIABLES, f"{url}/v1"),
        **dict.fromkeys(ANTHROPIC_VARIABLES, url),  # Its clients add /v1/messages.
    }
    if any(name.lower() in _PROXIES for name in environment):
        for name in ("NO_PROXY", "no_proxy"):
            made[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1")))
    return made


def prepared(
    command: Sequence[str], url: str, environment: dict[str, str], *, anthropic: bool = False, mcp: bool = False
) -> list[str]:
    """Return the command as it is started. A known tool that reads no variable gets arguments or other variables.

    `anthropic`: whether Messages go to Anthropic behind Steno. `mcp`: whether the tool is to be given what Steno has at
    `/mcp`, for which it needs a key that other programs know, too.
    """
    name = PurePath(command[0]).name
    if name == "claude" and anthropic:
        environment.setdefault(FIRST_PARTY, "1")
    tool, server = _TOOLS.get(name), _SERVERS.get(name)
    arguments = tool(list(command), f"{url}/v1", environment) if tool else list(command)
    if mcp and server is not None:
        arguments[1:1] = server(f"{url}/mcp", environment)
    return arguments


def _codex(command: list[str], base_url: str, environment: dict[str, str]) -> list[str]:
    """Configure Codex by arguments: it reads no variable. It gets a provider of its own: OpenAI's at another address
    it asks by WebSocket first, which Steno refuses. Without a key in the environment it sends the one of its login."""
    key = 'env_key="OPENAI_API_KEY"' if environment.get("OPENAI_API_KEY") else "requires_openai_auth=true"
    provider = f'{{name="Steno", base_url="{base_url}", wire_api="responses", {key}}}'
    return [command[0], "-c", 'model_provider="steno"', "-c", f"model_providers.steno={provider}", *command[1:]]


def _opencode(command: list[str], base_url: str, environment: dict[str, str]) -> list[str]:
    """Configure opencode, which takes base URLs from its configuration alone: this variable is the last word of it."""
    try:
        given = msgspec.json.decode(environment.get(_OPENCODE, "{}"), type=dict[str, Any])
    except msgspec.DecodeError:
        given = {}
    at_steno = {name: {"options": {"baseURL": base_url}} for name in ("openai", "anthropic")}
    environment[_OPENCODE] = msgspec.json.encode(_laid_over(given, {"provider": at_steno})).decode()
    return command


def _laid_over(given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in ours.items():
        there = merged.get(name)
        merged[name] = _laid_over(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _server_of_codex(url: str, environment: Mapping[str, str]) -> list[str]:
    if not environment.get("OPENAI_API_KEY"):
        return []
    return ["-c", f'mcp_servers.steno={{url="{url}", bearer_token_env_var="OPENAI_API_KEY"}}']


def _server_of_claude(url: str, environment: Mapping[str, str]) -> list[str]:
    """One argument: of several it would take the user's own for further files. It puts the keys in itself, so that no
    list of processes shows them."""
    sent = {"ANTHROPIC_API_KEY": ("x-api-key", ""), "ANTHROPIC_AUTH_TOKEN": ("authorization", "Bearer ")}
    headers = {name: f"{before}${{{key}}}" for key, (name, before) in sent.items() if environment.get(key)}
    if not headers:
        return []
    servers = {"mcpServers": {"steno": {"type": "http", "url": url, "headers": headers}}}
    return [f"--mcp-config={msgspec.json.encode(servers).decode()}"]


_SERVERS: Mapping[str, Callable[[str, Mapping[str, str]], list[str]]] = {
    "codex": _server_of_codex,
    "claude": _server_of_claude,
}
"""Arguments with which a tool finds a server of MCP."""
_TOOLS: Mapping[str, Callable[[list[str], str, dict[str, str]], list[str]]] = {"codex": _codex, "opencode": _opencode}


# What is said of it


@dataclass(slots=True)
class Spent:
    """Sums over the calls of one run, from the ledger."""

    requests: int = 0
    """Calls of the command that the provider answered with success."""
    refused: int = 0
    """Calls that the provider answered with an error."""
    compacted: int = 0
    summaries: int = 0
    estimated: int = 0
    """Tokens that came, of the calls whose tokens were counted."""
    forwarded: int = 0
    saved: int = 0
    cost: float = 0.0
    summary_cost: float = 0.0
    saved_cost: float = 0.0
    """Cost that the command's own requests would have had beyond this; negative if they would have cost less."""
    too_large: int = 0
    """Requests that came larger than the model's window leaves room for."""
    too_large_saved_cost: float = 0.0
    unpriced: int = 0
    """Calls whose cost is not known."""
    in_dollars: bool = True
    """True if no price was the operator's own, whose currency is not known."""

    def add(self, record: UsageRecord) -> None:
        is_message = record.purpose == "message"
        if record.status != 200:
            self.refused += is_message
            return
        if is_message:
            self.requests += 1
            self.compacted += record.context_status in ("summarized", "trimmed")
            self.saved += record.saved
            if record.estimated is not None and record.forwarded is not None:
                self.estimated += record.estimated
                self.forwarded += record.forwarded
        else:
            self.summaries += 1
        if record.cost is None:
            self.unpriced += 1
            return
        self.cost += record.cost
        self.summary_cost += 0.0 if is_message else record.cost
        self.in_dollars &= record.price_source != "settings"
        self.saved_cost += record.saved_cost or 0.0
        if record.is_too_large:
            self.too_large += 1
            self.too_large_saved_cost += record.saved_cost or 0.0

    def lines(self) -> Iterator[str]:
        """Sums in words; each line fits a terminal."""
        made = counted(self.summaries, "summary", "summaries")
        yield f"{counted(self.requests, 'request')}, {self.compacted} of them compacted; {made} made"
        if self.refused:
            yield f"{counted(self.refused, 'request')} more refused by the provider"
        if self.estimated:
            share = self.saved / self.estimated
            yield f"{self.estimated:,} tokens sent, {self.forwarded:,} forwarded: {self.saved:,} saved ({share:.0%})"
        if self.cost:
            unit = " US dollars at list prices" if self.in_dollars else ""
            summaries = f", {self.summary_cost:.4f} of it for summaries" if self.summaries else ""
            yield f"cost {self.cost:.4f}{unit}{summaries}"
            currency = DOLLARS if self.in_dollars else ""
            yield gain(self.saved_cost, currency)
            if self.too_large:
                part = money(self.too_large_saved_cost, currency)
                yield f"{part} of this comes from {counted(self.too_large, 'request')} that would have been refused"
            if self.unpriced:
                yield f"without {counted(self.unpriced, 'call')} whose cost is not known"


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
    """Print to standard error: what the command writes to standard output may be another program's input."""
    typer.secho(line, err=True, dim=True)


def _more(line: str) -> None:
    _say(f"       {line}")

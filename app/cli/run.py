"""`steno run -- COMMAND`: runs Steno on a free port while a command runs, and prints the savings at the end. The module
also has `steno demo`, whose conversation is in the package `lab`.

Steno runs in a thread of this process, and the command is the only child process. So the command keeps the terminal,
and Steno ends with this process. Steno prints nothing while the command runs. It writes its warnings and errors to a
file, and prints the file's path at the end.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePath
from tempfile import NamedTemporaryFile
from types import FrameType
from typing import Annotated, Any

import typer

from app import __version__
from app.cli.command import (
    Config,
    DatabaseURL,
    Upstream,
    WindowOption,
    at_window,
    fail,
    failing_on,
    keep_quiet,
    load_settings,
)
from app.cli.logs import configure_logging
from app.cli.serve import SWITCH_SECONDS, bind, cannot_listen, with_password
from app.http.loopback import serve
from app.http.protocol import protocol_within
from app.inspector.pages import DOLLARS, counted, gain
from app.main import create_app
from app.settings import ConfigurationError, Settings
from app.settings.upstreams import ANTHROPIC
from app.store import StoreError, UsageRecord
from app.store.engine import read_url

HOST = "127.0.0.1"
DRAIN_SECONDS = 5.0
"""Maximum seconds to wait for an unfinished summary after the command ends. Meanwhile the user waits for the shell."""
CANNOT_START = 125
"""Exit status if Steno cannot start. The commands `env` and `timeout` use 125, 126 and 127 like `steno run`."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127

OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables from which OpenAI's clients read the base URL. Old clients and LiteLLM read the second variable."""
ANTHROPIC_VARIABLES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")
"""Variables from which Anthropic's clients and Claude Code read the base URL. LiteLLM reads the second variable."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
OPENCODE = "OPENCODE_CONFIG_CONTENT"

FIRST_PARTY = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
"""Variable that tells Claude Code that its base URL leads to Anthropic. Without this variable, Claude Code assumes a
window of 200,000 tokens for each model, unless the base URL is Anthropic's own."""

cli = typer.Typer(rich_markup_mode="markdown")


@cli.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run, with its arguments.")],
    upstream: Upstream = None,
    window: WindowOption = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 0,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Run a command with Steno in front of its provider: steno run -- codex

    Steno sets the variables with the base URLs for OpenAI's and Anthropic's clients. It forwards requests to the URLs
    that these variables had before. At the end Steno prints what it compacted and saved. The exit status is the
    command's; 125 if Steno could not start, 126 or 127 if the command could not.
    """
    if shutil.which(command[0]) is None:
        fail(f"There is no command {command[0]!r}.", NOT_FOUND)
    server = {"host": HOST, "port": port, "workers": 1, "drain_seconds": DRAIN_SECONDS}
    flags: dict[str, dict[str, Any]] = {
        "server": server,
        "upstream": {"base_url": upstream},
        "storage": {"url": database_url},
    }
    environment = dict(os.environ)
    try:
        settings = settings_for_run(config, flags, environment)
        status = _run(command, at_window(settings, window) if window else settings, environment)
    except (ConfigurationError, StoreError) as error:
        fail(str(error), CANNOT_START)
    except OSError as error:
        fail(f"{command[0]} cannot be started: {error.strerror}.", NOT_EXECUTABLE)
    if status == -signal.SIGINT:  # End by the same signal: a loop in a shell script ends, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise typer.Exit(status if status >= 0 else 128 - status)


@cli.command()
def demo() -> None:
    """Hold a long conversation with and without Steno, against a simulated provider: no key, no network."""
    keep_quiet()
    with failing_on(ConfigurationError):
        sys.exit(import_module("lab.demo").hold_conversation())


def _run(command: Sequence[str], settings: Settings, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status; negative if a signal ended it.

    Raises `ConfigurationError` or `StoreError` if Steno cannot start, and `OSError` if the command cannot.
    """
    settings, password = with_password(settings)
    records: list[UsageRecord] = []
    with _log_file() as log_file:
        with _serving(settings, records, log_file) as url:
            variables = variables_for(url, environment)
            arguments = prepared(command, url, variables, anthropic=is_anthropic(settings))
            upstreams = ", ".join(dict.fromkeys(each.base_url for each in settings.all_upstreams.values()))
            _say(f"Steno {__version__} at {url}, in front of {upstreams}")
            _more(f"database   {read_url(settings.storage.address).place}")
            if settings.inspector.enabled:
                _more(f"inspector  {url}/ui{f' (password {password})' if password else ''}")
            if arguments != [*command]:
                _more(f"command    {shlex.join(arguments)}")
            status = _run_in_foreground(arguments, variables)
        first, *others = account_of(records)
        _say(f"Steno: {first}")
        for line in others:
            _more(line)
    if log_file.exists():
        _more(f"Steno's log has warnings: {log_file}")
    return status


# Settings


def settings_for_run(
    config: str | None, flags: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]
) -> Settings:
    """Return the settings of a run. Raises `ConfigurationError`.

    DATABASE_URL is ignored, because it belongs to the command. The provider comes from the flags, from Steno's
    settings, or from the command's own environment, in this order.
    """
    os.environ.pop("DATABASE_URL", None)
    settings = load_settings(config, **flags)
    if settings.upstreams or "base_url" in settings.upstream.model_fields_set:
        return settings
    return load_settings(config, **{**flags, **_providers_in(environment)})


def _providers_in(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return settings for the providers that the command would call without Steno."""
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
    """True if Anthropic is the only provider for the Messages format."""
    return {at.host for at in settings.all_upstreams.values() if "messages" in at.speaks} == {ANTHROPIC}


# Steno


@contextmanager
def _log_file() -> Iterator[Path]:
    """Write Steno's warnings and errors to a file that only its owner can read. Remove the file if it stays empty."""
    with NamedTemporaryFile("w", prefix="steno-run-", suffix=".log", delete=False) as file:
        configure_logging("warning", "text", file.file)
        try:
            yield Path(file.name)
        finally:
            logging.getLogger().handlers = [logging.NullHandler()]
            if not file.tell():
                Path(file.name).unlink()


@contextmanager
def _serving(settings: Settings, records: list[UsageRecord], log: Path) -> Iterator[str]:
    """Run Steno, and yield its URL. Append its usage records to `records`. Raises `ConfigurationError` or `StoreError`
    if Steno cannot start."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        listener = bind(HOST, settings.server.port)[0]
    except OSError as error:
        raise ConfigurationError(cannot_listen(settings, error)) from error
    taken = listener.getsockname()[1]
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": taken, "admin": None})})
    app = create_app(settings)
    app.state.services.ledger.heard.append(records.append)
    protocol = protocol_within(settings.limits.receive_seconds, settings.limits.connections)
    try:
        server = serve(app, listener=listener, http=protocol, own_headers=False)
    except RuntimeError as error:
        why: str | None = app.state.failure
        raise ConfigurationError(why or f"Steno could not start; {log} says why.") from error
    try:
        yield server.url
    finally:
        server.stop(2 * DRAIN_SECONDS)


# The command


def _run_in_foreground(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in the foreground, and pass on signals that the terminal does not send to it. Return its exit
    status, negative if a signal ended it. Raises `OSError` if it cannot start."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and _has_the_terminal():
            return  # The terminal has sent the signal to the command, too.
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    # Handlers, and not SIG_IGN, which the command would inherit. Signals that nohup ignores stay ignored.
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
    with suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


# Variables and arguments that direct a command's requests to Steno: docs/run.md lists the tested tools


def variables_for(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command whose requests go to the Steno at `url` (scheme, host and port)."""
    made = {
        **environment,
        **dict.fromkeys(OPENAI_VARIABLES, f"{url}/v1"),
        **dict.fromkeys(ANTHROPIC_VARIABLES, url),  # Anthropic's clients add /v1/messages.
    }
    if any(name.lower() in _PROXIES for name in environment):
        for name in ("NO_PROXY", "no_proxy"):
            made[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1")))
    return made


def prepared(command: Sequence[str], url: str, environment: dict[str, str], *, anthropic: bool = False) -> list[str]:
    """Return the command with the arguments that a known tool needs, and add the needed variables to `environment`.

    `anthropic`: whether Anthropic is the only provider for Messages.
    """
    match PurePath(command[0]).name:
        case "claude" if anthropic:
            environment.setdefault(FIRST_PARTY, "1")
        case "codex":
            return _codex(command, f"{url}/v1", environment)
        case "opencode":  # It reads base URLs only from its configuration. This variable overrides its files.
            at_steno = {name: {"options": {"baseURL": f"{url}/v1"}} for name in ("openai", "anthropic")}
            environment.setdefault(OPENCODE, json.dumps({"provider": at_steno}))
    return [*command]


def _codex(command: Sequence[str], base_url: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command with arguments for Codex, which reads no variables. The arguments define a provider `steno`,
    because Codex first tries a WebSocket for its own provider. Without OPENAI_API_KEY, Codex sends its login token."""
    key = 'env_key="OPENAI_API_KEY"' if environment.get("OPENAI_API_KEY") else "requires_openai_auth=true"
    provider = f'{{name="Steno", base_url="{base_url}", wire_api="responses", {key}}}'
    return [command[0], "-c", 'model_provider="steno"', "-c", f"model_providers.steno={provider}", *command[1:]]


# Output at the end


def account_of(records: Sequence[UsageRecord]) -> Iterator[str]:
    """Yield short lines about a run: requests and summaries, tokens sent and saved, and costs."""
    requests = [each for each in records if each.purpose == "message"]
    if not requests:
        yield "no request came through"
        yield "The command may read its base URL elsewhere: docs/run.md has what is known of tools."
        return
    answered = [each for each in records if each.status == 200]
    messages = [each for each in answered if each.purpose == "message"]
    compacted = sum(each.context_status in ("summarized", "trimmed") for each in messages)
    failed = f", {len(requests) - len(messages)} failed" if len(requests) > len(messages) else ""
    made = counted(len(answered) - len(messages), "summary", "summaries")
    yield f"{counted(len(requests), 'request')}, {compacted} of them compacted{failed}; {made} made"
    if sent := sum(each.estimated or 0 for each in messages):
        forwarded, saved = sum(each.forwarded or 0 for each in messages), sum(each.saved for each in messages)
        yield f"{sent:,} tokens sent, {forwarded:,} forwarded: {saved:,} saved ({saved / sent:.0%})"
    if cost := sum(each.cost or 0.0 for each in answered):
        currency = "" if any(each.price_source == "settings" for each in answered) else DOLLARS
        least = "at least " if any(each.cost is None for each in answered) else ""
        yield f"cost {least}{cost:.4f}{' US dollars at list prices' if currency else ''}, summaries included"
        yield gain(sum(each.saved_cost or 0.0 for each in answered), currency)


def _say(line: str) -> None:
    """Print to standard error, because the command's standard output may be another program's input."""
    typer.secho(line, err=True, dim=True)


def _more(line: str) -> None:
    _say(f"       {line}")

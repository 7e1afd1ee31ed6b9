"""Commands: `steno run`, the help, and lines on a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module

import pytest
import structlog
from typer.main import get_group

from app import __version__
from app.cli.logs import configure_logging
from app.cli.main import COMMANDS
from app.cli.run import FIRST_PARTY, is_anthropic, prepared, settings_for_run, variables_for
from app.cli.serve import ServeArguments, Server, banner
from app.conversation.reasons import _REMEDIES, Code, because, hint_for
from app.proxy.request_log import _AWAY, _FAULT, _STATUSES
from app.settings import Settings, load
from scripts.generate_settings import keys

URL = "http://127.0.0.1:9000"


def test_base_urls_are_set_as_each_client_reads_them() -> None:
    made = variables_for(URL, {"OPENAI_API_BASE": "https://elsewhere/v1", "PATH": "/bin"})
    assert made == {
        "PATH": "/bin",
        "OPENAI_BASE_URL": f"{URL}/v1",
        "OPENAI_API_BASE": f"{URL}/v1",
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_API_BASE": URL,
    }


@pytest.mark.parametrize(("given", "made"), [({}, "127.0.0.1"), ({"NO_PROXY": "corp"}, "corp,127.0.0.1")])
def test_a_proxy_is_not_asked_for_steno(given: dict[str, str], made: str) -> None:
    environment = variables_for(URL, {"https_proxy": "http://proxy:3128", **given})
    assert environment["NO_PROXY"] == made
    assert "NO_PROXY" not in variables_for(URL, {})


def test_signal_before_the_event_loop_runs_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to stop while it starts would else run for ever, and its supervisor with it."""
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    server = Server(ServeArguments(Settings(), [], [], None, reports=False))
    try:
        server.run_until_stopped()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert server.should_exit


def test_claude_code_is_told_that_anthropic_is_behind_steno_where_it_is() -> None:
    """Or it falls from a window of a million tokens to 200,000. What the user says counts for more."""
    told: dict[str, str] = {}
    assert prepared(["/bin/claude", "-p", "hi"], URL, told, anthropic=True) == ["/bin/claude", "-p", "hi"]
    assert told == {FIRST_PARTY: "1"}
    silent: dict[str, str] = {}
    prepared(["claude"], URL, silent)
    prepared(["python"], URL, silent, anthropic=True)
    assert not silent
    own = {FIRST_PARTY: "0"}
    prepared(["claude"], URL, own, anthropic=True)
    assert own == {FIRST_PARTY: "0"}


@pytest.mark.parametrize(
    ("upstream", "environment", "anthropic"),
    [
        ({}, {}, True),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, True),
        ({}, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, False),
        ({"base_url": "http://127.0.0.1:1/v1"}, {}, False),
        ({"base_url": "https://api.anthropic.com/v1"}, {}, True),
    ],
)
def test_anthropic_is_behind_steno_where_messages_can_go_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, upstream: dict[str, str], environment: dict[str, str], anthropic: bool
) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    assert is_anthropic(settings_for_run(None, {"upstream": upstream}, environment)) is anthropic


@pytest.mark.parametrize(
    ("environment", "key"),
    [({"OPENAI_API_KEY": "sk"}, {"env_key": "OPENAI_API_KEY"}), ({}, {"requires_openai_auth": True})],
)
def test_codex_gets_a_provider_before_its_own_arguments(environment: dict[str, str], key: dict[str, object]) -> None:
    command = prepared(["/usr/bin/codex", "exec", "hello"], URL, environment)
    assert (command[0], command[-2:]) == ("/usr/bin/codex", ["exec", "hello"])
    assert command[1:-2:2] == ["-c", "-c"]
    assert tomllib.loads("\n".join(command[2:-2:2])) == {
        "model_provider": "steno",
        "model_providers": {"steno": {"name": "Steno", "base_url": f"{URL}/v1", "wire_api": "responses", **key}},
    }


def test_opencode_gets_its_providers_in_its_configuration_unless_the_user_has_one() -> None:
    environment: dict[str, str] = {}
    assert prepared(["opencode", "run"], URL, environment) == ["opencode", "run"]
    at_steno = {"options": {"baseURL": f"{URL}/v1"}}
    made = environment["OPENCODE_CONFIG_CONTENT"]
    assert json.loads(made) == {"provider": {"openai": at_steno, "anthropic": at_steno}}
    prepared(["opencode"], "http://127.0.0.1:1", environment)
    assert environment["OPENCODE_CONFIG_CONTENT"] == made


# The help

HELP = "import sys; from app.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"


def test_help_names_every_command_and_imports_none() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)  # noqa: S603
    for name, (module, _) in COMMANDS.items():
        assert name in ended.stdout
        assert f"app.cli.{module} " not in ended.stdout
        assert get_group(import_module(f"app.cli.{module}").cli).commands[name].help


# Lines and the banner


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What `serve` writes on a terminal without colours."""
    root = logging.getLogger()
    handlers, level, written = root.handlers, root.level, io.StringIO()
    configure_logging("info", "text", written)
    yield written
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_has_its_event_first_and_no_empty_fields(written: io.StringIO) -> None:
    structlog.get_logger("steno.test").info("payload changed", model="gpt-4o", reason=None, actions=[], times=0)
    assert re.fullmatch(r"[\d:]{8} \[info +\] payload changed +model='gpt-4o' times=0\n", written.getvalue())


@pytest.mark.parametrize("hostile", ["a\nwarning provider failed", "\x1b[2J", "two words", 'a "quote"', "\u202e"])
def test_a_value_cannot_pass_for_another_line_or_move_the_cursor(written: io.StringIO, hostile: str) -> None:
    structlog.get_logger("steno.test").info("something", path=hostile)
    [line] = written.getvalue().removesuffix("\n").split("\n")
    assert line.isprintable()
    assert f"path={hostile!r}" in line


def test_the_banner_has_an_address_to_paste_for_each_format_and_every_upstream() -> None:
    settings = load(upstreams={"local": {"base_url": "http://127.0.0.1:11434/v1"}})
    text = banner(settings, "http://127.0.0.1:8080", "sqlite:///steno.db")
    for shown in (
        f"Steno {__version__}",
        "OPENAI_BASE_URL=http://127.0.0.1:8080/v1",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n",
        "Upstream default  https://api.openai.com/v1\n",
        "Upstream local    http://127.0.0.1:11434/v1\n",
        "sqlite:///steno.db",
    ):
        assert shown in text
    assert "http://127.0.0.1:8080/ui\n" in text
    assert "Password" not in text
    made = banner(settings, "", "", password="sesame", admin="http://127.0.0.1:9090")
    assert "http://127.0.0.1:9090/ui\n" in made
    assert "Password          sesame (" in made


def test_remedies_name_only_settings_that_exist() -> None:
    known = keys() | {"summary.upstream"}
    sections = "|".join(Settings.model_fields)
    texts = [*_REMEDIES.values(), _FAULT, *_STATUSES.values(), *_AWAY.values()]
    named = re.findall(rf"\b((?:{sections})(?:\.[a-z_]+)+)", " ".join(texts))
    assert named
    assert set(named) <= known


def test_the_remedy_is_for_the_first_reason_about_which_something_can_be_done() -> None:
    why = (*because(Code.SUMMARISER_STATUS, "401"), *because(Code.SUMMARY_FAILED_LATELY))
    assert "key" in str(hint_for(why))
    assert hint_for(because(Code.SUMMARISER_STATUS, "500")) != hint_for(because(Code.SUMMARISER_STATUS, "400"))
    assert hint_for(because(Code.NOTHING_TO_SUMMARISE)) is None
    assert hint_for(()) is None

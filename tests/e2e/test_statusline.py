"""`steno statusline` as Claude Code runs it: JSON on standard input, one line on standard output, never an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anthropic
import pytest

from app.commands.statusline import status_line
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import turns
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import closed_port

KEY = "sk-ant-of-claude-code"
SESSION = "0c5ad2b4-6f0e-4f3a-9b57-2f3f0f6f9a11"
MODEL = "claude-sonnet-5"


def given(session: str = SESSION, model: str = MODEL) -> bytes:
    """What Claude Code says; of its members only these are read."""
    return json.dumps({"session_id": session, "model": {"id": model, "display_name": "Sonnet"}, "cwd": "/w"}).encode()


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno()


def ask(running: Steno, number: int, model: str = MODEL) -> None:
    """A request of the session, with so many turns before it."""
    with anthropic.Anthropic(base_url=running.url, api_key=KEY, max_retries=0) as claude:
        claude.messages.create(
            model=model,
            max_tokens=200,
            messages=turns(number),
            extra_headers={"x-claude-code-session-id": SESSION},
        )


def line(running: Steno, said: bytes, environment: dict[str, str] | None = None) -> str:
    known = {"ANTHROPIC_API_KEY": KEY} if environment is None else environment
    return status_line(said, {"ANTHROPIC_BASE_URL": running.url, **known})


def shown(running: Steno, start: str) -> str:
    """The line, once what was asked last is stored."""
    commands.until(lambda: line(running, given()).startswith(start), 30.0)
    return line(running, given())


def test_the_line_says_what_was_forwarded_and_saved_and_when_the_next_compaction_comes(running: Steno) -> None:
    ask(running, 1)
    whole = shown(running, "Steno: 6")
    assert " tokens, forwarded whole, compacts in about 4." in whole
    assert "saved" not in whole
    ask(running, 15)
    compacted = shown(running, "Steno: 2.")
    assert "k of 9." in compacted
    assert " saved in this session, compacts in about 3." in compacted


def test_requests_beside_the_session_s_own_are_not_what_is_shown(running: Steno) -> None:
    """Claude Code has titles written by a smaller model, under the same session."""
    ask(running, 15)
    before = shown(running, "Steno: 2.")
    ask(running, 1, model="claude-haiku-4-5")
    commands.until(lambda: "forwarded whole" in line(running, given(model="claude-haiku-4-5")))
    assert line(running, given()) == before
    assert line(running, given(model=f"{MODEL}[1m]")) == before


def test_the_command_reads_standard_input_and_prints_one_line(running: Steno, tmp_path: Path) -> None:
    ask(running, 1)
    expected = shown(running, "Steno: 6")
    variables = {
        "ANTHROPIC_BASE_URL": f"{running.url}/",
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "app.commands.cli", "statusline"],
        input=given(),
        cwd=tmp_path,
        env=commands.environment(variables),
        capture_output=True,
        check=True,
    )
    assert (ended.stdout.decode(), ended.stderr) == (f"{expected}\n", b"")


def test_without_a_key_a_steno_of_this_machine_is_asked_as_nobody(running: Steno) -> None:
    assert line(running, given(), {}) == "Steno: nothing of this session under this key"


def test_a_steno_that_wants_a_key_says_so(steno: StartSteno) -> None:
    closed = steno(server={"allow_unauthenticated": False})
    assert line(closed, given(), {}).startswith("Steno: wants the key")


@pytest.mark.parametrize("said", [b"", b"[]", b"null", b"{", b'{"session_id": "s", "model": 7}', b"{}"])
def test_what_names_no_session_has_no_line(said: bytes) -> None:
    assert status_line(said, {}, "http://127.0.0.1:1") == ""


def test_where_nothing_answers_or_something_else_does_there_is_no_error(running: Steno, simulator: Simulator) -> None:
    nowhere = f"127.0.0.1:{closed_port()}"
    assert status_line(given(), {}, f"http://{nowhere}") == f"Steno does not answer at {nowhere}"
    with simulator.serve() as another:
        assert status_line(given(), {}, another.url) == "Steno: nothing of this session under this key"
    assert status_line(given("../../x y"), {}, running.url) == "Steno: nothing of this session under this key"

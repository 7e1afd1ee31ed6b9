"""`steno run -- COMMAND` as its users run it: what the command gets, how both end, and what is said of it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import ROOT, START_SECONDS

PYTHON = sys.executable
TURNS = 14

OPENAI = """
import openai
client = openai.OpenAI(max_retries=0)
def ask(messages):
    return client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message.content
"""
ANTHROPIC = """
import anthropic
client = anthropic.Anthropic(max_retries=0)
def ask(messages):
    return client.messages.create(model="claude-sonnet-4-5", max_tokens=400, messages=messages).content[0].text
"""
CHAT = """
import sys
messages = []
for turn in range(14):
    messages.append({"role": "user", "content": f"Question {turn}. " + "The order is on its way to the shop. " * 60})
    messages.append({"role": "assistant", "content": ask(messages)})
print(messages[-1]["content"])
sys.exit(3)
"""
COUNTING_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.02)
time.sleep(0.3)
sys.exit(40 + len(seen))
"""
UNTIL_WARNED = """
import os, pathlib, time
while not any("No connection" in file.read_text() for file in pathlib.Path(os.environ["TMPDIR"]).iterdir()):
    time.sleep(0.02)
"""


def run(folder: Path, command: list[str], /, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """To its end. Whatever temporary files are left are in the folder `temporary`."""
    (folder / "temporary").mkdir(exist_ok=True)
    nowhere = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
    variables = {"TMPDIR": str(folder / "temporary"), **nowhere, **variables}
    return commands.run(["run", *options, "--", *command], folder, ROOT, **variables)


def numbers(line: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def assert_nothing_is_left(folder: Path, stderr: str) -> None:
    """Neither the server nor its log, where that had nothing to say."""
    [port] = re.findall(r"^Steno \S+ at http://127.0.0.1:(\d+), ", stderr, re.MULTILINE)
    assert is_free(int(port))
    assert not list((folder / "temporary").iterdir())


# What the command gets


@pytest.mark.parametrize("client", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_a_client_goes_through_steno_to_where_it_went_before(
    tmp_path: Path, simulator: Simulator, provider: RunningServer, client: str
) -> None:
    """With its own key, its own standard output and its own exit status; the end says what was saved."""
    (tmp_path / "talk.py").write_text(client + CHAT)
    before = {"OPENAI_BASE_URL": f"{provider.url}/v1", "ANTHROPIC_BASE_URL": provider.url}
    keys = {"OPENAI_API_KEY": "sk-mine", "ANTHROPIC_API_KEY": "sk-mine"}
    ended = run(tmp_path, [PYTHON, "talk.py"], "--window", "6000", **before, **keys)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith(f"Answer {TURNS}: ")
    assert ended.stdout.count("\n") == 1
    assert len(simulator.chats) == TURNS
    first = simulator.chats[0]
    assert "sk-mine" in (first.header("authorization") or first.header("x-api-key") or "")
    assert re.search(r"^       inspector  http://127.0.0.1:\d+/ui \(password [\w-]{16}\)$", ended.stderr, re.MULTILINE)
    [said, sizes, cost, *_] = ended.stderr.partition("\nSteno: ")[2].splitlines()
    requests, compacted, summaries = numbers(said)
    assert (requests, summaries) == (TURNS, len(simulator.summaries))
    assert 0 < compacted < TURNS
    sent, forwarded, spared, _ = numbers(sizes)
    assert sent - forwarded == spared > 0
    assert "US dollars at list prices" in cost
    assert max(map(len, (said, sizes, cost))) <= 80
    assert_nothing_is_left(tmp_path, ended.stderr)


def test_the_example_compacts(tmp_path: Path, provider: RunningServer) -> None:
    at = ["--window", "8000", "--upstream", f"{provider.url}/v1"]
    ended = run(tmp_path, [PYTHON, str(ROOT / "examples" / "chat.py"), "--play"], *at, OPENAI_API_KEY="sk-any")
    assert ended.returncode == 0, ended.stderr
    statuses = re.findall(r"^\[(\w+): [\d,]+ tokens sent", ended.stdout, re.MULTILINE)
    assert statuses[:3] == ["full"] * 3
    assert "summarized" in statuses[:15]
    assert_nothing_is_left(tmp_path, ended.stderr)


# How it ends


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ([PYTHON, "-c", "raise SystemExit(7)"], 7),
        ([PYTHON, "-c", "import os; os.kill(os.getpid(), 9)"], 128 + signal.SIGKILL),
        (["no-such-command"], 127),
        (["./plain"], 127),
    ],
)
def test_the_exit_status_is_the_command_s(tmp_path: Path, command: list[str], status: int) -> None:
    (tmp_path / "plain").write_text("nobody may run this")
    ended = run(tmp_path, command)
    assert ended.returncode == status
    if status == 127:
        assert ended.stderr == f"steno: There is no command '{command[0]}'.\n"


def test_what_is_wrong_is_in_a_log_that_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, [PYTHON, "-c", UNTIL_WARNED], "--upstream", "http://127.0.0.1:1/v1")
    assert ended.returncode == 0
    assert "no request came through" in ended.stderr
    [log] = (tmp_path / "temporary").iterdir()
    assert f"Steno's log has warnings: {log}" in ended.stderr
    assert "No connection to the provider" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def heed_interrupts() -> None:
    """Who runs these tests in the background may ignore them, and all that is started here would."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(folder: Path, script: str, **options: object) -> subprocess.Popen[str]:
    """A run of a script that says when it is ready."""
    (folder / "temporary").mkdir()
    options.setdefault("preexec_fn", heed_interrupts)
    process: subprocess.Popen[str] = subprocess.Popen(  # noqa: S603 - our own command
        [PYTHON, "-m", "app.cli.main", "run", "--", PYTHON, "-c", script],
        cwd=folder,
        env=commands.environment(
            {
                "HOME": str(folder),
                "TMPDIR": str(folder / "temporary"),
                "STENO_UPSTREAM__BASE_URL": "http://127.0.0.1:1/v1",
            }
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_command_decides(tmp_path: Path, number: signal.Signals) -> None:
    script = f"""
import signal, sys
signal.signal({number:d}, lambda *_: sys.exit(9))
print("ready", flush=True)
signal.pause()
"""
    process = started(tmp_path, script, start_new_session=True)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 9
    assert "Steno: no request came through" in stderr


def test_a_keyboard_s_interrupt_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal sends it to both; Steno goes on until the command has ended."""
    ours, theirs = os.openpty()

    def with_a_terminal() -> None:
        heed_interrupts()
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    with closing(os.fdopen(ours, "wb", buffering=0)) as keyboard:
        process = started(tmp_path, COUNTING_INTERRUPTS, stdin=theirs, preexec_fn=with_a_terminal)
        os.close(theirs)
        keyboard.write(b"\x03")
        _, stderr = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 41
    assert "Steno: no request came through" in stderr

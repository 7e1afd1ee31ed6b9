"""The command line as its users run it: a process of its own, in an empty folder, with a bare environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import httpx2

from tests.e2e.forks import Forked, Forks

ROOT = Path(__file__).parents[2]
SECRET = "a secret for the end-to-end tests"
MODELS = json.dumps([{"match": "*", "context_window": 8_000}])
START_SECONDS = 120.0
"""How long a command may take to start or to end: a bound for one that hangs, on a machine that is busy."""

Process = subprocess.Popen[Any] | Forked

forks: Forks | None = None
"""Where there is one, all but the first process of each command begin there. Benchmarks measure real ones."""
_begun: set[tuple[str, str]] = set()


def environment(variables: Mapping[str, str], checkout: Path = ROOT) -> dict[str, str]:
    """What Steno finds in its environment: these variables and what Python needs."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(checkout), **variables}


def at_home(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """With the home of a user who lives there: that is where the database is by default. It may take its time, for how
    busy the machine is is not what is tested."""
    return {"HOME": str(folder), "STENO_STORAGE__TIMEOUT_SECONDS": "5", **variables}


def run(
    arguments: list[str], folder: Path, checkout: Path = ROOT, /, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command to its end; `replay` is the lab's."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        module, given = ("lab.replay", arguments[1:]) if arguments[0] == "replay" else ("app.cli.main", arguments)
        env = environment(at_home(folder, variables), checkout)
        process = _start(module, given, folder, env, stdout, stderr)
        try:
            status = process.wait(START_SECONDS)
        finally:
            _end(process)
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())


def on_terminal(
    stream: Literal["stdout", "stderr"], arguments: list[str], folder: Path, /, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command to its end, with one of its streams on a terminal of 80 columns and the other in a file."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(ours, "rb", buffering=0) as terminal, tempfile.TemporaryFile("w+") as other:
        with os.fdopen(theirs, "wb", buffering=0) as written:
            files = (written, other) if stream == "stdout" else (other, written)
            env = environment(at_home(folder, {"TERM": "xterm", **variables}))
            process = _start("app.cli.main", arguments, folder, env, *files)
        shown = b""
        try:
            with suppress(OSError):  # So ends a terminal that nobody writes to any more.
                while piece := terminal.read(4096):
                    shown += piece
            status = process.wait(START_SECONDS)
        finally:
            _end(process)
        other.seek(0)
        texts = shown.decode().replace("\r\n", "\n"), other.read()
        return subprocess.CompletedProcess(arguments, status, *(texts if stream == "stdout" else reversed(texts)))


def checkout_without_tables(folder: Path) -> Path:
    """A copy of the code that has no tokenizer tables beside it."""
    for name in ("app", "lab", "alembic"):
        shutil.copytree(ROOT / name, folder / name)  # What is compiled is good for the copy, too.
    return folder


@dataclass(slots=True)
class Serving:
    """A running `steno serve`."""

    process: Process
    folder: Path
    url: str = ""

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its log lines so far."""
        lines = (self.folder / "stdout").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, timeout=60.0).json()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(START_SECONDS)

    def stop(self) -> None:
        """Ends it with its workers, and kills it if it does not end."""
        try:
            self.terminate()
            self.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        _end(self.process)


def serve(
    arguments: list[str], folder: Path, checkout: Path = ROOT, module: str = "app.cli.main", **variables: str
) -> Serving:
    """Starts Steno on a free port and returns once it listens."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        started = ["serve", "--port", "0", *arguments]
        process = _start(module, started, folder, environment(at_home(folder, variables), checkout), stdout, stderr)
    serving = Serving(process, folder)
    try:
        until(lambda: process.poll() is not None or _address(serving))
        assert process.poll() is None, f"it ended: {serving.errors}"
    except BaseException:
        serving.kill()
        raise
    serving.url = _address(serving)
    return serving


def _end(process: Process) -> None:
    """Leaves nothing open, even if a test's timeout comes meanwhile: the next test would fail for it."""
    try:
        process.kill()
        process.wait(START_SECONDS)
    finally:
        if isinstance(process, Forked):
            process.close()


def _start(module: str, arguments: list[str], folder: Path, env: Mapping[str, str], *files: IO[Any]) -> Process:
    command = module, arguments[0]
    if forks is not None and env["PYTHONPATH"] == str(ROOT) and command in _begun:
        return forks.start(module, arguments, folder, env, *files)
    _begun.add(command)
    stdout, stderr = files
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", module, *arguments], cwd=folder, env=env, stdout=stdout, stderr=stderr
    )


def until(condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
    """Waits for it, or fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _address(serving: Serving) -> str:
    url = next((line["url"] for line in serving.log if line["event"] == "serving"), "")
    return str(url).removesuffix("/v1")

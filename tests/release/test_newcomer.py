"""docs/start.md as a newcomer follows it: a fresh clone, `make simulator`, `make run`, and the program on the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.types import MessageParam

from tests.e2e.commands import ROOT

PAGE = (ROOT / "docs" / "start.md").read_text()
START_SECONDS = 90.0

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / ".git").exists() or any(shutil.which(name) is None for name in ("git", "make", "curl")),
        reason="it takes a git checkout, make and curl",
    ),
]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def clone(folder: Path) -> Path:
    """A fresh clone with the packages that are installed already. The token tables are for `make` to fetch."""
    cloned = folder / "steno"
    subprocess.run(["git", "clone", "--quiet", ROOT, cloned], check=True)  # noqa: S603, S607
    installed = cloned / ".venv"
    installed.mkdir()
    for entry in (ROOT / ".venv").iterdir():
        if not entry.name.startswith(".steno-"):
            (installed / entry.name).symlink_to(entry.resolve())
    locked = b"".join((cloned / "requirements" / f"{name}.txt").read_bytes() for name in ("run", "dev"))
    key = subprocess.run(["cksum"], input=locked, capture_output=True, check=True).stdout  # noqa: S607
    for name in ("run", "dev"):
        (installed / f".steno-{name}").write_bytes(key)
    return cloned


@contextmanager
def made(clone: Path, target: str, *options: str, answers: str) -> Iterator[None]:
    """`make` of a target that serves, until it answers at that address."""
    registry = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    environment = {**registry, "PATH": os.environ["PATH"], "HOME": str(clone.parent)}
    with printed_by(clone, target).open("w") as printed:
        process = subprocess.Popen(  # noqa: S603
            ["make", target, *options],  # noqa: S607
            cwd=clone,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(answers, process, printed_by(clone, target))
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=START_SECONDS)
    assert "ERROR" not in printed_by(clone, target).read_text()


def printed_by(clone: Path, target: str) -> Path:
    return clone.parent / f"{target}.txt"


def wait_for(url: str, process: subprocess.Popen[bytes], printed: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, printed.read_text()
        try:
            if httpx2.get(url, timeout=5.0).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.1)
    raise TimeoutError(url)


@pytest.mark.timeout(300)
def test_a_fresh_clone_shows_its_first_compaction(tmp_path: Path) -> None:
    [program, printed, command] = re.findall(r"^```(?:python|text|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:3]
    provider, steno = free_port(), free_port()
    upstream, url = f"http://127.0.0.1:{provider}/v1", f"http://127.0.0.1:{steno}"
    cloned = clone(tmp_path)
    assert "    make simulator\n" in PAGE
    [settings] = re.findall(r"^    make run UPSTREAM=http://127.0.0.1:9000/v1 (.*)$", PAGE, re.MULTILINE)
    with (
        made(cloned, "simulator", f"PORT={provider}", answers=f"{upstream}/models"),
        made(cloned, "run", f"PORT={steno}", f"UPSTREAM={upstream}", *settings.split(), answers=f"{url}/readyz"),
    ):
        ran = subprocess.run(  # noqa: S603 - our own page
            [sys.executable, "-c", program.replace("http://127.0.0.1:8080", url)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr + printed_by(cloned, "run").read_text()
        assert len(ran.stdout.splitlines()) == 20
        assert [line for line in printed.splitlines() if line != "..." and line not in ran.stdout] == []
        conversation = httpx2.get(f"{url}/context/conversations/my-first", timeout=10.0).json()
        assert conversation["context_status"] == "summarized"
        deadline, title = time.monotonic() + 30.0, "Question 1: what about order ORD-0001?"
        while title not in (listed := httpx2.get(f"{url}/ui/conversations", timeout=10.0).text):
            assert time.monotonic() < deadline, listed  # Steno stores the messages within seconds.
            time.sleep(0.2)
        assert "my-first" in listed
        assert "summarized" in listed
        assert "Sign in with a key" in listed
        asked = command.replace("http://127.0.0.1:8080", url)
        shown = subprocess.run(["/bin/sh", "-c", asked], capture_output=True, text=True, check=True)  # noqa: S603
        told = [re.findall(r"Question (\d+):", chunk["text"]) for chunk in json.loads(shown.stdout)["data"]]
        assert sorted(told, key=len, reverse=True) == [
            [str(turn) for turn in turns] for turns in (range(1, 8), range(8, 14))
        ]
        with Anthropic(base_url=url, api_key="sk-ant-test", max_retries=0) as claude:
            assert "summarized" in statuses_of(claude)


def statuses_of(claude: Anthropic) -> list[str]:
    """What the answers to the page's questions say of the context, in Anthropic's format."""
    messages: list[MessageParam] = []
    statuses = []
    for turn in range(1, 21):
        messages.append({"role": "user", "content": f"Question {turn}: " + "The customer wrote again. " * 100})
        answer = claude.messages.create(model="claude-sonnet-5", max_tokens=500, messages=messages)
        messages.append({"role": "assistant", "content": answer.content})
        statuses.append((answer.model_extra or {})["context_status"])
    return statuses

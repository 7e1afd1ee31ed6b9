"""The smaller commands as a user starts them: models, plan, conversations, bench, version and help."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from app import __version__
from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import ROOT
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ended = commands.run(list(arguments), folder, ROOT, **variables)
    assert "Traceback" not in ended.stderr
    return ended


def shown(folder: Path, *arguments: str, **variables: str) -> str:
    """On a terminal, which it fits."""
    ended = commands.on_terminal("stdout", list(arguments), folder, TERM="dumb", **variables)
    assert ended.returncode == 0, ended.stderr
    assert all(len(line) <= 80 for line in ended.stdout.splitlines()), ended.stdout
    return ended.stdout


def test_version_and_help(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"Steno {__version__}\n"
    assert "--show-completion" in run(tmp_path, "-h").stdout
    assert "COMMAND..." in run(tmp_path, "run", "-h").stdout


def test_models_are_listed_with_where_their_windows_come_from(tmp_path: Path, provider: RunningServer) -> None:
    upstream = ["--upstream", f"{provider.url}/v1"]
    models = json.dumps([{"match": "mine", "context_window": 32_000}])
    lines = [line.split() for line in shown(tmp_path, "models", *upstream, STENO_MODELS=models).splitlines()]
    assert ["mine", "32,000", "config", "default"] in lines
    assert ["gpt-4o", "8,000", "provider", "default"] in lines
    guessed = run(tmp_path, "models", "never-heard-of", *upstream).stdout.splitlines()[1]
    assert guessed.split() == ["never-heard-of", "128,000", "default", "default"]


BEHIND_A_PROXY = {
    "STENO_SERVER__WORKERS": "2",
    "STENO_SERVER__TRUSTED_PROXIES": '["10.0.0.1"]',
    "STENO_SERVER__ALLOW_UNAUTHENTICATED": "false",
    "STENO_CLIENTS__HEADER": "x-user",
    "STENO_UPSTREAM__API_KEY_ENV": "PROVIDER_KEY",
    "PROVIDER_KEY": "sk-operator",
}
"""Settings of a server that its own plan must not obey."""


def test_a_plan_is_what_would_happen(tmp_path: Path, simulator: Simulator, provider: RunningServer) -> None:
    """Without sending it, and without a database."""
    (tmp_path / "request.json").write_bytes(chat(long_history()))
    upstream = ["--upstream", f"{provider.url}/v1"]
    planned = json.loads(run(tmp_path, "plan", "request.json", *upstream).stdout)
    assert (planned["context_status"], planned["budget"]["trigger"]) == ("summarized", 5_320)
    assert planned["budget"]["window_source"] == "provider"
    [summarised] = [part for part in planned["parts"] if part["kind"] == "summarized"]
    assert summarised["first_index"] == 0
    roomy = run(tmp_path, "plan", "request.json", "--window", "100000", *upstream, **BEHIND_A_PROXY).stdout
    assert json.loads(roomy)["context_status"] == "full"
    assert not simulator.chats
    assert not (tmp_path / ".local").exists()


@pytest.fixture
def stored(tmp_path: Path, steno: StartSteno) -> str:
    """The URL of a database with the conversation `order`, of one tenant or another."""
    url = f"sqlite:///{tmp_path}/steno.db"
    running = steno(storage={"url": url})
    for key in ("one", "two"):
        headers = f"authorization: Bearer {key}".encode(), f"x-context-conversation-id: order-{key}".encode()
        assert post(running.url, chat(long_history()), *headers).status == 200
    running.stop()
    return url


def test_conversations_are_listed_and_deleted(tmp_path: Path, stored: str) -> None:
    """Of every tenant: whoever has the database needs no key."""
    at = ["--database-url", stored]
    listed = shown(tmp_path, "conversations", "list", *at)
    assert {line for line in listed.splitlines() if not line.startswith(" ")} == {"order-one", "order-two"}
    assert "summarized" in listed
    deleted = run(tmp_path, "conversations", "delete", "order-one", "--yes", *at)
    assert deleted.stdout == "Deleted order-one.\n"
    ended = run(tmp_path, "conversations", "delete", "order-one", "--yes", *at)
    assert (ended.returncode, ended.stderr) == (1, "steno: There is no conversation 'order-one'.\n")
    assert "order-two" in run(tmp_path, "conversations", "list", *at).stdout

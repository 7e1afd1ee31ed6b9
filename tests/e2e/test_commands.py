"""The smaller commands as a user starts them: models, plan, conversations, bench, version and help."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx2
import pytest

from app import __version__
from app.simulator import Simulator
from app.simulator.server import RunningServer
from tests.e2e import commands
from tests.e2e.commands import ROOT
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ended = commands.run(list(arguments), folder, ROOT, **variables)
    assert "Traceback" not in ended.stderr
    assert all(len(line) <= 80 for line in ended.stdout.splitlines()), ended.stdout
    return ended


def test_version_and_help(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"Steno {__version__}\n"
    assert "--show-completion" in run(tmp_path, "-h").stdout
    assert "COMMAND..." in run(tmp_path, "run", "-h").stdout


def test_models_are_listed_with_where_their_windows_come_from(tmp_path: Path, provider: RunningServer) -> None:
    upstream = ["--upstream", f"{provider.url}/v1"]
    models = json.dumps([{"match": "mine", "context_window": 32_000}])
    lines = [line.split() for line in run(tmp_path, "models", *upstream, STENO_MODELS=models).stdout.splitlines()]
    assert ["mine", "32,000", "your", "settings", "default"] in lines
    assert ["gpt-4o", "8,000", "the", "provider", "default"] in lines
    [_, guessed] = run(tmp_path, "models", "never-heard-of", *upstream).stdout.splitlines()
    assert guessed.split() == ["never-heard-of", "128,000", "a", "guess", "default"]


def test_a_plan_says_in_words_what_would_happen(tmp_path: Path, simulator: Simulator, provider: RunningServer) -> None:
    """Without sending it, and without a database."""
    (tmp_path / "request.json").write_bytes(chat(long_history()))
    upstream = ["--upstream", f"{provider.url}/v1"]
    planned = run(tmp_path, "plan", "request.json", *upstream).stdout
    assert planned.startswith("Steno would replace older turns with summaries.\n")
    assert "over the trigger of 5,320" in planned
    assert "window         8,000 tokens for gpt-4o (from: the provider)" in planned
    assert "summarised, messages 0 to " in planned
    roomy = run(tmp_path, "plan", "request.json", "--window", "100000", *upstream).stdout
    assert roomy.startswith("Steno would forward it as it is.\n")
    assert not simulator.chats
    assert not (tmp_path / ".local").exists()


def test_what_is_no_request_is_not_planned(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty.json").write_text("{}")
    for file, said in (("list.json", "must be a JSON object"), ("empty.json", "messages")):
        ended = run(tmp_path, "plan", file, "--upstream", "http://127.0.0.1:1/v1")
        assert ended.returncode == 1
        assert said in ended.stderr


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


def test_conversations_are_listed_shown_exported_and_deleted(tmp_path: Path, stored: str) -> None:
    """Of every tenant: whoever has the database needs no key."""
    at = ["--database-url", stored]
    listed = run(tmp_path, "conversations", "list", *at).stdout
    assert {line for line in listed.splitlines() if not line.startswith(" ")} == {"order-one", "order-two"}
    assert "summarized" in listed
    exported = json.loads(commands.run(["conversations", "export", "order-one", *at], tmp_path).stdout)
    assert exported["conversation"]["id"] == "order-one"
    [summary, *_] = exported["summaries"]
    shown = commands.run(["conversations", "show", "order-one", *at], tmp_path).stdout
    assert summary["text"].splitlines()[0] in shown
    assert exported["usage"]
    deleted = run(tmp_path, "conversations", "delete", "order-one", "--yes", *at)
    assert deleted.stdout == "Deleted order-one.\n"
    ended = run(tmp_path, "conversations", "show", "order-one", *at)
    assert (ended.returncode, ended.stderr) == (1, "steno: There is no conversation 'order-one'.\n")
    assert "order-two" in run(tmp_path, "conversations", "list", *at).stdout


def test_conversations_of_no_database_are_none(tmp_path: Path) -> None:
    ended = run(tmp_path, "conversations", "list")
    assert ended.returncode == 1
    assert ended.stderr == f"steno: There is no database {tmp_path}/.local/share/steno/steno.db yet.\n"
    assert not list(tmp_path.iterdir())


def test_a_bench_measures_both_ways(tmp_path: Path) -> None:
    measured = run(tmp_path, "bench", "--seconds", "1").stdout
    [rates] = [line for line in measured.splitlines() if line.startswith("requests a second")]
    direct, through, ratio = (float(number.replace(",", "")) for number in rates.split()[-3:])
    assert min(direct, through) > 0
    assert ratio == pytest.approx(through / direct, abs=0.1)


def test_a_link_for_the_operator_is_printed_and_all_are_revoked(tmp_path: Path, steno: StartSteno) -> None:
    database, secret = f"sqlite:///{tmp_path}/steno.db", "a secret for the end-to-end tests"
    started = steno(storage={"url": database}, secret=secret)
    variables = {"DATABASE_URL": database, "STENO_SECRET": secret}
    link = commands.run(["link", "--url", started.url], tmp_path, ROOT, **variables).stdout.strip()
    opened = httpx2.get(link)
    assert opened.status_code == 303
    assert run(tmp_path, "link", "--revoke", **variables).stdout == (
        "All links so far are void, and operators are signed out.\n"
    )
    assert httpx2.get(link).status_code == 403
    after = httpx2.get(f"{started.url}/ui/tenants", cookies=opened.cookies)
    assert (after.status_code, after.headers.get("location")) == (404, None)


def test_a_database_in_memory_has_no_links_but_its_own(tmp_path: Path) -> None:
    refused = run(tmp_path, "link", "--database-url", "memory")
    assert refused.returncode == 1
    assert "use the link that it printed" in refused.stderr

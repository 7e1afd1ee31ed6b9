"""`steno serve` as a process: how it starts, what keeps it from starting, and how it stops."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import openai
import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving, until
from tests.e2e.conftest import Serve
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.faults.proxy import FaultProxy
from tests.release_0_1 import make_release_0_1

CONNECTED = """select 1 from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""


def refused(folder: Path, *arguments: str, **variables: str) -> str:
    """The one line with which `serve` ends instead of starting."""
    ended = commands.run(["serve", "--port", "0", *arguments], folder, commands.ROOT, **variables)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stdout
    [line] = ended.stderr.splitlines()
    return line


def ask(serving: Serving, messages: list[Any]) -> Any:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="sk-test", max_retries=0, timeout=60) as client:
        return client.chat.completions.create(model=MODEL, messages=messages)


def post_without_reading(serving: Serving, body: bytes, length: int | None = None) -> socket.socket:
    """A request on a connection of its own; with a `length`, the rest of its body is still to be sent."""
    host, port = serving.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length or len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


# Start and stop


def test_it_serves_and_ends_with_success_when_it_is_told_to_stop(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    assert ask(serving, HELLO).context_status == "full"
    assert serving.get("/readyz") == {"status": "ok", "db": "ok", "tokenizer": "tiktoken"}
    serving.terminate()
    assert serving.wait() == 0
    assert serving.errors == ""
    assert (tmp_path / ".local/share/steno" / "steno.secret").stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_away_is_no_error_for_a_pod_that_migrates_if_it_can(tmp_path: Path) -> None:
    """Steno starts without it as well."""
    away = {"DATABASE_URL": "postgresql://steno@127.0.0.1:1/steno", "STENO_SECRET": SECRET}
    ended = commands.run(["migrate"], tmp_path, **away)
    assert ended.returncode == 1
    assert ended.stderr.startswith("steno: the database cannot be reached")
    ended = commands.run(["migrate", "--if-reachable"], tmp_path, **away)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Not migrated: the database cannot be reached" in ended.stdout


def test_the_environment_makes_no_caller_local(serve: Serve) -> None:
    """uvicorn would take the address of `X-Forwarded-For` from anybody."""
    url = f"{serve(FORWARDED_ALLOW_IPS='*').url}/context/tenant"
    assert httpx2.get(url).json()["id"] == "anonymous"
    for header in ("x-forwarded-for", "x-real-ip", "forwarded", "via", "cf-connecting-ip", "x-forwarded-proto"):
        assert httpx2.get(url, headers={header: "127.0.0.1"}).status_code == 401, header


async def test_a_stop_begins_nothing_and_is_over_in_its_time_whatever_hangs(
    serve: Serve, simulator: Simulator, postgres_url: str
) -> None:
    """A summary that never comes and an answer that does not end share one deadline. Then the lease is released and
    every connection closed: nobody has to wait for what the process left behind."""
    seconds = 4.0
    options = {"DATABASE_URL": postgres_url, "STENO_SECRET": SECRET, "STENO_SERVER__DRAIN_SECONDS": str(seconds)}
    serving = await asyncio.to_thread(serve, **options)
    simulator.next_summary(hang=True)
    simulator.next_chat(words=1_000, chunk_delay=0.5)
    body, late = chat(long_history()), chat(turns(15, first=100))
    with ExitStack() as connections:
        waiting, streaming, arriving = (
            connections.enter_context(post_without_reading(serving, sent, len(whole)))
            for sent, whole in ((body, body), (chat(HELLO, stream=True),) * 2, (late[:-100], late))
        )
        await asyncio.to_thread(until, lambda: {record.kind for record in simulator.log} >= {"summary", "chat"})
        streaming.recv(1)
        assert len(await _rows(postgres_url, "select 1 from leases where expires_at > 0")) == 1
        told = time.monotonic()
        serving.terminate()
        await asyncio.to_thread(until, lambda: _refuses(serving))
        arriving.sendall(late[-100:])
        assert b"x-context-reason: stopping" in await asyncio.to_thread(arriving.recv, 65_536)
        assert len(simulator.summaries) == 1
        assert serving.process.poll() is None, "it waits for what may still end"
        await asyncio.to_thread(serving.wait)
        assert time.monotonic() - told > seconds - 0.5
        waiting.close()
    assert await _rows(postgres_url, "select 1 from leases where expires_at > 0") == []
    await asyncio.to_thread(until, lambda: not asyncio.run(_rows(postgres_url, CONNECTED)))
    # Those that were decided upon: what waited to be written was.
    assert len(await _rows(postgres_url, "select 1 from conversations")) == 2


def _refuses(serving: Serving) -> bool:
    """Whether it takes no new connections, to an orchestrator's probe or anybody's."""
    try:
        serving.get("/readyz")
    except httpx2.TransportError:
        return True
    return False


# What keeps it from starting


async def test_migrate_binds_a_database_to_its_secret_and_another_one_is_refused(
    empty_url: str, tmp_path: Path
) -> None:
    """One of an earlier release. It says so once."""
    await make_release_0_1(empty_url)

    def told(secret: str, command: str) -> subprocess.CompletedProcess[str]:
        arguments = [command, *(["--port", "0"] if command == "serve" else [])]
        return commands.run(arguments, tmp_path, DATABASE_URL=empty_url, STENO_SECRET=secret)

    def play() -> None:
        bound, again = told(SECRET, "migrate"), told(SECRET, "migrate")
        assert (bound.returncode, again.returncode) == (0, 0)
        assert "The database belongs to this secret from now on" in bound.stdout
        assert "from now on" not in again.stdout
        for command in ("migrate", "serve"):
            ended = told("another secret, of some length", command)
            assert ended.returncode == 1
            [line] = ended.stderr.splitlines()
            for part in ("was made with another secret", "Give Steno the old secret", "Or erase what was made with it"):
                assert part in line

    await asyncio.to_thread(play)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        line = refused(tmp_path, "--port", str(port), "--database-url", "memory")
    assert line.startswith(f"steno: Steno cannot listen on 127.0.0.1:{port}: address already in use. ")
    assert line.endswith(f"or choose another port: `make run PORT={port + 1}`.")


# What does not


def test_missing_tables_are_one_warning_and_compaction_begins_earlier(serve: Serve, tmp_path: Path) -> None:
    """Bytes may tell too little: trigger and target are at 0.85 of where they were, which is 5,320 tokens here."""
    serving = serve(checkout=commands.checkout_without_tables(tmp_path / "checkout"))
    [warning] = [line for line in serving.log if line["level"] == "warning"]
    assert (warning["event"], warning["subject"]) == ("check failed", "tokenizer tables")
    assert warning["found"].startswith("o200k_base, cl100k_base not found; tokens are estimated by bytes")
    assert serving.get("/readyz")["tokenizer"] == "heuristic"
    assert ask(serving, HELLO).context_status == "full"
    answered = ask(serving, turns(7))
    assert 0.85 * 5_320 < answered.context["tokens"]["estimated"] < 5_320
    assert answered.context_status == "summarized"


def test_what_the_doctor_would_find_is_in_the_log_of_the_start(serve: Serve, tmp_path: Path) -> None:
    """In the same words."""
    url = "http://127.0.0.1:1/v1"
    serving = serve("--upstream", url)
    until(lambda: any(line["level"] == "warning" for line in serving.log))
    [warning] = [line for line in serving.log if line["level"] == "warning"]
    assert (warning["event"], warning["subject"]) == ("check failed", f"upstream {url}")
    assert "No connection to the provider" in warning["found"]
    report = commands.run(["doctor", "--upstream", url], tmp_path)
    assert f"{warning['subject']}: {warning['found']}\n{'':11}-> {warning['remedy']}" in report.stdout
    assert report.stdout.splitlines()[0].endswith("starts, but not all of it works (problems: 1, warnings: 0)")
    assert report.returncode == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"DATABASE_URL": "sqlite:///text.db"}, "file is not a database"),
        ({"STENO_SECRET": "short"}, "STENO_SECRET has 5 characters; at least 16 are needed"),
        ({"DATABASE_URL": "mysql://host/name"}, "The database URL begins with 'mysql'"),
    ],
)
def test_what_keeps_it_from_starting_is_the_doctors_verdict(
    tmp_path: Path, provider: RunningServer, variables: dict[str, str], said: str
) -> None:
    (tmp_path / "text.db").write_text("Dear diary, " * 200)
    upstream = ["--upstream", f"{provider.url}/v1"]
    assert said in refused(tmp_path, *upstream, **variables)
    report = commands.run(["doctor", *upstream], tmp_path, commands.ROOT, **variables)
    assert " does not start with these settings (problems: " in report.stdout.splitlines()[0]
    assert said in report.stdout
    assert report.returncode == 1


async def test_postgresql_that_is_away_at_the_start_is_used_when_it_comes(gate: FaultProxy, serve: Serve) -> None:
    gate.inject("refuse")
    serving = await asyncio.to_thread(serve, DATABASE_URL=gate.url, STENO_SECRET=SECRET)
    answer = await asyncio.to_thread(httpx2.get, f"{serving.url}/readyz", timeout=60)
    assert (answer.status_code, answer.json()["status"], answer.json()["db"]) == (200, "degraded", "degraded")
    assert "cannot be reached" in answer.json()["reason"]
    assert await asyncio.to_thread(serving.get, "/livez") == {"status": "ok"}

    without = await asyncio.to_thread(ask, serving, long_history())
    assert (without.context_status, without.context["reason"]) == ("full", "storage")

    gate.heal()
    await asyncio.to_thread(until, lambda: serving.get("/readyz")["status"] == "ok")
    answered = await asyncio.to_thread(ask, serving, long_history())
    assert answered.context_status == "summarized"
    stored = await asyncio.to_thread(serving.get, "/context/conversations")
    assert stored["object"] == "list"
    serving.terminate()
    assert await asyncio.to_thread(serving.wait) == 0


# The schema by hand


async def _rows(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        rows: list[Any] = await connection.fetch(query)
    finally:
        await connection.close()
    return rows

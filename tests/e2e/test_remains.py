"""What was erased stands in no file of the database any more, while Steno runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from app.store import remains, tidying
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno


def files_with(folder: Path, words: str) -> dict[str, int]:
    """How often it stands in each of them; large and small letters are alike, as they are for the search."""
    wanted, found = words.encode(), {}
    # Not `rglob`, which raises where another test's database goes meanwhile.
    for file in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        try:
            found[str(file.relative_to(folder))] = file.read_bytes().lower().count(wanted) if file.is_file() else 0
        except OSError:
            continue  # It has just gone.
    return {name: number for name, number in found.items() if number}


def talk(start: StartSteno, url: str, canary: str, name: str = "talk-{}", **storage: Any) -> Steno:
    """A conversation whose name, messages and summary hold the canary."""
    started = start(storage={"url": url, "messages": True, **storage})
    body = json.loads(chat(turns(15), conversation_id=name.format(canary)))
    for message in body["messages"]:
        message["content"] = f"{canary} {message['content']}"
    assert post(started.url, json.dumps(body).encode()).header("x-context-status") == "summarized"
    until(lambda: not started.services.tasks._tasks)
    assert get(started.url, f"/context/search?q={canary}").json["data"]
    return started


def asked(url: str, *statements: str) -> Any:
    """What the last of these statements answers, past Steno."""

    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            answers = [await connection.fetchval(statement) for statement in statements]
            return answers[-1]
        finally:
            await connection.close()

    return asyncio.run(ask())


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remains are cleared at once after an erasure, and tables are locked for as long as a busy machine takes."""
    monkeypatch.setattr(tidying, "CLEAR_SECONDS", 0.0)
    monkeypatch.setattr(remains, "LOCKED_MS", remains.ARCHIVE_LOCKED_MS)


def told_of_remains(capsys: pytest.CaptureFixture[str]) -> str:
    """What Steno logs once it has tried to clear them, with all before it."""
    told = ""

    def is_said() -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return "remains of deleted rows" in told

    until(is_said)
    return told


@pytest.fixture
def canary() -> str:
    return f"canary{uuid4().hex[:12]}"


def test_nothing_of_a_caller_who_erased_everything_stands_in_any_file(
    steno: StartSteno, sqlite_url: str, tmp_path: Path, canary: str
) -> None:
    talked = talk(steno, sqlite_url, canary)
    assert files_with(tmp_path, canary)
    assert get(talked.url, "/context/tenant", method="DELETE").status == 200
    assert files_with(tmp_path, canary) == {}


# Beside other tests on the same server a table may stay as it is: whether it does depends on how busy that is.
@pytest.mark.release
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("what", ["tenant", "conversations/talk-{}"])
def test_nothing_of_what_was_erased_stands_in_any_file_of_postgresql_once_its_remains_are_cleared(
    steno: StartSteno, postgres_url: str, canary: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in tables, indexes and statistics nor in the log."""
    talked = talk(steno, postgres_url, canary)
    folder = Path(asked(postgres_url, "ANALYZE", "CHECKPOINT", "SHOW data_directory"))
    there = files_with(folder, canary)
    assert any(name.startswith("base") for name in there)
    assert any(name.startswith("pg_wal") for name in there)
    assert get(talked.url, f"/context/{what.format(canary)}", method="DELETE").status == 200
    assert "remains of deleted rows cleared" in told_of_remains(capsys)
    assert files_with(folder, canary) == {}
    assert post(talked.url, chat(turns(1, words=3))).status == 200


@pytest.mark.usefixtures("soon")
def test_what_cannot_be_cleared_is_said_with_the_reason(
    steno: StartSteno, postgres_url: str, canary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A role that owns nothing erases rows, and may not rewrite tables."""
    role = f"steno_{canary}"
    asked(postgres_url, f"CREATE ROLE {role} LOGIN")
    try:
        talk(steno, postgres_url, canary).stop()
        for privileges in ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES"):
            asked(postgres_url, f"GRANT {privileges} IN SCHEMA public TO {role}")
        serving = steno(storage={"url": postgres_url.replace("postgres:@", f"{role}:@"), "messages": True})
        assert get(serving.url, "/context/tenant", method="DELETE").status == 200
        told = told_of_remains(capsys)
        assert "remains of deleted rows left" in told
        assert "the role does not own the table" in told
        assert "the role may not switch it and make a checkpoint" in told
        serving.stop()
    finally:
        asked(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

"""What was erased stands in no file of SQLite's any more, while Steno runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno

CANARY = b"canaryqx7"


def files_with(folder: Path, words: bytes = CANARY) -> dict[str, int]:
    """How often it stands in each of them; large and small letters are alike, as they are for the search."""
    found = {file.name: file.read_bytes().lower().count(words) for file in folder.iterdir() if file.is_file()}
    return {name: number for name, number in found.items() if number}


@pytest.fixture
def talked(steno: StartSteno, sqlite_url: str) -> Steno:
    """A conversation whose messages and summary hold the canary, and another tenant's without it."""
    started = steno(storage={"url": sqlite_url, "messages": True})
    body = json.loads(chat(turns(15), conversation_id=f"talk-{CANARY.decode()}"))
    for message in body["messages"]:
        message["content"] = f"{CANARY.decode()} {message['content']}"
    assert post(started.url, json.dumps(body).encode()).header("x-context-status") == "summarized"
    until(lambda: not started.services.tasks._tasks)
    assert get(started.url, f"/context/search?q={CANARY.decode()}").json["data"]
    return started


def test_nothing_of_a_caller_who_erased_everything_stands_in_any_file(talked: Steno, tmp_path: Path) -> None:
    assert files_with(tmp_path)
    assert get(talked.url, "/context/tenant", method="DELETE").status == 200
    assert files_with(tmp_path) == {}

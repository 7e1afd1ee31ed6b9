"""What was erased stands in no file of the database any more, while Steno runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

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

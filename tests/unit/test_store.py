"""The store: how it connects, what it writes before that, and whose its file is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.store import Store, StoreUnavailable, schema
from app.store.engine import Database
from app.store.histories import HistoryQueue
from app.store.store import LONGEST_PAUSE_SECONDS
from app.store.write_behind import WriteBehind


async def test_a_database_is_tried_less_and_less_often_and_no_error_is_the_last_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when something else listens where the database should."""
    ends = iter([StoreUnavailable("away")] * 6 + [AttributeError("server_version")])
    pauses: list[float] = []

    async def connect() -> None:
        for error in ends:
            raise error

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    # Not asyncio's own: the servers of other tests sleep in this process, too.
    monkeypatch.setattr("app.store.store.sleep", sleep)
    store = Store("memory")
    monkeypatch.setattr(store, "migrate", connect)
    with capture_logs() as logs:
        await store.start()
        await store.ready.wait()
    assert store.state == "ok"
    await store.close()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert [log["event"] for log in logs] == [
        "database away",
        "connecting to the database failed",
        "database ready",
    ]


async def test_nothing_is_written_before_the_database_is_ready() -> None:
    nothing: Any = None
    writes, ready = WriteBehind(nothing, nothing, HistoryQueue(1)), asyncio.Event()
    writes.start(ready)
    with pytest.raises(StoreUnavailable, match="not ready"):
        await writes.flush()
    ready.set()
    await writes.flush()
    await writes.stop()


def rights_in(folder: Path) -> dict[str, int]:
    return {path.name: S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_database_file_is_nobody_elses_from_its_beginning(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    async with schema.alone(database):
        rights = rights_in(tmp_path)
    await database.close()
    assert "steno.db" in rights
    assert set(rights.values()) == {0o600}

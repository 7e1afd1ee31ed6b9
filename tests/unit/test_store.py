"""The store: how it connects, what it writes before that, and whose its file is."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from app.runtime.caches import Erased
from app.store import StatementRefused, Store, StoreUnavailable, schema
from app.store.engine import Contended, Database, describe, is_away, unavailable
from app.store.store import CONNECT_PAUSE_SECONDS
from app.store.write_behind import WriteBehind


async def test_a_database_is_tried_until_it_answers_and_no_error_is_the_last_try(
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
    monkeypatch.setattr(store, "_open", connect)
    with capture_logs() as logs:
        await store.start()
        await store.ready.wait()
    assert store.reason is None
    await store.close()
    assert pauses == [CONNECT_PAUSE_SECONDS] * 7
    assert [log["event"] for log in logs] == [
        "database away",
        "connecting to the database failed",
        "database ready",
    ]


async def test_a_request_is_stored_after_more_erasures_than_are_remembered_and_none_that_they_overtook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.store.write_behind.MOST_ERASED", 3)
    nothing: Any = None
    writes = WriteBehind(nothing, nothing, 1)

    async def erase() -> bool:
        return True

    async def erased(name: str | None) -> bool:
        return await writes.erase(Erased("t", name), erase)

    before = writes.epoch
    assert await erased("c\0")
    assert [writes.is_erased("t", name, before) for name in ("c\0", "c\ud800", "d")] == [True, True, False]
    assert not writes.is_erased("t", "c\0", writes.epoch)
    for number in range(9):
        await erased(f"c{number}")
    assert writes.is_erased("t", "d", before), "perhaps it was among those that are forgotten"
    assert not writes.is_erased("t", "d", writes.epoch - 3)
    assert [writes.is_erased("t", name, writes.epoch - 1) for name in ("c7", "c8")] == [False, True]
    after = writes.epoch
    await erased(None)
    assert writes.is_erased("t", "d", after)
    assert not writes.is_erased("u", "d", after)


class OfPostgreSQL(Exception):
    """As the driver raises it: with PostgreSQL's code."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("states", "kind", "description"),
    [
        # A disk that fails, a limit of time, a server that stops, a standby; and one that is being restored, or whose
        # password is being changed.
        ("25P03 57014 57P01 58030 25006 08006 53300 55000 3D000 28000", StoreUnavailable, "the database is not"),
        ("40P01 55P03", Contended, "another process is at it"),
        ("22021 23505 42P01", StatementRefused, "the database refused"),
    ],
)
def test_only_what_is_said_against_a_statement_refuses_it(states: str, kind: Any, description: str) -> None:
    """The others are tried again, and what waits for them stays."""
    for state in states.split():
        error = DBAPIError("INSERT", {}, OfPostgreSQL(state))
        assert (type(unavailable(error)), is_away(error)) == (kind, kind is not StatementRefused), state
        assert describe(error).startswith(description)


@pytest.mark.parametrize("url", ["memory", "postgresql://127.0.0.1/steno"])
def test_errors_of_the_database_hide_what_was_stored(url: str) -> None:
    assert Database(url).engine.sync_engine.hide_parameters


def rights_in(folder: Path) -> dict[str, int]:
    return {path.name: S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_database_file_is_nobody_elses_from_its_beginning(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    async with schema.alone(database):
        rights = rights_in(tmp_path)
    await database.close()
    assert "steno.db" in rights
    assert set(rights.values()) == {0o600}

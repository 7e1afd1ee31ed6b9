"""A SQLite file that is deleted or replaced while a store is open: noticed, told of, and opened anew."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.store import Store, StoreUnavailable
from app.store.chunks import chunks_in
from tests.integration.examples import SERIES, TENANT, OpenStore, chain, chunk, digest, put, seen
from tests.integration.test_outages import until

Way = Callable[[Path], None]


def delete_the_file(path: Path) -> None:
    path.unlink()


def delete_everything(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def put_a_backup_in_its_place(path: Path) -> None:
    (path.parent / "backup.db").rename(path)


WAYS = [delete_the_file, delete_everything, move_away, put_a_backup_in_its_place]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regular look takes five seconds otherwise."""
    monkeypatch.setattr("app.store.facade.LOOK_SECONDS", 0.1)


def path_of(store: Store) -> Path:
    assert store.database.address.path is not None
    return store.database.address.path


def back_up(path: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.parent / "backup.db")) as target:
        source.backup(target)


def found_in(path: Path, query: str) -> list[str]:
    """By another process, in effect: one value a row."""
    with closing(sqlite3.connect(path)) as connection:
        return [value for (value,) in connection.execute(query)]


async def replaced(store: Store, way: Way) -> None:
    """In that way, and noticed."""
    former = store.database._file
    # Held open, so that the system does not give its number to the new one once the store has let go of it.
    with path_of(store).open():
        way(path_of(store))
        await until(lambda: store.state == "ok" and store.database._file not in (None, former))


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_recorded_afterwards_is_in_the_file_of_that_name(
    open_store: OpenStore, sqlite_url: str, way: Way
) -> None:
    """Summaries, too; and what lies beside the old file does not get into the new one."""
    store = open_store(sqlite_url)
    await store.start()
    await put(store, chunk(0, 4))
    store.writes.record(seen("before"))
    await store.flush()
    back_up(path_of(store))
    store.writes.record(seen("after the backup"))
    await store.flush()
    with capture_logs() as log:
        await replaced(store, way)
    [told] = [line for line in log if line["event"] == "database file deleted or replaced"]
    assert (told["log_level"], told["path"]) == ("warning", str(path_of(store)))
    assert "stop Steno" in told["remedy"]
    store.writes.record(seen("afterwards"))
    await put(store, chunk(4, 8))
    await store.flush()
    is_restored = way is put_a_backup_in_its_place
    stored = found_in(path_of(store), "SELECT id FROM conversations ORDER BY id")
    assert stored == (["afterwards", "before"] if is_restored else ["afterwards"])
    assert len(await store.request(chunks_in, TENANT, SERIES, chain(9))) == 1 + is_restored
    assert found_in(path_of(store), "PRAGMA integrity_check") == ["ok"]
    assert f"{path_of(store).stat().st_mode & 0o777:o}" == "600"


async def test_readiness_says_so_until_the_new_file_is_migrated(
    open_store: OpenStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go on without the store meanwhile, and what they show waits."""
    store = open_store(sqlite_url)
    await store.start()
    migrate, may_migrate = store.readiness._connect, asyncio.Event()

    async def slowly() -> None:
        await may_migrate.wait()
        await migrate()

    monkeypatch.setattr(store.readiness, "_connect", slowly)
    path_of(store).unlink()
    await until(lambda: store.state == "degraded")
    assert "deleted or replaced" in str(store.reason)
    assert store.remedy
    store.writes.record(seen())
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await store.heads(TENANT, [digest(1)])
    await asyncio.sleep(0.5)
    assert (store.writes.requests, store.writes.dropped) == (1, 0)
    may_migrate.set()
    await until(lambda: store.state == "ok" and not store.writes.requests)
    assert found_in(path_of(store), "SELECT id FROM conversations") == ["c1"]


async def test_a_connection_to_another_file_is_refused_before_it_is_noticed(
    open_store: OpenStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections to the old file and to the new one would share what lies beside them. Nor is an empty file made."""
    monkeypatch.setattr("app.store.facade.LOOK_SECONDS", 60.0)
    store = open_store(sqlite_url)
    await store.start()
    async with store.database.reading():  # The one there is.
        path_of(store).unlink()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.heads(TENANT, [digest(1)])
    assert not path_of(store).exists()


async def test_a_second_process_opens_the_file_that_the_first_one_made(open_store: OpenStore, sqlite_url: str) -> None:
    """Each notices by itself, and neither takes from the other what it made."""
    one, other = open_store(sqlite_url), open_store(sqlite_url)
    for store in (one, other):
        await store.start()
    await replaced(one, delete_the_file)
    await until(lambda: other.state == "ok" and not other.database.is_replaced())
    for name, store in (("one", one), ("other", other)):
        store.writes.record(seen(name))
        await store.flush()
    assert found_in(path_of(one), "SELECT id FROM conversations ORDER BY id") == ["one", "other"]
    assert found_in(path_of(one), "PRAGMA integrity_check") == ["ok"]


async def test_a_file_that_is_written_to_by_others_is_still_the_same(open_store: OpenStore, sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    await store.start()
    with closing(sqlite3.connect(path_of(store))) as other:
        other.execute("CREATE TABLE mine (id INTEGER)")
        other.commit()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with capture_logs() as log:
        await asyncio.sleep(0.5)
    assert log == []

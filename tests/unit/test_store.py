"""The store: what is removed together, what it says of what it left out, and whose its file is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from stat import S_IMODE

import pytest
from structlog.testing import capture_logs

from app.store import Store, schema
from app.store.archive import Archive
from app.store.database import Database
from app.store.message_rows import MessageRow
from app.store.retention import MESSAGES, remove_conversations
from tests.integration.examples import seen, strand

TALK = [f"word{number} is said" for number in range(9)]


@pytest.mark.parametrize(("messages", "removed"), [(2, [3, 0]), (MESSAGES, [1, 1, 1, 0])])
async def test_old_conversations_are_removed_together_and_long_ones_each_for_itself(
    messages: int, removed: list[int]
) -> None:
    store = Store("memory")
    await store.start()
    for name in ("a", "b", "c"):
        store.writes.record(seen(name, messages=messages))
    await store.flush()
    await asyncio.sleep(0.005)  # By the database's clock they are old then.
    gone = []
    for _ in removed:
        async with store.database.writing() as connection:
            gone.append(await remove_conversations(connection, 0, 10))
    await store.close()
    assert gone == removed


def test_it_is_told_how_many_messages_were_not_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are kept already are none of them."""
    archive = Archive(str)
    archive.record(strand(*TALK[:3]))
    monkeypatch.setattr("app.store.archive.QUEUE_BYTES", 1)
    with capture_logs() as logs:
        archive.record(strand(*TALK))
    assert [(line["event"], line["dropped"]) for line in logs] == [("messages not archived", 6)]
    assert archive.dropped == 6


async def test_it_is_told_how_often_and_how_long_nothing_was_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(str)
    archive.record(strand(*TALK[:3]))
    with monkeypatch.context() as full:
        full.setattr("app.store.archive.QUEUE_BYTES", 1)
        archive.record(strand(*TALK))
        archive.record(strand(*TALK))

    async def write(_: Sequence[MessageRow]) -> Sequence[MessageRow]:
        return ()

    with capture_logs() as logs:
        await archive.flush(write, archive.waiting)
    assert [(line["event"], line["times"], line["seconds"] < 1) for line in logs] == [
        ("messages archived again", 2, True)
    ]


def rights_in(folder: Path) -> dict[str, int]:
    return {path.name: S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_database_file_is_nobody_elses_from_its_beginning(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    async with schema.alone(database):
        rights = rights_in(tmp_path)
    await database.close()
    assert "steno.db" in rights
    assert set(rights.values()) == {0o600}

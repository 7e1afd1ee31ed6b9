"""What was deleted stands in no file of SQLite's any more, while the store is open."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import update

from app.store import Store, retention
from app.store.conversations import find_conversation
from app.store.tables import conversations, summary_chunks
from tests.integration.examples import TENANT, StartStore, chunk, put, show

WORD = "canaryqx7"
TEXT = f"The {WORD} sings at noon"
DAY_MS = 86_400_000


def files_with(folder: Path, text: str) -> list[str]:
    """Large and small letters are alike, as they are for the search."""
    found = (file for file in folder.iterdir() if file.is_file())
    return [file.name for file in found if text.lower().encode() in file.read_bytes().lower()]


async def opened(start_store: StartStore, url: str) -> Store:
    """With a conversation whose messages and summary hold it, between others."""
    store = await start_store(url)
    for name, text in (("c0", "Nothing."), ("c1", TEXT), ("c2", "Nothing.")):
        show(store, *(f"{text} {number}." for number in range(40)), conversation_id=name)
        await store.flush()
    await put(store, chunk(0, 4, text=f"{TEXT}.", conversation_id="c1"))
    return store


async def test_no_text_of_a_deleted_conversation_stays_and_no_word_once_it_is_tidied_up(
    start_store: StartStore, sqlite_url: str, tmp_path: Path
) -> None:
    """An index of words is merged later, as that takes longer."""
    store = await opened(start_store, sqlite_url)
    assert files_with(tmp_path, TEXT)
    await store.delete_conversation(TENANT, "c1")
    assert files_with(tmp_path, TEXT) == []
    await retention.empty_log(store)
    assert files_with(tmp_path, WORD) == []


async def test_nothing_stays_of_what_is_too_old(start_store: StartStore, sqlite_url: str, tmp_path: Path) -> None:
    store = await opened(start_store, sqlite_url)
    store.retention_days = 1
    async with store.database.writing() as connection:
        for table, column in ((conversations, "updated_at"), (summary_chunks, "used_at")):
            own = table.c["id" if table is conversations else "conversation_id"] == "c1"
            await connection.execute(update(table).where(own).values({column: 1}))
    await retention.remove_unused(store)
    await retention.empty_log(store)
    assert files_with(tmp_path, WORD) == []
    assert await store.rest(find_conversation, TENANT, "c0") is not None


async def test_nothing_stays_of_a_tenant_who_erased_everything(
    start_store: StartStore, sqlite_url: str, tmp_path: Path
) -> None:
    """Nor that anything was made for it."""
    store = await opened(start_store, sqlite_url)
    await store.erase_tenant(TENANT)
    assert files_with(tmp_path, WORD) == []
    assert files_with(tmp_path, TENANT) == []

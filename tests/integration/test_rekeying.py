"""Encrypted texts in both databases: what is stored, found and read, with which key, and how keys are changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.store import Store, StoreUnavailable, words_in
from app.store.chunks import chunks_named
from app.store.message_rows import read_messages
from app.store.pages import Paging
from app.store.places import asides_at, keep_aside
from app.store.rekeying import hide_some, seal_some
from app.store.sealing import MARK, SEALED, Sealing
from app.store.search import search_texts
from app.store.tables import asides, message_words, messages, summary_chunks, summary_words
from tests.integration.examples import TENANT, chunk, digest, put, show

ONE, TWO = b"1" * 32, b"2" * 32
WORD = "canaryqx7"
Open = Callable[..., Any]


@pytest.fixture
async def opened(shared_url: str) -> AsyncIterator[Open]:
    """Opens stores on one database, with these keys."""
    stores: list[Store] = []

    async def open_one(*keys: bytes) -> Store:
        stores.append(Store(shared_url, timeout=5.0, sealing=Sealing(keys, b"secret")))
        await stores[-1].start()
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


async def fill(store: Store, name: str = "c1", places: tuple[int, int] = (0, 4)) -> str:
    show(store, f"The {WORD} sings.", "Nothing else.", conversation_id=name)
    await store.flush()
    [stored] = await put(
        store, chunk(*places, id=f"chk_{name}", text=f"A {WORD} sang.", values=(WORD,), conversation_id=name)
    )
    await store.request_change(keep_aside, TENANT, digest(places[1]), f'"The {WORD} again."', name)
    return stored.id


async def held(store: Store) -> str:
    """All that the tables hold, past the encryption."""
    told = []
    async with store.database.reading() as connection:
        for table in (summary_chunks, summary_words, messages, message_words, asides):
            told += [str(tuple(row)) for row in await connection.execute(select(table))]
    return "\n".join(told)


async def found(store: Store, word: str) -> int:
    page = await store.rest(search_texts, TENANT, words_in(word), "all", Paging(10))
    return len(page.data)


async def read(store: Store, id_: str, name: str = "c1") -> tuple[str, tuple[str, ...], str]:
    [summary] = await store.rest(chunks_named, TENANT, [id_])
    page = (await store.rest(read_messages, TENANT, name, Paging(10))).page
    return summary.text, summary.values, page.data[0].sent


async def test_texts_are_encrypted_where_they_are_stored_and_read_as_they_were(opened: Open) -> None:
    store = await opened(ONE)
    id_ = await fill(store)
    assert WORD not in await held(store)
    text, values, sent = await read(store, id_)
    assert (text, values) == (f"A {WORD} sang.", (WORD,))
    assert WORD in sent
    assert await store.request(asides_at, TENANT, [digest(4)]) == {digest(4): f'"The {WORD} again."'}


async def test_a_search_finds_whole_words_and_no_beginnings(opened: Open) -> None:
    store = await opened(ONE)
    await fill(store)
    assert await found(store, WORD) == 2
    assert await found(store, WORD[:5]) == 0


async def test_a_text_that_was_moved_to_another_row_is_not_read(opened: Open) -> None:
    store = await opened(ONE)
    first, second = await fill(store), await fill(store, "c2", (4, 8))
    async with store.database.writing() as connection:
        text = select(summary_chunks.c.text).where(summary_chunks.c.id == first).scalar_subquery()
        await connection.execute(update(summary_chunks).where(summary_chunks.c.id == second).values(text=text))
    with pytest.raises(StoreUnavailable, match="of another row"):
        await read(store, second, "c2")


async def test_without_the_key_nothing_is_read_and_nothing_lost(opened: Open) -> None:
    id_ = await fill(await opened(ONE))
    for keys in ((), (TWO,)):
        other = await opened(*keys)
        with pytest.raises(StoreUnavailable, match=r"storage\.encryption does not have"):
            await read(other, id_)
        assert other.state == "ok"
    with pytest.raises(StoreUnavailable, match=r"storage\.encryption does not have"):
        await (await opened(TWO)).rekey()
    assert (await read(await opened(TWO, ONE), id_))[0] == f"A {WORD} sang."


async def test_what_was_stored_in_the_clear_is_encrypted_and_keys_are_changed_while_others_read(opened: Open) -> None:
    plain = await opened()
    id_ = await fill(plain)
    before = await read(plain, id_)
    assert WORD in await held(plain)
    first, second = await opened(ONE), await opened(TWO, ONE)
    assert await read(first, id_) == before
    changed = await first.rekey()
    assert changed == {"summary_chunks": 1, "messages": 2, "asides": 1, "summary_words": 1, "message_words": 2}
    assert WORD not in await held(first)
    assert await found(first, WORD) == 2
    assert await read(second, id_) == before
    assert (await second.rekey())["summary_chunks"] == 1
    assert await read(second, id_) == before
    assert set((await second.rekey()).values()) == {0}
    assert await found(second, WORD) == 2
    with pytest.raises(StoreUnavailable):
        await read(first, id_)


async def test_more_rows_than_a_batch_are_encrypted_and_the_rest_of_what_was_broken_off(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.rekeying.ROWS", 2)
    plain = await opened()
    show(plain, *(f"{WORD} {number}" for number in range(7)))
    await plain.flush()
    store = await opened(ONE)
    async with store.database.writing() as connection:
        assert (await seal_some(connection, messages, None))[1] == 2
    changed = await store.rekey()
    assert (changed["messages"], changed["message_words"]) == (5, 7)
    assert WORD not in await held(store)
    async with store.database.reading() as connection:
        sent = (await connection.execute(select(messages.c.sent))).scalars().all()
    assert all(text.startswith(f"{MARK}{Sealing([ONE]).first}:") for text in sent)
    assert SEALED[messages] == ("sent",)


@pytest.mark.slow
async def test_keys_are_changed_while_others_write_and_erase(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards everything is read with the new key alone, and nothing holds the old one."""
    monkeypatch.setattr("app.store.rekeying.ROWS", 3)
    old, new = await opened(ONE), await opened(TWO, ONE)
    for number in range(10):
        await fill(old, f"old{number}", (4 * number, 4 * number + 4))
    is_over, written = asyncio.Event(), dict[str, str]()

    async def write(store: Store, first: int) -> None:
        for number in count(first):
            name = f"c{number}"
            written[name] = await fill(store, name, (4 * number, 4 * number + 4))
            if number % 2:
                del written[name]
                await store.delete_conversation(TENANT, name)
            if is_over.is_set():
                return

    async def erase() -> None:
        for number in range(5):
            await asyncio.sleep(0.02)
            await new.delete_conversation(TENANT, f"old{number}")

    async with asyncio.TaskGroup() as group:
        writing = [group.create_task(write(new, first)) for first in (100, 10_000)]
        erasing = group.create_task(erase())
        await new.rekey()
        await erasing
        is_over.set()
        await asyncio.gather(*writing)
    assert f"{MARK}{Sealing([ONE]).first}:" not in await held(new)
    alone = await opened(TWO)
    for name, id_ in written.items():
        assert await read(alone, id_, name) == (f"A {WORD} sang.", (WORD,), (await read(new, id_, name))[2])
    assert await found(alone, WORD) == 10
    async with alone.database.reading() as connection:
        texts = await connection.execute(select(summary_chunks))
        sealing = Sealing([TWO])
        assert {sealing.opened(summary_chunks, dict(row))["text"] for row in texts.mappings()} == {f"A {WORD} sang."}


async def test_a_text_that_is_erased_while_its_words_are_replaced_is_gone(opened: Open) -> None:
    plain = await opened()
    await fill(plain)
    store = await opened(ONE)
    async with plain.database.writing() as connection:
        await connection.execute(delete(summary_chunks))
        hiding = asyncio.create_task(store.task_change(hide_some, summary_words, None))
        await asyncio.sleep(0.3)
    await hiding
    async with store.database.reading() as connection:
        assert (await connection.execute(select(summary_words))).all() == []

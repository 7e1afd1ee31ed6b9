"""Conversations: recognised by their heads, counted, listed, deleted with all that belongs to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from app.conversation.identity import Head
from app.store import Claim, Store, UnknownCursor
from app.store.chunks import chunks_in, delete_chunks_of, note_use
from app.store.conversations import find_conversation, read_conversations, write_conversations
from app.store.tables import Paging, summary_chunks
from tests.integration.examples import SERIES, STRANGER, TENANT, StartStore, chain, chunk, digest, put, seen, take


async def ids(store: Store, tenant: str = TENANT, **changes: Any) -> list[str]:
    page = await store.rest(read_conversations, tenant, Paging(**{"limit": 100, **changes}))
    return [conversation.id for conversation in page.data]


async def test_conversation_keeps_its_latest_request_and_its_deepest_turn(store: Store) -> None:
    """A regenerated early turn is the latest request, but not where the conversation ends."""
    store.writes.record(seen(turns=7, messages=14, status="summarized", tokens_before=900, reason="r"))
    await store.flush()
    store.writes.record(seen(turns=3, messages=6, coverage='[{"kind":"verbatim"}]', summaries=("s1", "s2")))
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert (found.turns, found.messages, found.requests) == (7, 6, 2)
    assert (found.status, found.reason, found.tokens_before) == ("full", None, 100)
    assert (found.coverage, found.summaries) == ('[{"kind":"verbatim"}]', ("s1", "s2"))
    assert found.created_at <= found.updated_at
    assert found.created_at.utcoffset() is not None


async def test_head_tells_the_conversation_and_how_far_behind_its_tip_it_lies(store: Store) -> None:
    """`tip_turn` is the conversation's deepest turn, whichever head is asked for."""
    store.writes.record(seen(turns=1, heads=((digest(1), 1),)))
    await store.flush()
    store.writes.record(seen(turns=5, heads=((digest(4), 4), (digest(5), 5))))
    await store.flush()
    found = await store.heads(TENANT, [digest(1), digest(5), digest(9)])
    assert {head.digest: head for head in found} == {
        digest(1): Head(digest(1), "c1", 1, 5),
        digest(5): Head(digest(5), "c1", 5, 5),
    }


async def test_head_is_known_before_it_is_stored(store: Store) -> None:
    """An agent's next request comes sooner than the next flush."""
    store.writes.record(seen(turns=8, heads=((digest(8), 8),)))
    await store.flush()
    store.writes.record(seen(turns=2, heads=((digest(2), 2),)))
    assert sorted(await store.heads(TENANT, [digest(2), digest(8)]), key=lambda head: head.turn) == [
        Head(digest(2), "c1", 2, 8),
        Head(digest(8), "c1", 8, 8),
    ]


async def test_unstored_requests_move_the_tip_of_stored_heads(store: Store) -> None:
    """An old head must not look current because the latest turn still waits."""
    store.writes.record(seen(turns=2, heads=((digest(2), 2),)))
    await store.flush()
    store.writes.record(seen(turns=9, heads=((digest(9), 9), (digest(8), 8))))
    (old,) = [head for head in await store.heads(TENANT, [digest(2), digest(9)]) if head.turn == 2]
    assert old.tip_turn == 9


async def test_newest_conversation_keeps_a_shared_head(store: Store) -> None:
    """An older one that is seen with it again does not take it back."""
    store.writes.record(seen("c1", heads=((digest(1), 1),)))
    await store.flush()
    await asyncio.sleep(0.002)  # Of two that began in the same millisecond neither is the newer one.
    store.writes.record(seen("c2", heads=((digest(1), 1),)))
    await store.flush()
    store.writes.record(seen("c1", heads=((digest(1), 1),)))
    await store.flush()
    assert [head.conversation_id for head in await store.heads(TENANT, [digest(1)])] == ["c2"]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_conversations_join_without_gap_or_overlap(store: Store, order: str) -> None:
    """In order of creation, whatever was updated meanwhile."""
    for number in range(5):
        store.writes.record(seen(f"c{number}"))
        await store.flush()
    store.writes.record(seen("c0"))
    first = await ids(store, limit=2, order=order)
    rest = await ids(store, limit=10, after=first[-1], order=order)
    expected = [f"c{number}" for number in range(5)]
    assert first + rest == (expected if order == "asc" else expected[::-1])


async def test_cursor_of_another_tenant_is_unknown(store: Store) -> None:
    """It must not even show that the id exists."""
    store.writes.record(seen("theirs", tenant=STRANGER))
    with pytest.raises(UnknownCursor):
        await store.rest(read_conversations, TENANT, Paging(5, after="theirs"))


async def test_tenants_never_see_each_others_conversations(store: Store) -> None:
    """The same id is two conversations, and heads lead only to one's own."""
    store.writes.record(seen("c1", heads=((digest(1), 1),), model="ours"))
    store.writes.record(seen("c1", tenant=STRANGER, model="theirs"))
    store.writes.record(seen("c2", tenant=STRANGER))
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.model == "ours"
    assert await store.heads(STRANGER, [digest(1)]) == []
    assert await store.rest(find_conversation, TENANT, "c2") is None
    assert await ids(store) == ["c1"]
    assert await store.heads(STRANGER, [digest(1)]) == []


async def test_deleting_takes_the_conversation_its_heads_and_its_chunks(store: Store) -> None:
    """Afterwards nothing tells that it was there."""
    store.writes.record(seen(heads=((digest(1), 1),)))
    await put(store, chunk(0, 4))
    assert await store.delete_conversation(TENANT, "c1")
    assert await store.rest(find_conversation, TENANT, "c1") is None
    assert await store.heads(TENANT, [digest(1)]) == []
    assert await store.request(chunks_in, TENANT, SERIES, chain(10)) == []
    assert not await store.delete_conversation(TENANT, "c1")


async def test_deleting_takes_the_folds_over_its_chunks_and_the_folds_over_those(store: Store) -> None:
    """A fold holds the text of its children, whoever made it."""
    await put(store, chunk(0, 4))
    other = {"conversation_id": "c2"}
    await put(store, chunk(4, 8, **other))
    await put(store, chunk(8, 12, **other))
    await put(store, chunk(0, 8, level=1, children=("chunk-0-4", "chunk-4-8"), **other))
    await put(store, chunk(0, 12, level=2, children=("chunk-0-8", "chunk-8-12"), **other))
    await put(store, chunk(4, 12, level=1, children=("chunk-4-8", "chunk-8-12"), **other))
    store.writes.record(seen("c1"))
    await store.delete_conversation(TENANT, "c1")
    left = await store.request(chunks_in, TENANT, SERIES, chain(20))
    assert {one.id for one in left} == {"chunk-4-8", "chunk-8-12", "chunk-4-12"}


async def test_deleting_leaves_other_conversations_and_tenants_alone(store: Store) -> None:
    """Same ids, same digests, same children: not theirs."""
    for tenant in (TENANT, STRANGER):
        store.writes.record(seen("c1", tenant=tenant, heads=((digest(1), 1),)))
        await put(store, chunk(0, 4), tenant=tenant)
        await put(store, chunk(0, 8, level=1, children=("chunk-0-4",)), tenant=tenant)
    store.writes.record(seen("c2", heads=((digest(2), 1),)))
    await store.delete_conversation(TENANT, "c1")
    assert await ids(store) == ["c2"]
    assert len(await store.heads(TENANT, [digest(1), digest(2)])) == 1
    assert await ids(store, STRANGER) == ["c1"]
    assert len(await store.heads(STRANGER, [digest(1)])) == 1
    assert len(await store.request(chunks_in, STRANGER, SERIES, chain(10))) == 2


async def test_compaction_under_way_cannot_commit_to_a_deleted_conversation(store: Store) -> None:
    """Otherwise a deleted text would come back seconds later."""
    store.writes.record(seen())
    lease = await take(store, 0, 4)
    await store.delete_conversation(TENANT, "c1")
    assert await store.keep_chunks(lease, [chunk(0, 4)]) is None
    assert not await store.renew_lease(lease)
    assert not await store.is_busy(Claim(TENANT, "c1", lease.range, chain(10)))


async def test_deleting_takes_rows_in_the_order_in_which_a_flush_takes_them(
    start_store: StartStore, postgres_url: str
) -> None:
    """Another replica's flush holds the conversation and comes to its heads: neither waits in a circle."""
    store = await start_store(postgres_url)
    held = seen("c1")
    store.writes.record(seen("c1", heads=((digest(1), 1),)))
    await store.flush()
    async with store.database.writing(patient=True) as connection:
        await write_conversations(connection, [held])
        deleting = asyncio.ensure_future(store.delete_conversation(TENANT, "c1"))
        await asyncio.sleep(0.5)
        await write_conversations(connection, [replace(held, heads=((digest(1), 1),))])
    assert await deleting
    assert await store.heads(TENANT, [digest(1)]) == []


async def test_deleting_takes_heads_in_the_order_in_which_a_flush_of_another_conversation_takes_them(
    start_store: StartStore, postgres_url: str
) -> None:
    """The two share a history, so the flush takes heads of the one that is being deleted."""
    store = await start_store(postgres_url)
    for number in (2, 1):
        store.writes.record(seen("c1", heads=((digest(number), 1),)))
        await store.flush()
    async with store.database.writing(patient=True) as connection:
        await write_conversations(connection, [seen("c2", heads=((digest(1), 1),))])
        deleting = asyncio.ensure_future(store.delete_conversation(TENANT, "c1"))
        await asyncio.sleep(0.5)
        await write_conversations(connection, [seen("c2", heads=((digest(2), 1),))])
    assert await deleting
    found = await store.heads(TENANT, [digest(1), digest(2)])
    assert {head.conversation_id for head in found} == {"c2"}


async def test_deleting_takes_summaries_in_the_order_in_which_a_flush_takes_them(
    start_store: StartStore, postgres_url: str
) -> None:
    store = await start_store(postgres_url)
    for number in (2, 1):
        await put(store, chunk(number, number + 1, id=f"chunk {number}"))
    async with store.database.writing() as connection:
        await connection.execute(update(summary_chunks).values(used_at=1))
    async with store.database.writing(patient=True) as connection:
        await note_use(connection, {(TENANT, "chunk 1")})
        deleting = asyncio.ensure_future(store.delete_conversation(TENANT, "c1"))
        await asyncio.sleep(0.5)
        await note_use(connection, {(TENANT, "chunk 2")})
    await deleting
    assert await store.request(chunks_in, TENANT, SERIES, chain(10)) == []


async def test_deleting_leaves_a_conversation_whole_that_another_replica_stores_meanwhile(
    start_store: StartStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next flush, which holds the conversation and comes to the head, waits for no deletion that waits for it."""
    store, other = await start_store(postgres_url), await start_store(postgres_url)
    shown, holds = seen("c1", heads=((digest(1), 1),)), asyncio.Event()

    async def flush_again() -> None:
        async with other.database.writing(patient=True) as connection:
            await write_conversations(connection, [seen("c1")])
            holds.set()
            await asyncio.sleep(0.5)
            await write_conversations(connection, [shown])

    async def store_meanwhile(*arguments: Any) -> None:
        other.writes.record(shown)
        await other.flush()
        flushing.append(asyncio.ensure_future(flush_again()))
        await holds.wait()
        await delete_chunks_of(*arguments)

    flushing: list[asyncio.Future[None]] = []
    monkeypatch.setattr("app.store.conversations.delete_chunks_of", store_meanwhile)
    assert not await store.delete_conversation(TENANT, "c1")
    await flushing[0]
    assert (await ids(store), len(await store.heads(TENANT, [digest(1)]))) == (["c1"], 1)

"""Write-behind: never in the way, bounded, coalesced, and one bad row does not take others with it."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from app.store import Claim, Lease, Store, StoreUnavailable, write_behind
from app.store.chunks import chunks_in
from app.store.conversations import find_conversation, read_conversations, write_conversations
from app.store.tables import Paging, conversations, usage_records
from tests.faults.proxy import Fault, FaultProxy
from tests.integration.examples import TENANT, Replicas, StartStore, chain, chunk, digest, seen, span, until
from tests.integration.test_usage import record


async def stored(store: Store, conversation_id: str) -> int | None:
    """Requests in the database itself; reading through the store would flush first."""
    async with store.database.reading() as connection:
        query = select(conversations.c.requests).where(conversations.c.id == conversation_id)
        requests: int | None = await connection.scalar(query)
        return requests


async def test_requests_are_stored_in_the_background(store: Store) -> None:
    """Without anybody asking, within about 0.2 s."""
    store.writes.record(seen())
    await until(lambda: stored(store, "c1"))


async def test_requests_between_two_flushes_become_one_row(store: Store) -> None:
    """They are counted, and all their heads are kept."""
    for turn, origin in ((1, "c0"), (3, None), (2, None)):
        store.writes.record(seen(turns=turn, heads=((digest(turn), turn),), forked_from=origin))
    await store.flush()
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert (found.requests, found.turns, found.forked_from) == (3, 3, "c0")
    assert len(await store.heads(TENANT, [digest(turn) for turn in (1, 2, 3)])) == 3


async def test_a_killed_process_loses_what_waits_and_no_summary(replicas: Replicas) -> None:
    """As the module says: what was recorded since the last flush. Another process sees what is left of it."""
    killed, other = replicas
    await killed.writes.stop()  # No flush comes in between.
    lease = await killed.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1")
    assert isinstance(lease, Lease)
    killed.writes.record(seen(heads=((digest(1), 1),)))
    killed.writes.record_usage(record())
    await killed.flush()
    killed.writes.record(seen(heads=((digest(2), 2),)))
    killed.writes.record_usage(record())
    assert await killed.keep_chunks(lease, [chunk(0, 4)])
    assert (await stored(other, "c1"), await records_in(other)) == (1, 1)
    assert [head.digest for head in await other.heads(TENANT, [digest(1), digest(2)])] == [digest(1)]
    assert len(await other.request(chunks_in, TENANT, "default", chain(10))) == 1


async def test_full_queue_counts_what_it_drops(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations that wait already are still updated."""
    monkeypatch.setattr(write_behind, "QUEUE_CONVERSATIONS", 2)
    for conversation_id in ("c1", "c2", "c3", "c1"):
        store.writes.record(seen(conversation_id))
    assert store.writes.conversations.dropped == 1
    await store.flush()
    assert [await stored(store, name) for name in ("c1", "c2", "c3")] == [2, 1, None]


async def test_what_is_in_flight_counts_for_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a database that is silent each flush takes seconds, and puts back all it took."""
    monkeypatch.setattr(write_behind, "QUEUE_CONVERSATIONS", 2)
    numbers = count(3)

    async def fail(*_: object) -> None:
        for name in (f"c{next(numbers)}", "c1", "c2"):
            store.writes.record(seen(name))
        raise TimeoutError

    for name in ("c1", "c2"):
        store.writes.record(seen(name))
    with monkeypatch.context() as patch:
        patch.setattr(write_behind, "write_conversations", fail)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.flush()
    await store.flush()
    assert [await stored(store, f"c{number}") is not None for number in (1, 2, 3, 4, 5)] == [True] * 2 + [False] * 3
    assert store.writes.conversations.dropped >= 3


async def test_a_request_in_the_middle_of_a_flush_is_counted_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.writes.stop()  # No flush comes in between.

    async def write(*arguments: Any) -> None:
        store.writes.record(seen())
        await write_conversations(*arguments)

    store.writes.record(seen())
    with monkeypatch.context() as patch:
        patch.setattr(write_behind, "write_conversations", write)
        await store.writes.flush(())
    assert (await stored(store, "c1"), store.writes.conversations.number) == (1, 1)
    await store.writes.flush(())
    assert (await stored(store, "c1"), store.writes.conversations.number) == (2, 0)


async def test_an_error_that_nobody_foresaw_does_not_end_the_flushes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when no thread can be started for a connection."""
    write = write_conversations

    async def fail(*_: object) -> None:
        monkeypatch.setattr(write_behind, "write_conversations", write)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(write_behind, "write_conversations", fail)
    store.writes.record(seen())
    await until(lambda: stored(store, "c1"))


async def test_a_database_that_is_away_for_long_is_told_of_once_and_once_more_when_it_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, tries = store.writes.flush, count(1)

    async def fail() -> None:
        if next(tries) <= 3:
            raise StoreUnavailable("away")
        await flush()

    monkeypatch.setattr(write_behind, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(store.writes, "flush", fail)
    with capture_logs() as log:
        store.writes.record(seen())
        await until(lambda: len(log) == 2)
    waits, again = log
    assert (waits["event"], waits["log_level"], waits["times"]) == ("database not written", "warning", 1)
    assert (again["event"], again["log_level"], again["times"]) == ("database written again", "info", 3)


async def test_heads_of_one_conversation_are_bounded(store: Store) -> None:
    """While the database is away they would grow with every request; the newest are kept."""
    for turn in range(1, 400):
        store.writes.record(seen(turns=turn, heads=((digest(turn), turn),)))
    found = await store.heads(TENANT, [digest(turn) for turn in range(1, 400)])
    assert {head.turn for head in found} == set(range(144, 400))


async def test_row_the_database_refuses_does_not_take_others_with_it(store: Store) -> None:
    """The bad one is dropped and counted, the rest is stored."""
    store.writes.record(seen("c1"))
    store.writes.record(seen("bad", messages=None))
    store.writes.record(seen("c2"))
    await store.flush()
    assert [await stored(store, name) for name in ("c1", "bad", "c2")] == [1, None, 1]
    assert store.writes.conversations.dropped == 1


@pytest.mark.parametrize("number", [2**63, 10**30])
async def test_number_the_driver_cannot_bind_does_not_take_others_with_it(store: Store, number: int) -> None:
    """SQLite's driver raises an error that SQLAlchemy does not know."""
    store.writes.record(seen("c1"))
    store.writes.record(seen("window", window=number))
    store.writes.record(seen("tokens", tokens_before=number))
    store.writes.record(seen("c2"))
    await store.flush()
    assert [await stored(store, name) for name in ("c1", "window", "tokens", "c2")] == [1, None, None, 1]
    assert store.writes.conversations.dropped == 2
    store.writes.record(seen("c3"))
    page = await store.rest(read_conversations, TENANT, Paging(100))
    assert {conversation.id for conversation in page.data} == {"c1", "c2", "c3"}


async def test_large_backlog_is_stored_in_several_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage thousands may wait; each transaction stays short."""
    monkeypatch.setattr(write_behind, "BATCH", 3)
    for number in range(8):
        store.writes.record(seen(f"c{number}"))
    await store.flush()
    page = await store.rest(read_conversations, TENANT, Paging(100))
    assert len(page.data) == 8


async def test_two_stores_that_flush_the_same_conversations_at_once_count_every_request(replicas: Replicas) -> None:
    """Rows are taken in one order everywhere, so neither waits for the other in a circle."""
    names = [f"c{number}" for number in range(200)]
    for turn in range(5):
        for store, order in zip(replicas, (1, -1), strict=True):
            for number, name in list(enumerate(names))[::order]:
                store.writes.record(
                    seen(name, turns=turn, heads=((digest(number), turn), (digest(1000 + number), turn)))
                )
        await asyncio.gather(*(store.flush() for store in replicas))
    assert {await stored(replicas[0], name) for name in names} == {10}
    assert sum(store.writes.conversations.dropped for store in replicas) == 0


async def test_what_is_recorded_soon_is_seen_by_whoever_reads(start_store: StartStore, shared_url: str) -> None:
    store = await start_store(shared_url)
    store.writes.soon(lambda: store.writes.record(seen(heads=((digest(1), 1),))))
    assert len(await store.heads(TENANT, [digest(1)])) == 1
    store.writes.soon(lambda: store.writes.record(seen()))
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.requests == 2
    store.writes.soon(lambda: store.writes.record(seen()))
    await store.close()
    again = await start_store(shared_url)
    found = await again.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.requests == 3


async def test_what_fails_to_be_recorded_takes_nothing_else_with_it(store: Store) -> None:
    done: list[int] = []

    def failing() -> None:
        raise ValueError("a bug")

    store.writes.soon(failing)
    store.writes.soon(lambda: done.append(1))
    with capture_logs() as logs:
        store.writes.catch_up()
    assert done == [1]
    assert [entry["event"] for entry in logs] == ["nothing was recorded of a request"]


async def records_in(store: Store) -> int:
    """Usage records in the database itself."""
    async with store.database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(usage_records)) or 0


async def test_a_conversation_that_is_deleted_while_its_storing_is_in_doubt_does_not_come_back(
    start_store: StartStore, gate: FaultProxy
) -> None:
    store = await start_store(gate.url)
    gate.inject(Fault("cut", way="up", seen=(b"INSERT INTO conversations", b"INSERT INTO usage_records")), times=1)
    store.writes.record(seen())
    store.writes.record_usage(record())
    with pytest.raises(StoreUnavailable):
        await store.flush()
    assert await store.delete_conversation(TENANT, "c1")
    await store.flush()
    assert await store.rest(find_conversation, TENANT, "c1") is None
    assert await records_in(store) == 0


async def test_a_commit_whose_answer_is_lost_stores_no_usage_record_twice(
    start_store: StartStore, gate: FaultProxy
) -> None:
    store = await start_store(gate.url)
    await store.writes.stop()  # No flush comes in between.
    store.writes.record_usage(record())
    gate.inject(Fault("cut", way="down", seen=(b"INSERT INTO usage_records", b"COMMIT")), times=1)
    with pytest.raises(StoreUnavailable):
        await store.flush()
    assert await records_in(store) == store.writes.usage.number == 1
    await store.flush()
    assert (await records_in(store), store.writes.usage.number, store.writes.usage.dropped) == (1, 0, 0)

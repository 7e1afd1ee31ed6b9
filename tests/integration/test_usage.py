"""Usage records: stored behind the requests, never twice, summed as the provider told them, erased with their owner."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from app.store import Store, UnknownCursor, UsagePage, UsageRecord, UsageSum, write_behind
from app.store.conversations import read_conversations
from app.store.tables import Paging, usage_records
from app.store.usage import read_records, write_usage
from app.tokens.costs import DecisionRecord, Price, SummaryStats, Tokens
from tests.integration.examples import STRANGER, TENANT, seen

_NUMBERS = count(1)
PRICE = Price(prompt=2.5, completion=10.0, cached=1.25, written=3.0)


def record(conversation_id: str = "c1", *, tenant: str = TENANT, **changes: Any) -> UsageRecord:
    """The next call, each later than the one before."""
    number = next(_NUMBERS)
    first = UsageRecord(
        tenant=tenant,
        id=f"use_{number:08}",
        conversation_id=conversation_id,
        request_id=f"req_{number}",
        turn=1,
        purpose="message",
        upstream="default",
        model="gpt-4o",
        estimated=100,
        forwarded=100,
        saved=0,
        tokens=Tokens(prompt=100, completion=10, cached=0, reasoning=0, written=5),
        price=None,
        cost=None,
        status=200,
        context_status="full",
    )
    return replace(first, **changes)


async def usage(store: Store, conversation_id: str = "c1", **options: Any) -> UsagePage:
    return await store.rest(read_records, TENANT, conversation_id, Paging(**{"limit": 100, **options}))


async def stored(store: Store) -> int:
    """Records in the database itself; reading through the store would flush first."""
    async with store.database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(usage_records)) or 0


async def test_a_record_is_read_as_it_was_written(store: Store) -> None:
    decided = DecisionRecord(8_000, 7_600, 5_320, ("masked", "summarized"), "storage", 1.25)
    whole = record(
        decided=decided,
        price=replace(PRICE, written_hour=4.0, audio=32.0, speech=64.0, search=10_000.0),
        price_source="registry",
        priced_model="gpt-4o-2024-11-20",
        tier="flex",
        searches=2,
        format="responses",
        tokens=Tokens(100, 10, 20, 5, 6, 4, 7, 3),
        cost=0.25,
        upstream="azure",
        context_status="summarized",
        saved=40,
        turn=7,
    )
    bare = record(
        purpose="summary",
        estimated=None,
        forwarded=None,
        tokens=Tokens(),
        price=replace(PRICE, cached=None, written=None),
        price_source="settings",
        status=500,
        made=SummaryStats(0.5, 5_000),
    )
    kept = record(purpose="background", made=SummaryStats(0.5, 5_000, 300, "chk_1"))
    untouched = record(decided=DecisionRecord(8_000, 7_600, 5_320))
    for one in (whole, bare, kept, untouched):
        store.writes.record_usage(one)
    found = (await usage(store)).page.data
    assert [each.record for each in found] == [whole, bare, kept, untouched]
    assert all(each.created_at.year >= 2024 for each in found)


async def test_a_full_queue_of_records_counts_what_it_drops(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has no part in what happens to conversations."""
    monkeypatch.setattr(write_behind, "QUEUE_RECORDS", 2)
    for _ in range(5):
        store.writes.record_usage(record())
    store.writes.record(seen())
    assert (store.writes.conversations.dropped, store.writes.usage.dropped) == (0, 3)
    assert len((await usage(store)).page.data) == 2


@pytest.mark.parametrize("bad", ["conversation", "record"])
async def test_conversations_and_records_do_not_take_each_other_with_them(store: Store, bad: str) -> None:
    """They are stored in one transaction, and counted once, whatever the database refuses of either."""
    store.writes.record(seen(messages=None if bad == "conversation" else 1))
    store.writes.record(seen("c2"))
    store.writes.record_usage(record(model=None if bad == "record" else "gpt-4o"))
    store.writes.record_usage(record())
    await store.flush()
    assert await stored(store) == 1 + (bad == "conversation")
    conversations = (await store.rest(read_conversations, TENANT, Paging(10))).data
    assert [each.requests for each in conversations] == [1] * (1 + (bad == "record"))
    assert (store.writes.conversations.dropped, store.writes.usage.dropped) == (bad == "conversation", bad == "record")


async def test_writing_a_record_twice_is_writing_it_once(store: Store) -> None:
    """A flush that was given up may still have been carried out."""
    one = record()
    for _ in range(2):
        async with store.database.writing() as connection:
            await write_usage(connection, [one])
    assert await stored(store) == 1


async def test_sums_are_those_of_the_records(store: Store) -> None:
    reported = [Tokens(100, 10, 40, 5, 30), Tokens(200, 20, None, None), Tokens()]
    for tokens in reported:
        price: dict[str, Any] = {"price": PRICE, "price_source": "registry", "cost": 0.5 if tokens.prompt else None}
        store.writes.record_usage(record(tokens=tokens, saved=7, request_id="r1", **price))
    billed: dict[str, Any] = {"price_source": "provider", "cost": 0.125}
    store.writes.record_usage(record(purpose="summary", tokens=Tokens(1_000, 50, 0, 0), request_id="r1", **billed))
    store.writes.record_usage(record(status=429, tokens=Tokens()))
    sums = (await usage(store)).sums
    assert sums.messages == UsageSum(
        requests=2,
        calls=4,
        failed=1,
        priced=2,
        unreported=1,
        unpriced=1,
        list_priced=2,
        prompt=300,
        completion=30,
        cached=40,
        written=30,
        reasoning=5,
        saved=21,
        cost=1.0,
    )
    assert sums.summaries == UsageSum(requests=1, calls=1, priced=1, billed=1, prompt=1_000, completion=50, cost=0.125)


async def test_every_purpose_but_a_message_is_counted_with_the_summaries(store: Store) -> None:
    """A summary may be made ahead of the request that needs it."""
    ahead: Any = "background"
    for purpose in ("summary", ahead):
        store.writes.record_usage(record(purpose=purpose, request_id="r1"))
    sums = (await usage(store)).sums
    assert (sums.messages.calls, sums.summaries.calls, sums.summaries.prompt) == (0, 2, 200)


async def test_large_sums_are_whole_numbers(store: Store) -> None:
    """PostgreSQL adds up to decimals, which would not be written as JSON numbers."""
    for _ in range(3):
        store.writes.record_usage(record(tokens=Tokens(prompt=100_000_000, completion=1)))
    prompt = (await usage(store)).sums.messages.prompt
    assert prompt == 300_000_000
    assert type(prompt) is int


async def test_records_belong_to_one_tenant_and_one_conversation(store: Store) -> None:
    foreign = record(tenant=STRANGER)
    for one in (record(), record("c2"), foreign):
        store.writes.record_usage(one)
    assert (await usage(store)).sums.messages.calls == 1
    with pytest.raises(UnknownCursor):
        await usage(store, after=foreign.id)


@pytest.mark.parametrize("waits", [True, False], ids=["while they wait", "once they are stored"])
async def test_records_go_with_their_conversation(store: Store, waits: bool) -> None:
    store.writes.record(seen("c1"))
    await store.flush()
    for one in (record(), record("c2"), record(tenant=STRANGER)):
        store.writes.record_usage(one)
    if not waits:
        await store.flush()
    assert await store.delete_conversation(TENANT, "c1")
    await store.flush()
    assert (await usage(store)).page.data == []
    assert await stored(store) == 2

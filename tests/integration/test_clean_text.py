"""Every text of a record is stored without what the databases refuse."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import Table, select

from app.runtime.caches import storable
from app.store import Store, UsageRecord
from app.store.tables import CleanText, conversations, heads, usage_records
from app.tokens.costs import DecisionRecord, Price, SummaryStats, Tokens
from tests.integration.examples import digest, seen

ODD, AS_STORED = "\0a\ud800\u00e9", "\ufffda\ufffd\u00e9"
RECORD = UsageRecord(
    tenant="t",
    id="u1",
    conversation_id="c",
    request_id="r",
    turn=1,
    purpose="message",
    upstream="default",
    model="m",
    estimated=1,
    forwarded=1,
    saved=0,
    tokens=Tokens(),
    price=Price(1.0, 1.0),
    price_source="registry",
    priced_model="m",
    tier="flex",
    format="messages",
    cost=None,
    status=200,
    context_status="full",
    decided=DecisionRecord(1, 1, 1, ("masked",), "reason"),
    made=SummaryStats(1.0, 1, 1, "summary"),
)


def odd(value: Any) -> Any:
    """With a NUL and half a surrogate pair in each of its texts."""
    texts = {name: ODD for name, told in asdict(value).items() if isinstance(told, str)}
    return replace(value, **texts)


async def texts_in(store: Store, table: Table) -> list[dict[str, str]]:
    columns = [column for column in table.columns if isinstance(column.type, CleanText)]
    async with store.database.reading() as connection:
        rows = await connection.execute(select(*columns))
        return [dict(row._mapping) for row in rows]


async def test_every_text_of_a_usage_record_is_clean(store: Store) -> None:
    price, decided, made = odd(RECORD.price), replace(odd(RECORD.decided), actions=(ODD, ODD)), odd(RECORD.made)
    store.writes.record_usage(RECORD)
    store.writes.record_usage(replace(odd(RECORD), price=price, decided=decided, made=made))
    await store.flush()
    plain, stored = sorted(await texts_in(store, usage_records), key=lambda row: row["tenant"])
    assert plain["model"] == "m"
    assert stored == {**dict.fromkeys(plain, AS_STORED), "actions": f"{AS_STORED},{AS_STORED}"}
    assert store.writes.usage.dropped == 0


async def test_every_text_of_a_conversation_and_its_heads_is_clean(store: Store) -> None:
    given = seen(heads=((digest(1), 1),), reason="", plan="", forked_from="")
    store.writes.record(given)
    store.writes.record(odd(given))
    await store.flush()
    last_message = "last_message"  # A digest of what it is of.
    plain, stored = sorted(await texts_in(store, conversations), key=lambda row: row["tenant"])
    assert plain["model"] == given.model
    assert {**stored, last_message: ""} == {**dict.fromkeys(plain, AS_STORED), last_message: ""}
    assert {"tenant": AS_STORED, "conversation_id": AS_STORED} in await texts_in(store, heads)
    assert store.writes.conversations.dropped == 0


def test_what_can_be_stored_stays_as_it_is() -> None:
    for text in ("", "plain", "\u00e9\U0001f600", "\ufffd"):
        assert storable(text) is text

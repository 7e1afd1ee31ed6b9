"""Days and records: whatever is asked for, and whatever happens meanwhile, the sums are those of the ledger."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from sqlalchemy import delete, event, select, update

from app.core.tokens.usage import Decided, Tokens
from app.store import Grouping, Store, StoreUnavailable, UsageRecord, UsageReport
from app.store import usage_records as reports
from app.store.conversation_rows import find_conversation
from app.store.tables import usage_days, usage_records
from app.store.usage_days import DAY_MS, _add_up_again
from app.store.usage_records import read_report
from tests.faults.proxy import Fault, FaultProxy
from tests.integration.examples import STRANGER, TENANT, OpenStore, digest, seen
from tests.integration.test_usage import PRICE, record

FIRST = 20_000 * DAY_MS
DAYS = 5
MODELS = ("gpt-4o", "gpt-4o-mini", "o3")
CHECKED = ("calls", "failed", "unreported", "unpriced", "prompt", "saved")


def records() -> Sequence[UsageRecord]:
    """Of each kind that sums tell apart."""
    decided = Decided(8_000, 50, 5_320, ("summarized",), "soft_threshold", 0.0)
    calls: list[dict[str, Any]] = [
        {"tokens": Tokens(100, 10, 40, 5, 30), "price": PRICE, "cost": 0.1, "saved": 7, "saved_cost": 0.4},
        {"tokens": Tokens(100, 10), "price": PRICE, "cost": 0.2, "saved": 9, "saved_cost": -0.1, "decided": decided},
        {"tokens": Tokens(), "cost": None},
        {"tokens": Tokens(7, 3), "status": 400, "price": PRICE, "cost": 0.3, "context_status": "summarized"},
        {"tokens": Tokens(), "status": 500, "cost": None, "context_status": None},
        {"tokens": Tokens(900, 50), "purpose": "summary", "context_status": None, "price": PRICE, "cost": 0.7},
        {"tokens": Tokens(3, 1), "cost": 0.1, "price_source": "provider", "saved": 5, "decided": decided},
    ]
    return [
        record(f"c{number % 3}", model=MODELS[number % 3], tenant=STRANGER if number % 11 == 0 else TENANT, **call)
        for number, call in enumerate(calls * 24)
    ]


async def fill(store: Store, made: Sequence[UsageRecord]) -> None:
    """Over some days, as if they had been stored then. On one of them an earlier release added up."""
    for each in made:
        store.writes.record_usage(each)
    await store.flush()
    step = DAYS * DAY_MS // len(made)
    async with store.database.writing() as connection:
        for number, each in enumerate(made):
            own = usage_records.c.id == each.id
            await connection.execute(update(usage_records).where(own).values(created_at=FIRST + number * step))
        for tenant in (TENANT, STRANGER):
            await _add_up_again(connection, usage_days.c.tenant == tenant, usage_records.c.tenant == tenant)
        old = usage_days.c.day == FIRST + 3 * DAY_MS
        await connection.execute(update(usage_days).where(old).values(unreported=None, unpriced=None, calls=1))


async def by_records(store: Store, **asked: Any) -> UsageReport:
    """The same report, without any days."""
    async with store.database.engine.connect() as connection, connection.begin() as transaction:
        await connection.execute(delete(usage_days))
        report = await reports.read_report(connection, TENANT, **asked)
        await transaction.rollback()
    return report


def rounded(report: UsageReport) -> Any:
    """What is compared: floating point numbers add up to another last digit in another order."""

    def plain(sums: Any) -> Any:
        return [
            {name: round(value, 9) if isinstance(value, float) else value for name, value in each.items()}
            for each in (asdict(part) for part in (sums.messages, sums.summaries))
        ]

    return plain(report.sums), [(group.key, plain(group.sums)) for group in report.groups], report.has_more


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


TIMES = st.one_of(
    st.integers(FIRST - DAY_MS, FIRST + (DAYS + 1) * DAY_MS),
    st.integers(-1, DAYS + 1).map(lambda day: FIRST + day * DAY_MS),
)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_a_report_is_the_sum_of_the_ledger_over_any_period(
    request: pytest.FixtureRequest, place: str, runner: asyncio.Runner
) -> None:
    """The sums by day are asked for whole days, the records for the rest; nothing is left out or counted twice."""

    async def opened(url: str) -> Store:
        store = Store(url, timeout=5.0)
        await store.start()
        await fill(store, records())
        return store

    store = runner.run(opened(request.getfixturevalue(f"{place}_url")))

    @settings(deadline=None)
    @given(
        st.tuples(TIMES, TIMES).filter(lambda times: times[0] != times[1]),
        st.sampled_from([None, *MODELS]),
        st.sampled_from([None, "day", "model"]),
    )
    def holds(times: tuple[int, int], model: str | None, by: Grouping | None) -> None:
        async def both() -> tuple[UsageReport, UsageReport]:
            asked: dict[str, Any] = {"since_ms": min(times), "until_ms": max(times), "model": model, "by": by}
            async with store.database.reading() as connection:
                report = await reports.read_report(connection, TENANT, **asked)
            return report, await by_records(store, **asked)

        report, expected = runner.run(both())
        assert rounded(report) == rounded(expected)

    try:
        holds()
    finally:
        runner.run(store.close())


async def test_whole_days_are_read_without_their_records(store: Store) -> None:
    """A month may be millions of them."""
    await fill(store, records())
    asked: list[Any] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "usage_records" in statement:
            asked.append(parameters)

    engine = store.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    whole = await store.rest(read_report, TENANT, FIRST, FIRST + 3 * DAY_MS, by="model")
    assert not asked
    await store.rest(read_report, TENANT, FIRST - 5, FIRST + DAY_MS + 7)
    event.remove(engine, "before_cursor_execute", note)
    [ragged] = asked
    times = sorted({value for value in ragged if isinstance(value, int) and value > DAY_MS})
    assert times == [FIRST - 5, FIRST, FIRST + DAY_MS, FIRST + DAY_MS + 7]
    assert whole.sums.messages.calls > 40


async def test_days_that_an_earlier_release_added_up_are_added_up_again(store: Store) -> None:
    """And those of which it had no sums at all, beside others that it had."""
    await fill(store, records())
    before = await sums_by_day(store)
    await store.tidying.add_days_up()
    after = await sums_by_day(store)
    assert before != after == await sums_of_records(store)


async def sums_by_day(store: Store) -> list[tuple[Any, ...]]:
    days = usage_days.c
    asked = select(*usage_days.primary_key, *(days[name] for name in CHECKED)).order_by(*usage_days.primary_key)
    async with store.database.reading() as connection:
        return [tuple(row) for row in await connection.execute(asked)]


async def sums_of_records(store: Store) -> list[tuple[Any, ...]]:
    """Added up here, by nobody's statement."""
    added: dict[tuple[Any, ...], list[int]] = {}
    async with store.database.reading() as connection:
        for row in await connection.execute(select(usage_records)):
            day = row.created_at - row.created_at % DAY_MS
            sums = added.setdefault((row.tenant, day, row.purpose, row.model, row.context_status or ""), [0] * 6)
            answered = row.status == 200
            for number, value in enumerate(
                (
                    *(1, not answered, answered and row.prompt_tokens is None, answered and row.cost is None),
                    *(row.prompt_tokens or 0, row.saved_tokens),
                )
            ):
                sums[number] += int(value)
    return [(*key, *added[key]) for key in sorted(added)]


@pytest.mark.slow
async def test_a_process_that_is_killed_in_between_leaves_no_sum_without_its_records(
    open_store: OpenStore, shared_url: str
) -> None:
    """After any statement of a flush; what was stored before it stays."""
    store = open_store(shared_url)
    await store.start()
    statements = 2 if shared_url.startswith("postgres") else 4
    for number in range(1, statements + 1):
        command = [sys.executable, "-m", "tests.integration.killed", shared_url, str(number), str(number)]
        killed = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[2])
        assert await killed.wait() == -signal.SIGKILL
    kept = await sums_of_records(store)
    assert sum(row[5] for row in kept) == statements
    assert await sums_by_day(store) == kept
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.requests == statements


async def test_what_was_committed_and_not_acknowledged_is_counted_once(open_store: OpenStore, gate: FaultProxy) -> None:
    """The connection ends after the last word: nobody knows whether it was heard. What comes meanwhile counts, too."""
    store = open_store(gate.url)
    await store.start()
    gate.inject(Fault("cut", way="down", seen=(b"INSERT INTO conversations", b"COMMIT")), times=1)
    for _ in range(2):
        store.writes.record(seen(heads=((digest(1), 1),)))
        store.writes.record_usage(record())
    with pytest.raises(StoreUnavailable):
        await store.flush()
    assert gate.injected["cut"] == 1
    assert len(await store.heads(TENANT, [digest(1)])) == 1
    store.writes.record(seen())
    store.writes.record_usage(record())
    await store.flush()
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.requests == 3
    assert await sums_by_day(store) == await sums_of_records(store)


async def test_what_was_not_committed_is_counted_once_too(open_store: OpenStore, gate: FaultProxy) -> None:
    store = open_store(gate.url)
    await store.start()
    gate.inject(Fault("cut", way="up", seen=(b"INSERT INTO conversations", b"INSERT INTO usage_records")), times=1)
    store.writes.record(seen())
    store.writes.record_usage(record())
    with pytest.raises(StoreUnavailable):
        await store.flush()
    store.writes.record(seen())
    store.writes.record_usage(record())
    await store.flush()
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.requests == 2
    assert await sums_by_day(store) == await sums_of_records(store)


async def test_a_conversation_that_is_deleted_while_its_storing_is_in_doubt_does_not_come_back(
    open_store: OpenStore, gate: FaultProxy
) -> None:
    store = open_store(gate.url)
    await store.start()
    gate.inject(Fault("cut", way="up", seen=(b"INSERT INTO conversations", b"INSERT INTO usage_records")), times=1)
    store.writes.record(seen())
    store.writes.record_usage(record())
    with pytest.raises(StoreUnavailable):
        await store.flush()
    assert await store.delete_conversation(TENANT, "c1")
    await store.flush()
    assert await store.rest(find_conversation, TENANT, "c1") is None
    assert await sums_by_day(store) == await sums_of_records(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a conversation", "a tenant", "what is old"])
async def test_sums_stay_those_of_the_records_while_others_record_and_delete(
    open_store: OpenStore, shared_url: str, how: str
) -> None:
    """Two processes record; a third one deletes what they have just stored, again and again."""
    stores = [open_store(shared_url) for _ in range(3)]
    for store in stores:
        await store.start()
    deleter, *recorders = stores
    deleter.tidying.kept_ms = 20

    async def keep_recording(store: Store) -> None:
        for number in range(40):
            store.writes.record(seen(f"c{number % 3}"))
            for each in records()[number : number + 3]:
                store.writes.record_usage(replace(each, id=f"{each.id}-{number}-{id(store)}"))
            while True:
                with suppress(StoreUnavailable):  # Somebody else is at it: it is tried again, as in the background.
                    await store.flush()
                    break

    recording = asyncio.gather(*map(keep_recording, recorders))
    while not recording.done():
        with suppress(StoreUnavailable):
            if how == "a conversation":
                await deleter.delete_conversation(TENANT, "c1")
            elif how == "a tenant":
                await deleter.erase_tenant(TENANT)
            else:
                await deleter.tidying.remove_unused()
        await asyncio.sleep(0.02)
    await recording
    assert await sums_by_day(deleter) == await sums_of_records(deleter)

"""What is done again and again takes no longer because much is stored: the plans of PostgreSQL."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Connection, Double, Integer, LargeBinary, Table, event
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import CalibrationKey, Claim, Lease, Store, retention
from app.store.calibrations import learn_calibrations, read_calibrations, read_learned_windows
from app.store.tables import metadata
from app.tokens.calibration import Sample
from tests.integration.examples import SERIES, chain, chunk, history_of, seen, span

SIZE = 30_000
"""Rows of each table."""
TENANTS = 1_000
TENANT = "tenant 1"
ROWS = 5_000
"""That one statement may read, however large its tables are: some hundred rows, each with some of other tables."""
FIRST, EACH = 2, 50
"""Which of many statements that are alike are explained."""
_DAY_MS = 86_400_000
_NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
# One row in a thousand is due to be removed, the others are 1 to 28 days old.
_AT = f"{_NOW} - CASE WHEN n % 1000 = 0 THEN 40 ELSE 1 + n % 28 END * {_DAY_MS}"
_NAMED = {
    "tenant": f"'tenant ' || n % {TENANTS}",
    "id": "'id ' || n",
    "conversation_id": "'id ' || n",
    "series": f"'{SERIES}'",
    "level": "0",
    "upstream": "'default'",
    "forked_from": "NULL",
}
_EXPIRING = {
    # Nearly all have ended: leases lately, as older ones are removed, windows whenever.
    "leases": f"{_NOW} - n % 600000",
    "learned_windows": f"{_AT}",
}


# Foreign keys come first, as they need the others.
_KEYS = """
    SELECT conrelid::regclass::text AS "table", conname AS name, pg_get_constraintdef(oid) AS definition
    FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND contype IN ('f', 'p', 'u') ORDER BY contype, conname
"""
_INDEXES = "SELECT indexname AS name, indexdef AS definition FROM pg_indexes WHERE schemaname = 'public'"


@dataclass(frozen=True, slots=True)
class Seen:
    """A statement, and what its plan read."""

    statement: str
    rows: int
    """Of tables and indexes, those that a filter dropped included."""
    whole: frozenset[str]
    """Tables that were read from end to end."""

    @property
    def grows(self) -> bool:
        """Whether it takes longer in a larger table."""
        return self.rows > ROWS or bool(self.whole)


async def fill(connection: AsyncConnection) -> None:
    """Keys and indexes are built once, afterwards."""
    await connection.exec_driver_sql("SET LOCAL maintenance_work_mem = '512MB'")
    keys = (await connection.exec_driver_sql(_KEYS)).all()
    for key in keys:
        await connection.exec_driver_sql(f"ALTER TABLE {key.table} DROP CONSTRAINT {key.name}")
    indexes = (await connection.exec_driver_sql(_INDEXES)).all()
    for index in indexes:
        await connection.exec_driver_sql(f"DROP INDEX {index.name}")
    for table in metadata.sorted_tables:
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        values = ", ".join(_value(table, column) for column in table.columns)
        await connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({names}) SELECT {values} FROM generate_series(CAST(1 AS BIGINT), {SIZE}) AS n"  # noqa: S608
        )
    for key in reversed(keys):
        await connection.exec_driver_sql(f"ALTER TABLE {key.table} ADD CONSTRAINT {key.name} {key.definition}")
    for index in indexes:
        await connection.exec_driver_sql(index.definition)
    await connection.exec_driver_sql("ANALYZE")


def _value(table: Table, column: Column[Any]) -> str:
    if (named := _EXPIRING.get(table.name) if column.name == "expires_at" else _NAMED.get(column.name)) is not None:
        return named
    if column.name.endswith("_at"):
        return _AT
    match column.type:
        case LargeBinary():
            return f"substring(sha256(CAST(n || ' {column.name}' AS BYTEA)), 1, 16)"
        case JSON():
            return "'[]'"
        case Boolean():
            return "false"
        case Double():
            return "0.5"
    return "n % 1000" if isinstance(column.type, Integer) else f"'{column.name} ' || n"


@contextmanager
def plans() -> Iterator[list[Seen]]:
    """Of the statements that are executed meanwhile, each before it is; of many that are alike the first ones and some
    of the others. What explaining them changes is taken back."""
    found: list[Seen] = []
    times: Counter[str] = Counter()
    busy = False

    def explain(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> None:
        nonlocal busy
        if busy or not statement.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            return
        times[statement] += 1
        if times[statement] > FIRST and times[statement] % EACH:
            return
        busy = True
        try:
            alone = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
            if not alone:
                connection.exec_driver_sql("SAVEPOINT explained")
            one = parameters[0] if many else parameters
            plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", one).scalar_one()
            if not alone:
                connection.exec_driver_sql("ROLLBACK TO SAVEPOINT explained")
            found.append(_seen(statement, plan if isinstance(plan, list) else json.loads(plan)))
        finally:
            busy = False

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", explain)


def _seen(statement: str, plan: list[dict[str, Any]]) -> Seen:
    nodes = list(_nodes(plan[0]["Plan"]))
    scans = [node for node in nodes if "Relation Name" in node or "Index Name" in node]
    dropped = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    rows = sum(
        (node["Actual Rows"] + sum(node.get(key, 0) for key in dropped)) * node["Actual Loops"] for node in scans
    )
    # Of a table of some rows nothing else is to be gained.
    read = (node["Relation Name"] for node in scans if node["Node Type"].endswith("Seq Scan"))
    whole = set(read) & set(metadata.tables)
    return Seen(" ".join(statement.split()), round(rows), frozenset(whole))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


async def do_all_that_is_repeated(store: Store) -> None:
    """Once: what is done every few seconds, minutes or hours, whether there is a request or not."""
    # Tidying, by the hour.
    await retention.remove_old_leases(store)
    await retention.remove_unused(store)
    # What requests leave behind, five times a second.
    for number in range(50):
        name = f"id {1 + number * TENANTS}"
        history = history_of("one", "two", name, tenant=TENANT, conversation_id=name)
        store.writes.record(seen(name, tenant=TENANT, summaries=(name,), heads=((history.digests[-1], 2),)))
        store.writes.record_history(history)
    await store.flush()
    await store.database.ping()
    # What replicas tell each other, by the minute.
    key = CalibrationKey(upstream="default", model="gpt-4o", formula="f", tools=False, tenant=TENANT)
    await store.task_change(learn_calibrations, {key: [Sample(100, 110)]})
    await store.task(read_calibrations, changed_within_seconds=60.0)
    await store.task(read_learned_windows, "default", 1_000)
    # Leases and those who wait for them, several times a second.
    lease = await store.take_lease(Claim(TENANT, "id 1", span(0, 4), chain(100)), "holder")
    assert isinstance(lease, Lease)
    await store.is_busy(Claim(TENANT, "id 1", span(0, 4), chain(100)))
    await store.renew_lease(lease)
    await store.keep_chunks(lease, [chunk(0, 4)])
    await store.release_lease(lease)


async def look_at_all(store: Store) -> None:
    async with store.database.reading() as connection:
        await connection.exec_driver_sql("SELECT id FROM summary_chunks WHERE text = 'no such text'")


async def test_nothing_that_is_repeated_reads_more_where_more_is_stored(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table from end to end, and no more rows than are worked on at once."""
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    store = Store(postgres_url, timeout=30.0, retention_days=30)
    await store.connect()
    async with store.database.migrating() as connection:
        await fill(connection)
    with plans() as found:
        await do_all_that_is_repeated(store)
    with plans() as sweep:
        await look_at_all(store)
    await store.close()
    assert len({each.statement for each in found}) > 30
    assert [each for each in found if each.grows] == []
    assert [each.grows for each in sweep] == [True]  # Such a plan would have been noticed.

"""Partitions of usage records on PostgreSQL: each holds the calls of some days, and retention drops it as a whole.

Theory: the id of a record begins with the time of its call, so it says where the record belongs, and is unique with its
tenant in all partitions together. The table of an earlier release becomes the first partition as it stands: that no id
in it is later than its end is checked while others use it (`VALIDATE CONSTRAINT`), so it is locked only for as long as
names are changed. Partitions are made days ahead. A record for which there is none goes to the rest, which takes all,
and is deleted from there row by row, as it is where the role does not own the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar

import asyncpg

from app.store.database import MIGRATION_SECONDS, connected
from app.store.tables import usage_records
from app.store.usage_days import DAY_MS

P = ParamSpec("P")
T = TypeVar("T")

TABLE = usage_records.name
AHEAD_DAYS = 7
"""Days for which there are partitions, so long may no process run."""
BEFORE_DAYS = 7
"""Days from now on that still belong to the first partition: more than making it takes. Should that be broken off by a
crash, so much time is left to whoever goes on: then the check would refuse records."""
SHARE = 10
"""Partitions that hold what is kept: looking for a conversation asks each."""
LOCKED_MS, SOON_MS, TRIES, PAUSE_SECONDS = 150, 1_000, 20, 0.5
_LOCK = (0x57E0, 0x0004)  # Beside that of `remains`.
_CHECK = "ck_usage_records_before"

_STATE = """
SELECT c.relkind = 'p' AS is_divided, (extract(epoch FROM now()) * 1000)::bigint AS now_ms,
       pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(c.relnamespace, 'CREATE') AS is_own,
       EXISTS (SELECT FROM pg_depend d WHERE d.refobjid = c.oid AND d.classid = 'pg_rewrite'::regclass) AS has_views
FROM pg_class c WHERE c.oid = $1::text::regclass
"""
_ENDS = r"""
SELECT c.oid::regclass::text AS name, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''use_(\w+)''\)') AS end
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::text::regclass
"""
_INDEXES = """
SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS made
FROM pg_index i WHERE i.indrelid = $1::text::regclass AND NOT i.indisprimary
"""
_GRANTS = """
SELECT format('GRANT %s ON %s TO %s', a.privilege_type, c.oid::regclass,
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = $1::text::regclass
"""


def spared_ms(kept_ms: int) -> int:
    """Time that records are kept beyond theirs, in milliseconds, until their partition can be dropped, and their days
    as long."""
    return (_days_of(kept_ms) + 1) * DAY_MS


async def tend(dsn: str, kept_ms: int) -> tuple[bool, int]:
    """Divide the table where it is not, make the partitions of the days to come, and drop those of which all is older
    than `kept_ms`. Whether it is divided, and how many were dropped.

    Raises StoreUnavailable.
    """
    async with connected(dsn, MIGRATION_SECONDS) as connection:
        return await _tend(connection, kept_ms)


async def _tend(connection: asyncpg.Connection[asyncpg.Record], kept_ms: int) -> tuple[bool, int]:
    [state] = await connection.fetch(_STATE, TABLE)
    if not state["is_own"]:
        return state["is_divided"], 0
    if not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *_LOCK):
        return state["is_divided"], 0  # Another replica is at it.
    await connection.execute(f"SET lock_timeout = {LOCKED_MS}")
    today = state["now_ms"] // DAY_MS
    if not state["is_divided"]:
        if state["has_views"]:
            return False, 0  # They would show the first partition alone.
        await _divide(connection, today + BEFORE_DAYS)
    dropped = await _drop_old(connection, state["now_ms"] - kept_ms)
    # Where the rest holds very many records, looking for those of a new partition takes longer, and is given up.
    await connection.execute(f"SET statement_timeout = {SOON_MS}")
    await _make_ahead(connection, today, _days_of(kept_ms))
    return True, dropped


async def _divide(connection: asyncpg.Connection[asyncpg.Record], end: int) -> None:
    """Make the table the first partition of another one by its name, up to that day."""
    bound = _bound(end)
    # What a crash has left may end too early.
    await _in_passing(connection.execute, f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {_CHECK}")
    try:
        added = f"ALTER TABLE {TABLE} ADD CONSTRAINT {_CHECK} CHECK (id < '{bound}') NOT VALID"
        await _in_passing(connection.execute, added)
        await connection.execute(f"ALTER TABLE {TABLE} VALIDATE CONSTRAINT {_CHECK}")
        await _in_passing(_put_into_another, connection, bound)
    except BaseException:
        await _in_passing(connection.execute, f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {_CHECK}")
        raise


async def _put_into_another(connection: asyncpg.Connection[asyncpg.Record], bound: str) -> None:
    first = f"{TABLE}_before"
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        indexes = await connection.fetch(_INDEXES, TABLE)
        grants = [row[0] for row in await connection.fetch(_GRANTS, TABLE)]
        await connection.execute(f"ALTER TABLE {TABLE} RENAME TO {first}")
        for name in (f"pk_{TABLE}", *(index["name"] for index in indexes)):
            await connection.execute(f"ALTER INDEX {name} RENAME TO {name}_before")
        statements = (
            f"CREATE TABLE {TABLE} (LIKE {first} INCLUDING DEFAULTS) PARTITION BY RANGE (id)",
            f"ALTER TABLE {TABLE} ADD CONSTRAINT pk_{TABLE} PRIMARY KEY (tenant, id)",
            *(index["made"] for index in indexes),
            f"ALTER TABLE {TABLE} ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ('{bound}')",
            f"ALTER TABLE {first} DROP CONSTRAINT {_CHECK}",
            f"CREATE TABLE {TABLE}_rest PARTITION OF {TABLE} DEFAULT",
            *grants,
        )
        for statement in statements:
            await connection.execute(statement)


async def _make_ahead(connection: asyncpg.Connection[asyncpg.Record], today: int, days: int) -> None:
    end = max((end for _, end in await _ends(connection)), default=0)
    while end < today + AHEAD_DAYS:
        # Of days that are there already records may be in the rest, and a partition of them cannot be made.
        begin = max(end, today + 1)
        end = begin + days
        name = f"{TABLE}_{datetime.fromtimestamp(0, UTC) + timedelta(begin):%Y%m%d}"
        made = f"CREATE TABLE {name} PARTITION OF {TABLE} FOR VALUES FROM ('{_bound(begin)}') TO ('{_bound(end)}')"
        await _in_passing(connection.execute, made)


async def _drop_old(connection: asyncpg.Connection[asyncpg.Record], before_ms: int) -> int:
    """Drop the partitions that end before this time, with no record that was stored after it. They are not taken off
    their days, which go soon after, each as a whole."""
    dropped = 0
    for name, end in await _ends(connection):
        if end * DAY_MS < before_ms:
            dropped += await _in_passing(_drop, connection, name, before_ms)
    return dropped


async def _drop(connection: asyncpg.Connection[asyncpg.Record], name: str, before_ms: int) -> bool:
    async with connection.transaction():
        # So that none comes in between.
        await connection.execute(f"LOCK TABLE ONLY {TABLE} IN ACCESS EXCLUSIVE MODE")
        if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name} WHERE created_at >= $1)", before_ms):  # noqa: S608 - as PostgreSQL quotes it
            return False
        await connection.execute(f"DROP TABLE {name}")
        return True


async def _ends(connection: asyncpg.Connection[asyncpg.Record]) -> Sequence[tuple[str, int]]:
    """The partitions by name, and the day on which each ends, in days since 1970; without the rest."""
    found = await connection.fetch(_ENDS, TABLE)
    return [(row["name"], int(row["end"], 16) // (DAY_MS * 1_000_000)) for row in found if row["end"]]


async def _in_passing(change: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs) -> T:
    """Make a change that locks the table, once nobody is in its way: whoever comes meanwhile waits no longer than
    `LOCKED_MS`."""
    for _ in range(TRIES - 1):
        try:
            return await change(*arguments, **options)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(PAUSE_SECONDS)
    return await change(*arguments, **options)


def _days_of(kept_ms: int) -> int:
    """Days of one partition."""
    return max(1, kept_ms // DAY_MS // SHARE)


def _bound(day: int) -> str:
    """Beginning of the ids of a day, as `Ledger` makes them."""
    return f"use_{day * DAY_MS * 1_000_000:016x}"

"""Search: an index of the words of all summaries. It is written with them, and cascades drop its rows with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, String, Text, bindparam, case, cast, func, literal_column, select, table, tuple_
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import insert_into
from app.store.pages import Order, Page, read_page
from app.store.tables import summary_chunks, summary_words
from app.store.words import may_go_on, terms

_KEY = (summary_chunks.c.tenant, summary_chunks.c.id)
_SEARCHED = (summary_chunks.c.text, summary_chunks.c.exact_values, summary_chunks.c.rules)
_SEARCH = table("summary_search")
"""SQLite's own index of `summary_words`, kept by triggers."""


@dataclass(frozen=True, slots=True)
class Unindexed:
    """A part of all summaries, in order, and which of them no search finds yet."""

    missing: Sequence[tuple[str, str, str]]
    """Tenant, id and all the text that it is found by."""
    last: tuple[str, str] | None
    """Where the next part begins; None at the end."""


def searched(text: str, values: Sequence[str], rules: Sequence[str]) -> str:
    """All the text that a summary is found by."""
    return "\n".join((text, *values, *rules))


async def index_summaries(connection: AsyncConnection, summaries: Sequence[tuple[str, str, Sequence[str]]]) -> None:
    """Needs a transaction; doing it twice is doing it once. Each is a tenant, an id and the words of the text."""
    is_postgresql = connection.dialect.name == "postgresql"
    words = (
        func.array_to_tsvector(bindparam("terms", type_=ARRAY(Text)))
        if is_postgresql
        else bindparam("terms", type_=Text)
    )
    found = select(*_KEY, summary_chunks.c.created_at, words).where(
        summary_chunks.c.tenant == bindparam("of_tenant"), summary_chunks.c.id == bindparam("of_id")
    )
    statement = insert_into(connection, summary_words).from_select(["tenant", "id", "created_at", "words"], found)
    rows = [(tenant, id_, terms(tenant, words)) for tenant, id_, words in summaries]
    await connection.execute(
        statement.on_conflict_do_nothing(),
        [
            {"of_tenant": tenant, "of_id": id_, "terms": held if is_postgresql else " ".join(held)}
            for tenant, id_, held in sorted(rows)
        ],
    )


async def find_summaries(
    connection: AsyncConnection, tenant: str, words: Sequence[str], *, limit: int, after: str | None, order: Order
) -> Page[str]:
    """The ids of the tenant's summaries that hold every word, or one that begins with it."""
    holds = _holds_on_postgresql if connection.dialect.name == "postgresql" else _holds_on_sqlite
    wanted = list(zip(terms(tenant, words), map(may_go_on, words), strict=True))
    # Not planned together: PostgreSQL would go through all that the tenant has.
    found = select(summary_words.c.tenant, summary_words.c.id, summary_words.c.created_at).where(holds(wanted))
    held = found.cte("held").prefix_with("MATERIALIZED", dialect="postgresql")
    rows = select(held.c.id, held.c.created_at).where(held.c.tenant == tenant)
    return await read_page(connection, held, rows, lambda row: str(row.id), limit=limit, after=after, order=order)


async def find_unindexed(connection: AsyncConnection, after: tuple[str, str] | None, most: int) -> Unindexed:
    """Summaries of an earlier release, or of a replica that still is one."""
    is_missing = summary_words.c.number.is_(None)
    some = (
        select(
            *_KEY, is_missing.label("is_missing"), *(case((is_missing, each)).label(each.name) for each in _SEARCHED)
        )
        .outerjoin(
            summary_words,
            (summary_words.c.tenant == summary_chunks.c.tenant) & (summary_words.c.id == summary_chunks.c.id),
        )
        .order_by(*_KEY)
        .limit(most)
    )
    if after is not None:
        some = some.where(tuple_(*_KEY) > tuple_(*after))
    rows = (await connection.execute(some)).all()
    last = (rows[-1].tenant, rows[-1].id) if len(rows) == most else None
    missing = [row for row in rows if row.is_missing]
    return Unindexed([(row.tenant, row.id, searched(row.text, row.exact_values, row.rules)) for row in missing], last)


def _holds_on_postgresql(wanted: Sequence[tuple[str, bool]]) -> ColumnElement[bool]:
    query = " & ".join(f"{term}:*" if goes_on else term for term, goes_on in wanted)
    return summary_words.c.words.bool_op("@@")(cast(bindparam("query", query, type_=String), TSQUERY))


def _holds_on_sqlite(wanted: Sequence[tuple[str, bool]]) -> ColumnElement[bool]:
    query = " AND ".join(f'"{term}" *' if goes_on else f'"{term}"' for term, goes_on in wanted)
    matches: ColumnElement[bool] = literal_column("summary_search").bool_op("MATCH")(bindparam("query", query))
    rowid: ColumnElement[int] = literal_column("rowid")
    return summary_words.c.number.in_(select(rowid).select_from(_SEARCH).where(matches))

"""Search: an index of the words of all rows of a table. It is written with them, and cascades drop its rows with
theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    table,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import insert_into
from app.store.pages import Page, Paging, read_page
from app.store.words import may_go_on, terms

_ROWID: ColumnElement[int] = literal_column("rowid")
Indexed = tuple[str, str, Sequence[str]]
"""A tenant, an id and the words that are to find it."""


class WordIndex(Struct, frozen=True):
    of: Table
    """Table of what is found: it has a tenant, an id and the time of storing."""
    words: Table
    search: str
    """SQLite's own index of the words, kept by triggers."""

    async def add(self, connection: AsyncConnection, found_by: Sequence[Indexed]) -> None:
        """Needs a transaction; doing it twice is doing it once."""
        await self._write(connection, [(tenant, id_, terms(tenant, words)) for tenant, id_, words in found_by])

    async def _write(self, connection: AsyncConnection, held: Sequence[Indexed]) -> None:
        is_postgresql, of = connection.dialect.name == "postgresql", self.of.c
        words = (
            func.array_to_tsvector(bindparam("terms", type_=ARRAY(Text)))
            if is_postgresql
            else bindparam("terms", type_=Text)
        )
        rows = select(of.tenant, of.id, of.created_at, words).where(
            of.tenant == bindparam("of_tenant"), of.id == bindparam("of_id")
        )
        statement = insert_into(connection, self.words).from_select(["tenant", "id", "created_at", "words"], rows)
        await connection.execute(
            statement.on_conflict_do_nothing(),
            [
                {"of_tenant": tenant, "of_id": id_, "terms": kept if is_postgresql else " ".join(kept)}
                for tenant, id_, kept in sorted(held)
            ],
        )

    def holding(self, connection: AsyncConnection, wanted: Sequence[tuple[str, bool]]) -> Select[Any]:
        """The rows with every one of these terms, or, where that is allowed, one that begins with it."""
        of = self.words.c
        if connection.dialect.name == "postgresql":
            query = " & ".join(f"{term}:*" if goes_on else term for term, goes_on in wanted)
            holds = of.words.bool_op("@@")(cast(bindparam(None, query, type_=String), TSQUERY))
        else:
            holds = of.number.in_(self._matching(wanted))
        return select(of.tenant, of.id, of.created_at).where(holds)

    def latest(self, connection: AsyncConnection, wanted: Sequence[tuple[str, bool]], most: int) -> Select[Any]:
        """Tenant and id of `holding`, those that were stored last."""
        of = self.words.c
        if connection.dialect.name == "postgresql":
            held = self.holding(connection, wanted).order_by(of.number.desc()).limit(most)
            return select(held.subquery())
        # SQLite's own index gives them in order, and goes no further than it has to.
        found = self._matching(wanted).order_by(_ROWID.desc()).limit(most)
        return select(of.tenant, of.id).where(of.number.in_(found))

    def _matching(self, wanted: Sequence[tuple[str, bool]]) -> Select[int]:
        """The numbers of the rows in SQLite's own index."""
        query = " AND ".join(f'"{term}" *' if goes_on else f'"{term}"' for term, goes_on in wanted)
        matches = literal_column(self.search).bool_op("MATCH")(bindparam(None, query))
        return select(_ROWID).select_from(table(self.search)).where(matches)


def wanted_terms(tenant: str, words: Sequence[str]) -> list[tuple[str, bool]]:
    """The terms of words that are looked for, each with whether it may be the beginning of a longer one."""
    return list(zip(terms(tenant, words), map(may_go_on, words), strict=True))


async def find_words(
    connection: AsyncConnection, indexes: Sequence[WordIndex], tenant: str, words: Sequence[str], paging: Paging
) -> Page[str]:
    """The ids of the tenant's rows that hold every word, or one that begins with it. Of several tables together."""
    wanted = wanted_terms(tenant, words)
    # Not planned together: PostgreSQL would go through all that the tenant has.
    found = [index.holding(connection, wanted) for index in indexes]
    held = (union_all(*found) if len(found) > 1 else found[0]).cte("held")
    held = held.prefix_with("MATERIALIZED", dialect="postgresql")
    rows = select(held.c.id, held.c.created_at).where(held.c.tenant == tenant)
    return await read_page(connection, held, rows, lambda row: str(row.id), paging)

"""The index of all summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import case, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import summary_chunks, summary_words
from app.store.word_index import WordIndex

SUMMARIES = WordIndex(summary_chunks, summary_words, "summary_search")
_KEY = (summary_chunks.c.tenant, summary_chunks.c.id)


@dataclass(frozen=True, slots=True)
class Unindexed:
    """A part of all summaries, in order, and which of them no search finds yet."""

    missing: Sequence[tuple[str, str, str]]
    """Tenant, id and text."""
    last: tuple[str, str] | None
    """Where the next part begins; None at the end."""


async def find_unindexed(connection: AsyncConnection, after: tuple[str, str] | None, most: int) -> Unindexed:
    """Summaries of an earlier release, or of a replica that still is one."""
    is_missing = summary_words.c.number.is_(None)
    some = (
        select(*_KEY, is_missing.label("is_missing"), case((is_missing, summary_chunks.c.text)).label("text"))
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
    return Unindexed([(row.tenant, row.id, row.text) for row in rows if row.is_missing], last)

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
_SEARCHED = (summary_chunks.c.text, summary_chunks.c.exact_values, summary_chunks.c.rules)


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


async def find_unindexed(connection: AsyncConnection, after: tuple[str, str] | None, most: int) -> Unindexed:
    """Summaries of an earlier release, or of a replica that still is one."""
    is_missing = summary_words.c.number.is_(None) & summary_chunks.c.deactivated_at.is_(None)
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

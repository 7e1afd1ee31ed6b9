"""The index of all summaries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import summary_chunks, summary_words
from app.store.word_index import Indexed, WordIndex
from app.store.words import words_in

SUMMARIES = WordIndex(summary_chunks, summary_words, "summary_search")
Key = tuple[str, str]
"""Tenant and id of a summary."""

_KEY = (summary_chunks.c.tenant, summary_chunks.c.id)
_LOCK = (0x57E0, 0x0002)  # Beside that of `migrations`.


class Busy(Exception):
    """Another replica indexes summaries."""


def searched(text: str, values: Sequence[str], rules: Sequence[str]) -> str:
    """The text by which a summary is found."""
    return "\n".join((text, *values, *rules))


async def index_some(connection: AsyncConnection, after: Key | None, most: int) -> tuple[Key | None, int]:
    """Index those of the `most` summaries behind `after` that no search finds: an earlier release stored them, or a
    replica that still is one. Where the next ones begin, None at the end; and how many were indexed.

    Needs a transaction; raises `Busy`.
    """
    if connection.dialect.name == "postgresql" and not await connection.scalar(
        select(func.pg_try_advisory_xact_lock(*_LOCK))
    ):
        raise Busy
    page = select(*_KEY).order_by(*_KEY).limit(most)
    if after is not None:
        page = page.where(tuple_(*_KEY) > tuple_(*after))
    keys: list[Key] = [(tenant, id_) for tenant, id_ in await connection.execute(page)]
    # By these keys, not as a join of the two tables: for that PostgreSQL reads all words for each page.
    indexed = select(summary_words.c.tenant, summary_words.c.id).where(
        tuple_(summary_words.c.tenant, summary_words.c.id).in_(keys)
    )
    missing = set(keys) - {(tenant, id_) for tenant, id_ in await connection.execute(indexed)}
    if missing:
        texts = select(*_KEY, summary_chunks.c.text, summary_chunks.c.exact_values, summary_chunks.c.rules).where(
            tuple_(*_KEY).in_(missing), summary_chunks.c.deactivated_at.is_(None)
        )
        rows = (await connection.execute(texts)).all()
        found = [(row.tenant, row.id, searched(row.text, row.exact_values, row.rules)) for row in rows]
        if found:
            await SUMMARIES.add(connection, await asyncio.to_thread(_words_of, found))
        missing = {(tenant, id_) for tenant, id_, _ in found}
    return keys[-1] if len(keys) == most else None, len(missing)


def _words_of(summaries: Sequence[tuple[str, str, str]]) -> list[Indexed]:
    return [(tenant, id_, words_in(text)) for tenant, id_, text in summaries]

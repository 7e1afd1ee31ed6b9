"""Search over summaries and messages, of all conversations of a tenant, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.view.chunks import SummaryChunk
from app.store.chunks import chunks_named
from app.store.message_rows import MESSAGES, StoredMessage, messages_named, sizes_of, within_size
from app.store.pages import Page, Paging
from app.store.summary_index import SUMMARIES
from app.store.word_index import find_words

Searched = Literal["summaries", "messages", "all"]
_INDEXES = {"summaries": (SUMMARIES,), "messages": (MESSAGES,), "all": (SUMMARIES, MESSAGES)}


async def search_texts(
    connection: AsyncConnection, tenant: str, words: Sequence[str], among: Searched, paging: Paging
) -> Page[SummaryChunk | StoredMessage]:
    """A page of what holds every word, or one that begins with it: see `words`. Raises UnknownCursor if `after` is none
    of it."""
    found = await find_words(connection, _INDEXES[among], tenant, words, paging)
    sizes = await sizes_of(connection, tenant, found.data)
    page = within_size(Page(sizes, found.first_id, found.last_id, found.has_more))
    named: dict[str, SummaryChunk | StoredMessage] = dict(await messages_named(connection, tenant, page.data))
    named |= {chunk.id: chunk for chunk in await chunks_named(connection, tenant, page.data)}
    return Page([named[id_] for id_ in page.data if id_ in named], page.first_id, page.last_id, page.has_more)

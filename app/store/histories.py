"""Histories: the messages of each conversation's latest request, as the client sent them, in one compressed row.

A request resends its whole history, so only the latest history is stored: a request of another branch replaces the
earlier branch's history. A history is written after the answer, at most every five seconds for each conversation. The
conversation's row holds the digest of its latest request, and a replica writes only the history with this digest. So an
older history never replaces a newer one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.identity import DIGEST_BYTES, title_of
from app.conversation.messages import Message
from app.conversation.secrets import without_secrets
from app.store.tables import conversations, histories, insert_into, is_among, now_ms, owned

ZLIB_LEVEL = 3


@dataclass(frozen=True, eq=False)
class LatestHistory:
    """The history of a conversation's latest request, before it is stored."""

    tenant: str
    conversation_id: str
    format: str
    leading: Sequence[Message]
    """Leading instructions; `messages` are the messages after them."""
    messages: Sequence[Message]
    alone: Callable[[bytes], bytes]
    """Function that turns a raw message into JSON that can be read without the rest of the request."""
    digests: Sequence[bytes]
    """Digests of the history up to and including each of `messages`."""
    tokens: Sequence[int]
    """Estimated tokens of each message: of `leading`, then of `messages`."""

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.conversation_id

    @cached_property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(len(message.raw) for message in (*self.leading, *self.messages))

    @cached_property
    def row(self) -> dict[str, Any]:
        """Values of the table's row, without secrets. The first access compresses the messages, so use a thread."""
        leading_first = (*self.leading, *self.messages)
        sent = (self.alone(message.raw).decode("utf-8", "replace") for message in leading_first)
        kept = [without_secrets(each).encode("utf-8", "replace") for each in sent]
        sizes = msgspec.json.encode(_Sizes(list(self.tokens), list(map(len, kept))))
        return {
            "tenant": self.tenant,
            "conversation_id": self.conversation_id,
            "format": self.format,
            "instructions": len(self.leading),
            "title": without_secrets(title_of(self.messages)),
            "head": self.digests[-1],
            "digests": b"".join(self.digests),
            "content": zlib.compress(b"\n".join((sizes, b"".join(kept))), ZLIB_LEVEL),
        }


class StoredMessage(Struct, frozen=True):
    index: int
    """Position of the message: 0 for the first message after the leading instructions, -1 for the last instruction."""
    format: str
    sent: str
    """JSON of the message as the client sent it, without secrets."""
    tokens: int


class StoredHistory(Struct, frozen=True):
    format: str
    messages: Sequence[StoredMessage]
    """All messages, leading instructions first."""
    head: bytes | None
    """Digest of the whole history; None for a history from release 0.1 without a known digest."""
    digests: frozenset[bytes]
    """Digests of the history up to and including each message after the leading instructions. A history from release
    0.1 has only the last digest, or none."""
    is_latest: bool
    """Whether this is the history of the conversation's latest request."""


class _Sizes(Struct):
    """First line of the compressed content, as JSON. The messages follow, without separators."""

    tokens: list[int]
    bytes: list[int]


async def write_histories(connection: AsyncConnection, unwritten: Sequence[LatestHistory]) -> None:
    """Store each history, unless its conversation was deleted or has a later request. Lock the conversation's row until
    the transaction ends. Needs a transaction."""
    for history in sorted(unwritten, key=lambda history: history.key):
        own = owned(conversations, history.tenant, id=history.conversation_id, head=history.digests[-1])
        if (await connection.execute(sa.select(conversations.c.id).where(own).with_for_update())).first() is None:
            continue
        added = insert_into(connection, histories).values(**history.row, updated_at=now_ms())
        changed = {column.name: added.excluded[column.name] for column in histories.c if not column.primary_key}
        await connection.execute(added.on_conflict_do_update(index_elements=list(histories.primary_key), set_=changed))


async def read_history(connection: AsyncConnection, tenant: str, conversation_id: str) -> StoredHistory | None:
    own = owned(histories, tenant, conversation_id=conversation_id)
    joined = histories.join(
        conversations,
        (conversations.c.tenant == histories.c.tenant) & (conversations.c.id == histories.c.conversation_id),
    )
    is_latest = (conversations.c.head == histories.c.head).label("is_latest")
    row = (await connection.execute(sa.select(histories, is_latest).select_from(joined).where(own))).first()
    return None if row is None else await asyncio.to_thread(_stored, row)


async def find_titles(connection: AsyncConnection, tenant: str, conversation_ids: Sequence[str]) -> dict[str, str]:
    among = owned(histories, tenant), is_among(connection, histories.c.conversation_id, conversation_ids)
    rows = await connection.execute(sa.select(histories.c.conversation_id, histories.c.title).where(*among))
    return {row.conversation_id: row.title for row in rows if row.title}


def _stored(row: sa.Row[Any]) -> StoredHistory:
    first_line, _, content = zlib.decompress(row.content).partition(b"\n")
    sizes = msgspec.json.decode(first_line, type=_Sizes)
    messages, start = list[StoredMessage](), 0
    for index, (tokens, size) in enumerate(zip(sizes.tokens, sizes.bytes, strict=True), -row.instructions):
        messages.append(StoredMessage(index, row.format, content[start : start + size].decode(), tokens))
        start += size
    ends = range(0, len(row.digests), DIGEST_BYTES)
    digests = frozenset(row.digests[start : start + DIGEST_BYTES] for start in ends)
    return StoredHistory(row.format, messages, row.head, digests, bool(row.is_latest))

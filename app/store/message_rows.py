"""Messages as they were sent: written once, never changed, read as pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from sqlalchemy import CTE, Row, ScalarSelect, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.history.messages import Kind
from app.core.view.chunks import SummaryChunk
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.pages import Page, Paging, read_page
from app.store.rows import members, owned, rows_of
from app.store.tables import conversations, messages
from app.store.usage_reports import UsageSums, sums_of_requests

MOST_PAGE_CHARACTERS = 8 << 20
"""Characters of a page's messages together, the first one aside: a message may hold a picture."""
_IN_ORDER = ("created_at", "position", "id")
"""A message is never stored before the one it follows, so that this is the order in which they were said."""


class KeptMessage(Struct, frozen=True):
    """A message at its place in the history of a conversation."""

    id: str
    conversation_id: str
    previous_id: str | None
    """Id of the message it follows; None for the first one."""
    position: int
    kind: str
    role: str
    format: str
    sent: str
    """JSON of the message, letter by letter."""
    tokens: int
    request_id: str
    """Id of the request that brought it."""


class MessageRow(KeptMessage, frozen=True):
    """A message that is to be stored."""

    tenant: str


class StoredMessage(KeptMessage, frozen=True):
    """A message as it is stored."""

    created_at: datetime


class MessagePage(Struct, frozen=True):
    """Part of a conversation's messages."""

    page: Page[StoredMessage]
    latest: frozenset[str]
    """Ids of those that stand in the history of the latest request, the leading instructions aside."""
    usage: Mapping[str, UsageSums]
    """Usage of the requests that brought the messages, by request id, as far as the ledger has them."""


def message_id(conversation_id: str, place: bytes) -> str:
    """Id of a message by its place in a history, which is the digest of all up to it: every replica says the same."""
    mac = blake2b(place, digest_size=12, person=b"steno-message")
    mac.update(conversation_id.encode("utf-8", "surrogatepass"))
    return f"msg_{mac.hexdigest()}"


async def write_messages(connection: AsyncConnection, rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Store messages, and return those that cannot be stored, as their conversation is gone, or the message they
    follow: what was deleted does not come back in parts.

    Needs a transaction; doing it twice is doing it once. Each comes after the one that it follows.
    """
    owners, held = await _owners(connection, rows), await _followed(connection, rows)
    written: dict[tuple[str, str], MessageRow] = {}
    left = []
    for row in rows:
        follows = row.previous_id is None or (row.tenant, row.previous_id) in held
        if follows and (row.tenant, row.conversation_id) in owners:
            held.add((row.tenant, row.id))
            written[row.tenant, row.id] = row
        else:
            left.append(row)
    if written:
        # One time for all, and in order of their keys, so that two replicas cannot deadlock.
        now = await connection.scalar(select(now_ms()))
        ordered = [written[key] for key in sorted(written)]
        await connection.execute(
            insert_into(connection, messages).on_conflict_do_nothing(),
            [{**_columns(row), "created_at": now} for row in ordered],
        )
    return left


async def read_messages(connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging) -> MessagePage:
    """A page of the conversation's messages; empty where nothing is kept. Raises UnknownCursor if `after` is none of
    its messages."""
    own = owned(messages, tenant, conversation_id=conversation_id)
    rows = select(*(messages.c[name] for name in _IN_ORDER), _size()).where(own)
    sizes = await read_page(connection, messages, rows, _sized, paging, _IN_ORDER)
    page = await page_of(connection, tenant, sizes)
    latest = await _latest(connection, tenant, conversation_id, page.data)
    usage = await _usage(connection, tenant, conversation_id, {message.request_id for message in page.data})
    return MessagePage(page, latest, usage)


async def read_stretch(
    connection: AsyncConnection, tenant: str, conversation_id: str, first: int, last: int
) -> list[StoredMessage]:
    """The history of the latest request from one position to another, both inclusive, as far as it was kept; fewer
    where they are large. Of leading instructions, whose positions are negative, the latest that came."""
    found: list[tuple[str, int]] = []
    if first < 0:
        found += await _path(connection, tenant, _latest_instruction(tenant, conversation_id), first, min(last, -1))
    if last >= 0:
        found += await _path(connection, tenant, _last_message(tenant, conversation_id), max(first, 0), last)
    return await _within_size(connection, tenant, found)


async def read_history(
    connection: AsyncConnection, tenant: str, conversation_id: str, first: int, last: int
) -> MessagePage:
    """`read_stretch` with what its messages' requests took, as a page."""
    found = await read_stretch(connection, tenant, conversation_id, first, last)
    ids = [message.id for message in found]
    usage = await _usage(connection, tenant, conversation_id, {message.request_id for message in found})
    page = Page(found, ids[0] if ids else None, ids[-1] if ids else None, has_more=False)
    return MessagePage(page, frozenset(ids), usage)


async def read_sources(connection: AsyncConnection, tenant: str, chunk: SummaryChunk) -> list[StoredMessage]:
    """The messages that a summary stands for, as far as they were kept; fewer where they are large."""
    last = message_id(chunk.conversation_id, chunk.through_digest)
    return await _within_size(
        connection, tenant, await _path(connection, tenant, last, chunk.first_index, chunk.last_index)
    )


async def _within_size(
    connection: AsyncConnection, tenant: str, sizes: Sequence[tuple[str, int]]
) -> list[StoredMessage]:
    page = await page_of(connection, tenant, Page(sizes, None, None, has_more=False))
    return list(page.data)


class KeptHistory(Struct, frozen=True):
    """The history of a conversation's latest request, as far as it is kept."""

    format: str
    sent: Sequence[str]
    """The JSON of each message, what leads as instructions first."""
    ids: Sequence[str]
    """The id of each message, in the same order."""


async def find_history(
    connection: AsyncConnection, tenant: str, conversation_id: str, most_messages: int, most_characters: int
) -> KeptHistory | None:
    """The kept history of the latest request; None where nothing is kept of it, or more than that."""
    own = owned(messages, tenant, conversation_id=conversation_id)
    last = await connection.scalar(select(_last_message(tenant, conversation_id)))
    leading = await connection.scalar(select(_latest_instruction(tenant, conversation_id)))
    step = select(messages.c.id, messages.c.previous_id, messages.c.position, _size()).where(own)
    path = step.where(messages.c.id.in_([last or "", leading or ""])).cte("path", recursive=True)
    path = path.union_all(step.join(path, messages.c.id == path.c.previous_id))
    found = (await connection.execute(select(path).order_by(path.c.position).limit(most_messages + 1))).all()
    if not found or found[-1].id != last:
        return None
    if len(found) > most_messages or sum(row.size for row in found) > most_characters:
        return None
    ids = [row.id for row in found]
    kept = await messages_named(connection, tenant, ids)
    return KeptHistory(kept[last].format, [kept[id_].sent for id_ in ids], ids)


async def find_questions(
    connection: AsyncConnection, tenant: str, conversation_ids: Sequence[str], number: int, most_characters: int
) -> dict[str, StoredMessage]:
    """The user's message of that number, from 0, of each conversation. Longer ones are missing."""
    of_user = select(messages.c.id).where(
        messages.c.tenant == conversations.c.tenant,
        messages.c.conversation_id == conversations.c.id,
        messages.c.kind == Kind.USER.name.lower(),
    )
    in_order = of_user.order_by(*(messages.c[name] for name in _IN_ORDER)).offset(number).limit(1)
    wanted = select(in_order.scalar_subquery()).where(owned(conversations, tenant, id=list(conversation_ids)))
    rows = await connection.execute(
        select(messages).where(messages.c.tenant == tenant, messages.c.id.in_(wanted), _size() <= most_characters)
    )
    return {row.conversation_id: _stored(row) for row in rows}


async def messages_named(connection: AsyncConnection, tenant: str, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """The tenant's messages with these ids, by id; missing ones are left out."""
    rows = await rows_of(connection, ids, lambda batch: select(messages).where(owned(messages, tenant, id=batch)))
    return {row.id: _stored(row) for row in rows}


def within_size(page: Page[tuple[str, int]]) -> Page[str]:
    """The ids of a page, by id and size, as far as one answer may hold them."""
    shown: list[str] = []
    held = 0
    for id_, size in page.data:
        held += size
        if shown and held > MOST_PAGE_CHARACTERS:
            break
        shown.append(id_)
    is_cut = len(shown) < len(page.data)
    return Page(shown, page.first_id, shown[-1] if shown else None, page.has_more or is_cut)


async def page_of(connection: AsyncConnection, tenant: str, sizes: Page[tuple[str, int]]) -> Page[StoredMessage]:
    page = within_size(sizes)
    found = await messages_named(connection, tenant, page.data)
    return Page([found[id_] for id_ in page.data if id_ in found], page.first_id, page.last_id, page.has_more)


async def _owners(connection: AsyncConnection, rows: Iterable[MessageRow]) -> set[tuple[str, str]]:
    """Lock those of the rows' conversations that are there, and will be until the transaction ends. Nobody else writes
    messages of theirs meanwhile: what follows a message is never dated before it."""
    key = (conversations.c.tenant, conversations.c.id)
    there = select(*key).order_by(*key).with_for_update(key_share=True)
    wanted = sorted({(row.tenant, row.conversation_id) for row in rows})
    found = await rows_of(connection, wanted, lambda batch: there.where(tuple_(*key).in_(batch)))
    return {(row.tenant, row.id) for row in found}


async def _followed(connection: AsyncConnection, rows: Sequence[MessageRow]) -> set[tuple[str, str]]:
    """The messages before these that are stored already."""
    key, own = (messages.c.tenant, messages.c.id), {(row.tenant, row.id) for row in rows}
    before = {(row.tenant, row.previous_id) for row in rows if row.previous_id is not None} - own
    found = await rows_of(connection, sorted(before), lambda batch: select(*key).where(tuple_(*key).in_(batch)))
    return {(row.tenant, row.id) for row in found}


async def _latest(
    connection: AsyncConnection, tenant: str, conversation_id: str, shown: Sequence[StoredMessage]
) -> frozenset[str]:
    """Ids of the shown messages that stand in the history of the latest request."""
    positions = [message.position for message in shown if message.position >= 0]
    if not positions:
        return frozenset()
    path = _path_back(tenant, _last_message(tenant, conversation_id), min(positions))
    found = await connection.execute(select(path.c.id).where(path.c.position <= max(positions)))
    return frozenset(found.scalars()) & {message.id for message in shown}


def _last_message(tenant: str, conversation_id: str) -> ScalarSelect[str]:
    """Id of the last message in the latest request's history."""
    own = owned(conversations, tenant, id=conversation_id)
    return select(conversations.c.last_message).where(own).scalar_subquery()


def _latest_instruction(tenant: str, conversation_id: str) -> ScalarSelect[str]:
    """The last of the instructions that led the latest request which brought any anew: which of them led the latest one
    of all nobody notes, as no summary depends on them."""
    own = owned(messages, tenant, conversation_id=conversation_id, position=-1)
    newest = select(messages.c.id).where(own).order_by(messages.c.created_at.desc(), messages.c.id.desc())
    return newest.limit(1).scalar_subquery()


def _path_back(tenant: str, start: ScalarSelect[str] | str, first: int) -> CTE:
    """A message and those before it, as far as the position `first`."""
    step = select(messages.c.id, messages.c.previous_id, messages.c.position).where(messages.c.tenant == tenant)
    path = step.where(messages.c.id == start).cte("path", recursive=True)
    return path.union_all(step.join(path, messages.c.id == path.c.previous_id).where(path.c.position > first))


async def _path(
    connection: AsyncConnection, tenant: str, start: ScalarSelect[str] | str, first: int, last: int
) -> list[tuple[str, int]]:
    """The ids of these places in order, with the sizes of their messages."""
    path = _path_back(tenant, start, first)
    within = (path.c.position.between(first, last), messages.c.tenant == tenant)
    places = select(messages.c.id, _size()).join(path, messages.c.id == path.c.id).where(*within)
    return [_sized(row) for row in await connection.execute(places.order_by(path.c.position))]


async def _usage(
    connection: AsyncConnection, tenant: str, conversation_id: str, requests: set[str]
) -> Mapping[str, UsageSums]:
    return await sums_of_requests(connection, tenant, conversation_id, sorted(requests)) if requests else {}


def _size() -> Any:
    return func.length(messages.c.sent).label("size")


def _sized(row: Row[Any]) -> tuple[str, int]:
    return row.id, row.size


_COLUMNS = tuple(column.name for column in messages.columns if column.name != "created_at")


def _columns(row: MessageRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _COLUMNS}


def _stored(row: Row[Any]) -> StoredMessage:
    return StoredMessage(**members(row, "tenant"))

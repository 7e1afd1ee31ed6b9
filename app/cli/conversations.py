"""Stored conversations of every tenant, straight from the database, for `steno conversations`.

Theory: the operator has the database, and needs neither a running Steno nor anybody's key for it; a caller has REST. A
deletion is what one by another replica is: a Steno that runs meanwhile forgets the rest when it next looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from app.api import messages
from app.cli.terminal import on_terminal, print_json, say, say_row
from app.formats.registry import FORMATS
from app.main import open_store
from app.settings import Settings
from app.store import Store, StoredConversation, StoreUnavailable
from app.store.chunks import read_summaries
from app.store.conversations import find_conversation, find_pins, read_conversations, read_tenants
from app.store.tables import Paging
from app.store.usage import UsagePage, read_records

PAGE = 100
TENANT_SHOWN = 8
"""Characters of a tenant's digest that tell it from others, as a rule."""


class NotFound(Exception):
    """No such conversation exists, or several do."""


class Found(Struct, frozen=True):
    tenant: str
    conversation: StoredConversation


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Store]:
    """Open the store, which has to exist and be of this release. Raises `StoreUnavailable`."""
    store = open_store(settings)
    try:
        check = await store.check()
        if check.is_new:
            raise StoreUnavailable(f"There is no database {check.place} yet. `steno migrate` makes it.")
        if not check.reachable:
            raise StoreUnavailable(f"The database {check.place} cannot be used: {check.reason}.")
        if check.current_revision != check.head_revision:
            raise StoreUnavailable(f"The database {check.place} has another schema than this release: `steno migrate`.")
        await store.start()
        yield store
    finally:
        await store.close()


async def latest(store: Store, limit: int, tenant: str) -> list[Found]:
    """Return the latest conversations of the tenants whose id begins with `tenant`."""
    found: list[Found] = []
    for seen in await store.rest(read_tenants):
        if seen.id.startswith(tenant):
            page = await store.rest(read_conversations, seen.id, Paging(limit, order="desc"))
            found += (Found(seen.id, each) for each in page.data)
    return sorted(found, key=lambda each: each.conversation.updated_at, reverse=True)[:limit]


async def the_one(store: Store, conversation_id: str, tenant: str) -> Found:
    """Return the only conversation with this id, of the tenants whose id begins with `tenant`. Raises `NotFound`."""
    found = []
    for seen in await store.rest(read_tenants):
        known = await store.rest(find_conversation, seen.id, conversation_id) if seen.id.startswith(tenant) else None
        found += [Found(seen.id, known)] if known else []
    if not found:
        raise NotFound(f"There is no conversation {conversation_id!r}.")
    if len(found) > 1:
        tenants = ", ".join(each.tenant[:TENANT_SHOWN] for each in found)
        raise NotFound(f"Several tenants have a conversation {conversation_id!r}; name one with --tenant: {tenants}.")
    return found[0]


async def delete(store: Store, conversation_id: str, tenant: str) -> None:
    """Delete a conversation. Raises `NotFound`."""
    found = await the_one(store, conversation_id, tenant)
    await store.delete_conversation(found.tenant, conversation_id)


async def content_of(store: Store, conversation_id: str, tenant: str) -> dict[str, Any]:
    """Return all that is stored of it, as values for JSON; messages only if they were kept. Raises `NotFound`."""
    found = await the_one(store, conversation_id, tenant)
    tenant, known = found.tenant, found.conversation

    every = partial(_all, store, tenant, known.id)
    history = await store.history(tenant, known.id)
    return {
        "tenant": tenant,
        "conversation": _as_json(known),
        "summaries": await every(read_summaries),
        "pins": [msgspec.to_builtins(pin) for pin in await store.rest(find_pins, tenant, known.id)],
        "messages": [msgspec.to_builtins(each) for each in (history.messages if history else ())],
        "usage": await every(read_records),
    }


async def handoff_of(store: Store, conversation_id: str, tenant: str) -> str:
    """Return the document to go on from, with whatever messages were kept. Raises `NotFound`."""
    found = await the_one(store, conversation_id, tenant)
    return await messages.handoff_of(store, FORMATS, found.tenant, found.conversation)


async def _all(
    store: Store, tenant: str, conversation_id: str, query: Callable[..., Awaitable[Any]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        found = await store.rest(query, tenant, conversation_id, Paging(PAGE, after=after))
        page = found.page if isinstance(found, UsagePage) else found
        rows += map(msgspec.to_builtins, page.data)
        if not page.has_more:
            return rows
        after = page.last_id


def show_list(found: Sequence[Found]) -> None:
    """Print three lines for each, with the id whole, to be copied; for other programs a row."""
    if not on_terminal():
        for each in found:
            say_row(_row(each))
        return
    if not found:
        say("No conversation is stored.")
    several = len({each.tenant for each in found}) > 1
    for each in found:
        known = each.conversation
        tokens = f"{known.tokens_before:,} tokens, {known.tokens_before - known.tokens_after:,} saved"
        tenant = f"  tenant {each.tenant[:TENANT_SHOWN]}" if several else ""
        say(known.id, bold=True)
        say(f"    {known.updated_at:%Y-%m-%d %H:%M}  {known.status}, turn {known.turns}, {tokens}")
        say(f"    {known.model}{tenant}")


def _row(found: Found) -> Iterator[object]:
    known = found.conversation
    yield from (known.id, f"{known.updated_at:%Y-%m-%dT%H:%M:%SZ}", known.status, known.turns)
    yield from (known.tokens_before, known.tokens_before - known.tokens_after, known.model, found.tenant)


def list_as_json(found: Sequence[Found]) -> None:
    print_json([{"tenant": each.tenant, **_as_json(each.conversation)} for each in found])


def _as_json(known: StoredConversation) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(known)
    plan = known.plan and msgspec.json.decode(known.plan)
    return content | {"coverage": msgspec.json.decode(known.coverage or b"[]"), "plan": plan}


def one_as_json(content: dict[str, Any]) -> None:
    """Print as JSON what `show_one` shows; `export` has the rest."""
    print_json({name: content[name] for name in ("tenant", "conversation", "summaries")})


def show_one(content: dict[str, Any]) -> None:
    """Print a conversation in words, with its summaries whole."""
    known = content["conversation"]
    before, after = known["tokens_before"], known["tokens_after"]
    rows = {
        "conversation": known["id"],
        "tenant": content["tenant"],
        "model": known["model"],
        "status": f"{known['status']}{f' ({reason})' if (reason := known['reason']) else ''}",
        "turns": f"{known['turns']}, {known['requests']} requests",
        "tokens": f"{before:,} sent, {after:,} forwarded, window {known['window']:,}",
        "last seen": known["updated_at"],
    }
    for name, value in rows.items():
        say(f"{name:<13} {value}")
    for summary in content["summaries"]:
        first, last = summary["first_index"] + 1, summary["last_index"] + 1  # As the summary numbers them.
        place = f"messages {first} to {last}, {summary['tokens']:,} tokens"
        say(f"\n{summary['id']}: {place}", bold=True)
        say(summary["text"])

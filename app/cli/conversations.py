"""`steno conversations`: stored conversations of all tenants, directly from the database.

The operator needs neither a running Steno nor a key; callers use the REST interface. A running Steno notices a
deletion as it notices one by another replica, at its next check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import Struct

from app.cli.command import (
    AsJson,
    Config,
    DatabaseURL,
    commands,
    failing_on,
    print_json,
    say,
    settings_of,
)
from app.settings.checks import open_store
from app.store import Store, StoredConversation, StoreError, StoreUnavailable
from app.store.chunks import read_summaries
from app.store.conversations import find_conversation, find_pins, read_conversations, read_tenants
from app.store.tables import Paging
from app.store.usage import UsagePage, read_records

T = TypeVar("T")

PAGE = 100
TENANT_SHOWN = 8
"""Characters of a tenant's digest that are printed: usually enough to distinguish tenants."""

cli = commands(
    help="List, show, export, hand off or delete stored conversations, of all tenants.", no_args_is_help=True
)


ConversationId = Annotated[str, typer.Argument(metavar="ID", help="The conversation's id.")]
Tenant = Annotated[str, typer.Option(help="Only this tenant; the first characters of its id are enough.")]


@cli.command("list")
def list_conversations(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many, the latest first.")] = 20,
    tenant: Tenant = "",
    config: Config = None,
    database_url: DatabaseURL = None,
    as_json: AsJson = False,
) -> None:
    """List the latest conversations."""
    found = _with_store(config, database_url, lambda store: _latest(store, limit, tenant))
    if as_json:
        print_json([{"tenant": each.tenant, **_as_json(each.conversation)} for each in found])
        return
    if not found:
        say("No conversation is stored.")
    several = len({each.tenant for each in found}) > 1
    for each in found:
        known = each.conversation
        tokens = f"{known.tokens_before:,} tokens, {known.tokens_before - known.tokens_after:,} saved"
        say(known.id, bold=True)
        say(f"    {known.updated_at:%Y-%m-%d %H:%M}  {known.status}, turn {known.turns}, {tokens}")
        say(f"    {known.model}{f'  tenant {each.tenant[:TENANT_SHOWN]}' if several else ''}")


@cli.command("show")
def show_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Show a conversation and its summaries."""
    content = _with_store(config, database_url, lambda store: _content_of(store, conversation_id, tenant))
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
        first, last = summary["first_index"] + 1, summary["last_index"] + 1  # Summaries number messages from 1.
        say(f"\n{summary['id']}: messages {first} to {last}, {summary['tokens']:,} tokens", bold=True)
        say(summary["text"])


@cli.command("export")
def export_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print all that is stored of a conversation, as JSON."""
    print_json(_with_store(config, database_url, lambda store: _content_of(store, conversation_id, tenant)))


@cli.command("handoff")
def hand_off_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print a document in Markdown from which another model, or a person, can go on with a conversation."""

    from app.api.conversations import handoff_of  # noqa: PLC0415 - for this alone

    async def document(store: Store) -> str:
        found = await _the_one(store, conversation_id, tenant)
        return await handoff_of(store, found.tenant, found.conversation)

    typer.echo(_with_store(config, database_url, document), nl=False)


@cli.command("delete")
def delete_conversation(
    conversation_id: ConversationId,
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Delete a conversation with its summaries, messages and usage."""
    if not yes:
        typer.confirm(f"Delete the conversation {conversation_id}?", abort=True)

    async def delete(store: Store) -> None:
        found = await _the_one(store, conversation_id, tenant)
        await store.delete_conversation(found.tenant, conversation_id)

    _with_store(config, database_url, delete)
    typer.echo(f"Deleted {conversation_id}.")


class NotFound(Exception):
    """Raised when no conversation has the id, or several have."""


class Found(Struct, frozen=True):
    tenant: str
    conversation: StoredConversation


def _with_store(config: str | None, database_url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run work on the store and return its result; exit if the store cannot be used or the work raises `NotFound`."""
    settings = settings_of(config, storage={"url": database_url})

    async def run() -> T:
        store = open_store(settings)
        try:
            check = await store.check()
            if check.is_new:
                raise StoreUnavailable(f"There is no database {check.place} yet. `steno migrate` makes it.")
            if not check.reachable:
                raise StoreUnavailable(f"The database {check.place} cannot be used: {check.reason}.")
            if check.current_revision != check.head_revision:
                raise StoreUnavailable(
                    f"The database {check.place} has another schema than this release: `steno migrate`."
                )
            await store.start()
            return await work(store)
        finally:
            await store.close()

    with failing_on(StoreError, NotFound, UnicodeError):
        return asyncio.run(run())


async def _latest(store: Store, limit: int, tenant: str) -> list[Found]:
    """Return the `limit` latest conversations of all tenants whose id begins with `tenant`."""
    found: list[Found] = []
    for seen in await store.rest(read_tenants):
        if seen.id.startswith(tenant):
            page = await store.rest(read_conversations, seen.id, Paging(limit, order="desc"))
            found += (Found(seen.id, each) for each in page.data)
    return sorted(found, key=lambda each: each.conversation.updated_at, reverse=True)[:limit]


async def _the_one(store: Store, conversation_id: str, tenant: str) -> Found:
    """Find a conversation of a tenant whose id begins with `tenant`. Raises `NotFound` for none, or for several."""
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


async def _content_of(store: Store, conversation_id: str, tenant: str) -> dict[str, Any]:
    """Return all stored data of a conversation, as values for JSON. Raises `NotFound`."""
    found = await _the_one(store, conversation_id, tenant)
    key = found.tenant, found.conversation.id

    async def every(query: Callable[..., Awaitable[Any]]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            answer = await store.rest(query, *key, Paging(PAGE, after=after))
            page = answer.page if isinstance(answer, UsagePage) else answer
            rows += map(msgspec.to_builtins, page.data)
            if not page.has_more:
                return rows
            after = page.last_id

    history = await store.history(*key)
    return {
        "tenant": found.tenant,
        "conversation": _as_json(found.conversation),
        "summaries": await every(read_summaries),
        "pins": [msgspec.to_builtins(pin) for pin in await store.rest(find_pins, *key)],
        "messages": [msgspec.to_builtins(each) for each in (history.messages if history else ())],
        "usage": await every(read_records),
    }


def _as_json(known: StoredConversation) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(known)
    plan = known.plan and msgspec.json.decode(known.plan)
    return content | {"coverage": msgspec.json.decode(known.coverage or b"[]"), "plan": plan}

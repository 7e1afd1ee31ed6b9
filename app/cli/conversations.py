"""`steno conversations` and `steno mcp`: stored conversations, for the operator and for a model.

`steno conversations` uses the data of all tenants in the database, without a key or a running Steno. For a running
Steno, a deletion is like a deletion by another replica. `steno mcp` calls the REST API of a running Steno with the
user's key, so a model can read only the user's conversations.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

import httpx2
import msgspec
import typer
from msgspec import Struct

from app.api.mcp import ANSWER_SECONDS, server_of
from app.cli.command import AsJson, Config, DatabaseURL, commands, fail, failing_on, print_json, settings_of
from app.settings.checks import install_command, open_store
from app.store import Store, StoredConversation, StoreError, StoreUnavailable
from app.store.chunks import read_summaries
from app.store.conversations import find_conversation, find_pins, read_conversations, read_tenants
from app.store.schema import NEWEST
from app.store.tables import Paging
from app.store.usage import read_records

T = TypeVar("T")

USUAL_URL = "http://127.0.0.1:8080"
MOST_EXPORTED = 1_000_000
"""Maximum number of summaries, and of usage records, of an exported conversation."""
TENANT_SHOWN = 8
"""Characters of a tenant's digest that are printed: usually enough to distinguish tenants."""

cli = commands()
stored = commands(help="List, export or delete stored conversations, of all tenants.", no_args_is_help=True)
cli.add_typer(stored, name="conversations")


ConversationId = Annotated[str, typer.Argument(metavar="ID", help="The conversation's id.")]
Tenant = Annotated[str, typer.Option(help="Only this tenant; the first characters of its id are enough.")]


@stored.command("list")
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
        typer.echo("No conversation is stored.")
    several = len({each.tenant for each in found}) > 1
    for each in found:
        known = each.conversation
        tokens = f"{known.tokens_before:,} tokens, {known.tokens_before - known.tokens_after:,} saved"
        typer.secho(known.id, bold=True)
        typer.echo(f"    {known.updated_at:%Y-%m-%d %H:%M}  {known.status}, turn {known.turns}, {tokens}")
        typer.echo(f"    {known.model}{f'  tenant {each.tenant[:TENANT_SHOWN]}' if several else ''}")


@stored.command("export")
def export_conversation(
    conversation_id: ConversationId, tenant: Tenant = "", config: Config = None, database_url: DatabaseURL = None
) -> None:
    """Print all that is stored of a conversation, as JSON."""
    print_json(_with_store(config, database_url, lambda store: _content_of(store, conversation_id, tenant)))


@stored.command("delete")
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
    """Raised when no conversation has the id, or conversations of several tenants have it."""


class Found(Struct, frozen=True):
    tenant: str
    conversation: StoredConversation


def _with_store(config: str | None, database_url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run work on the store and return its result; exit if the store cannot be used or the work raises `NotFound`."""
    settings = settings_of(config, storage={"url": database_url})

    async def run() -> T:
        store = open_store(settings)
        try:
            if store.is_new:
                raise StoreUnavailable(f"There is no database {store.place} yet. `steno migrate` makes it.")
            if await store.revision() != NEWEST:
                raise StoreUnavailable(f"The database {store.place} has an earlier schema: `steno migrate`.")
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
    """Return the conversation of the tenant whose id begins with `tenant`. Raises `NotFound` for none or several."""
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
    key, whole = (found.tenant, found.conversation.id), Paging(MOST_EXPORTED)
    history = await store.history(*key)
    used = await store.rest(read_records, *key, whole)
    return {
        "tenant": found.tenant,
        "conversation": _as_json(found.conversation),
        "summaries": msgspec.to_builtins((await store.rest(read_summaries, *key, whole)).data),
        "pins": msgspec.to_builtins(await store.rest(find_pins, *key)),
        "messages": msgspec.to_builtins(history.messages if history else ()),
        "usage": msgspec.to_builtins(used.page.data),
    }


def _as_json(known: StoredConversation) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(known)
    plan = known.plan and msgspec.json.decode(known.plan)
    return content | {"coverage": msgspec.json.decode(known.coverage or b"[]"), "plan": plan}


# For a model


@cli.command()
def mcp(
    url: Annotated[str | None, typer.Option(help="Steno's address; otherwise ANTHROPIC_BASE_URL.")] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable with the key; otherwise Claude Code's.")
    ] = None,
) -> None:
    """Serve stored conversations to a model over MCP, on standard input and output: for a client's settings."""
    try:
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - an extra
    except ImportError:
        fail(f"This needs the extra `mcp`: {install_command('mcp')}.")
    key = None if key_env is None else os.environ.get(key_env, "")
    headers = keys_in(os.environ) if key is None else {"authorization": f"Bearer {key}"}
    base_url = (url or os.environ.get("ANTHROPIC_BASE_URL") or USUAL_URL).rstrip("/").removesuffix("/v1")

    async def serve() -> None:
        client = httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=ANSWER_SECONDS, trust_env=False)
        async with client, stdio_server() as (reading, writing):
            server = server_of(client)
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(serve())


def keys_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the headers in which Claude Code sends its keys."""
    key, token = environment.get("ANTHROPIC_API_KEY"), environment.get("ANTHROPIC_AUTH_TOKEN")
    return ({"x-api-key": key} if key else {}) | ({"authorization": f"Bearer {token}"} if token else {})

"""`steno conversations` and `steno mcp`: stored conversations, for the operator and for a model.

`steno conversations` uses the data of all tenants in the database, without a key or a running Steno. A running Steno
treats deletions by this command like deletions by another replica. `steno mcp` calls the REST API of a running Steno
with the user's key, so a model can read only the user's conversations.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, TypeVar

import httpx2
import typer

from app.api.mcp import ANSWER_SECONDS, server_of
from app.checks import install_command
from app.cli.command import Config, DatabaseURL, fail, failing_on, settings_of
from app.settings.storage import open_store
from app.store import Store, StoredConversation, StoreError, StoreUnavailable
from app.store.conversations import find_conversation, read_conversations, read_tenants
from app.store.schema import NEWEST
from app.store.tables import Paging

T = TypeVar("T")

USUAL_URL = "http://127.0.0.1:8080"
TENANT_SHOWN = 8
"""Number of printed characters of a tenant's digest: usually enough to distinguish tenants."""

cli = typer.Typer(rich_markup_mode="markdown")
stored = typer.Typer(help="List or delete stored conversations, of all tenants.", no_args_is_help=True)
cli.add_typer(stored, name="conversations")

Tenant = Annotated[str, typer.Option(help="Only this tenant; the first characters of its id are enough.")]


@stored.command("list")
def list_conversations(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many, the latest first.")] = 20,
    tenant: Tenant = "",
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """List the latest conversations."""
    found = _with_store(config, database_url, lambda store: _latest(store, limit, tenant))
    if not found:
        typer.echo("No conversation is stored.")
    several = len({owner for owner, _ in found}) > 1
    for owner, known in found:
        tokens = f"{known.tokens_before:,} tokens, {known.tokens_before - known.tokens_after:,} saved"
        typer.secho(known.id, bold=True)
        typer.echo(f"    {known.updated_at:%Y-%m-%d %H:%M}  {known.status}, turn {known.turns}, {tokens}")
        typer.echo(f"    {known.model}{f'  tenant {owner[:TENANT_SHOWN]}' if several else ''}")


@stored.command("delete")
def delete_conversation(
    conversation_id: Annotated[str, typer.Argument(metavar="ID", help="The conversation's id.")],
    tenant: Tenant = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Delete a conversation with its summaries, messages and usage."""
    if not yes:
        typer.confirm(f"Delete the conversation {conversation_id}?", abort=True)

    async def delete(store: Store) -> None:
        await store.delete_conversation(await _owner(store, conversation_id, tenant), conversation_id)

    _with_store(config, database_url, delete)
    typer.echo(f"Deleted {conversation_id}.")


class NotFound(Exception):
    """Raised when no conversation has the id, or conversations of several tenants have it."""


def _with_store(config: str | None, database_url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run work on the store and return its result; exit if the store cannot be used or the work raises `NotFound`."""
    settings = settings_of(config, storage={"url": database_url})

    async def run() -> T:
        store = open_store(settings)
        place = store.database.address.place
        try:
            if store.is_new:
                raise StoreUnavailable(f"There is no database {place} yet. `steno migrate` makes it.")
            if await store.revision() != NEWEST:
                raise StoreUnavailable(f"The database {place} has an earlier schema: `steno migrate`.")
            await store.start()
            return await work(store)
        finally:
            await store.close()

    with failing_on(StoreError, NotFound, UnicodeError):
        return asyncio.run(run())


async def _latest(store: Store, limit: int, tenant: str) -> list[tuple[str, StoredConversation]]:
    """Return the `limit` latest conversations, each with its tenant. `tenant`: beginning of the tenant's id."""
    found: list[tuple[str, StoredConversation]] = []
    for seen in await store.rest(read_tenants):
        if seen.id.startswith(tenant):
            page = await store.rest(read_conversations, seen.id, Paging(limit, order="desc"))
            found += ((seen.id, each) for each in page.data)
    return sorted(found, key=lambda each: each[1].updated_at, reverse=True)[:limit]


async def _owner(store: Store, conversation_id: str, tenant: str) -> str:
    """Return the tenant that has the conversation, of the tenants whose ids begin with `tenant`. Raises `NotFound`."""
    tenants = [seen.id for seen in await store.rest(read_tenants) if seen.id.startswith(tenant)]
    owners = [each for each in tenants if await store.rest(find_conversation, each, conversation_id)]
    if not owners:
        raise NotFound(f"There is no conversation {conversation_id!r}.")
    if len(owners) > 1:
        named = ", ".join(owner[:TENANT_SHOWN] for owner in owners)
        raise NotFound(f"Several tenants have a conversation {conversation_id!r}; name one with --tenant: {named}.")
    return owners[0]


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
    """Return the headers in which Claude Code sends the keys in its `environment`."""
    key, token = environment.get("ANTHROPIC_API_KEY"), environment.get("ANTHROPIC_AUTH_TOKEN")
    return ({"x-api-key": key} if key else {}) | ({"authorization": f"Bearer {token}"} if token else {})

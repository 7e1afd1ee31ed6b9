"""`steno mcp`: Steno's MCP tools over standard input and output, for clients that start MCP servers as processes.

It calls the REST interface of a running Steno with the user's key, so a model can read only the user's conversations.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Annotated

import httpx2
import typer

from app.api.mcp import ANSWER_SECONDS, server_of
from app.cli.command import commands, fail
from app.settings.checks import install_command

USUAL_URL = "http://127.0.0.1:8080"

cli = commands()


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
    """Return the headers with the keys that Claude Code sends."""
    key, token = environment.get("ANTHROPIC_API_KEY"), environment.get("ANTHROPIC_AUTH_TOKEN")
    return ({"x-api-key": key} if key else {}) | ({"authorization": f"Bearer {token}"} if token else {})

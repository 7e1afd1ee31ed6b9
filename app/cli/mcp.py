"""`steno mcp`: the tools of MCP over standard input and output, for clients that start their servers.

It asks the REST interface of a running Steno, with the key of the client that started it: what a model may read is what
its user's key may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2

from app.api.mcp import ANSWER_SECONDS, Reader, server_of
from app.formats.registry import FORMATS

USUAL_URL = "http://127.0.0.1:8080"


def serve(url: str | None, key_variable: str | None, environment: Mapping[str, str]) -> None:
    """Serve until standard input ends. Raises `ImportError` where the extra is missing."""
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - an extra

    if key_variable is not None:
        headers = {"authorization": f"Bearer {environment.get(key_variable, '')}"}
    else:
        headers = keys_in(environment)
    base_url = (url or environment.get("ANTHROPIC_BASE_URL") or USUAL_URL).rstrip("/").removesuffix("/v1")

    async def run() -> None:
        async with httpx2.AsyncClient(
            base_url=base_url, headers=headers, timeout=ANSWER_SECONDS, trust_env=False
        ) as client:
            server = server_of(Reader(client, FORMATS))
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(run())


def keys_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Headers with the keys that Claude Code sends."""
    headers = {}
    if key := environment.get("ANTHROPIC_API_KEY"):
        headers["x-api-key"] = key
    if token := environment.get("ANTHROPIC_AUTH_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    return headers

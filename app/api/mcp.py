"""`/mcp`: the tools of `mcp_tools` over MCP's streamable HTTP, behind the credentials of the REST interface."""

from __future__ import annotations

import asyncio
from importlib import import_module

import httpx2
from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.api.dependencies import Tenant, TheServices
from app.api.mcp_tools import ANSWER_SECONDS, Reader
from app.errors import UnknownPath
from app.http.asgi import read_body

BODY_BYTES = 1_000_000
NOT_INSTALLED = "MCP is not installed on this server. Its operator installs the extra `mcp`: docs/install.md#extras."
OF_THE_BODY = frozenset(
    {b"accept", b"accept-encoding", b"connection", b"content-encoding", b"content-length", b"content-type", b"expect"}
    | {b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Headers about this one request. All others say who asks and from where, and go on to the REST interface."""

router = APIRouter(include_in_schema=False)


@router.api_route("/mcp", methods=["GET", "POST", "DELETE"])
async def serve_mcp(request: Request, services: TheServices, tenant: Tenant) -> Response:  # noqa: ARG001 - a stranger is refused here
    try:
        # It takes a second to be imported, and few ask for it.
        server = await asyncio.to_thread(import_module, "app.api.mcp_server")
    except ImportError as error:
        raise UnknownPath(NOT_INSTALLED) from error
    if request.method != "POST":
        return Response(status_code=405, headers={"allow": "POST"})  # There are no sessions. Clients ask as a rule.
    scope = request.scope
    headers = scope["headers"]
    body = await read_body(request.receive, headers, BODY_BYTES, services.limits.receive_seconds)
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(request.app, client=scope["client"] or ("", 0)),
        base_url=str(request.base_url),
        headers=[header for header in headers if header[0] not in OF_THE_BODY],
        params=scope["query_string"].decode("latin-1"),
        timeout=ANSWER_SECONDS,
    )
    exchange: Response = server.Exchange(Reader(client, services.formats), body)
    return exchange

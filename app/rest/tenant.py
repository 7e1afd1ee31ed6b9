"""REST over tenants: who the caller is to Steno, and all that is stored of him."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from app.rest.dependencies import Tenant, TheServices

NDJSON = "application/x-ndjson"


class TenantOut(BaseModel):
    id: str = Field(description="What the settings call this caller. It does not give the key away.")
    object: Literal["tenant"] = "tenant"


class TenantDeletedOut(BaseModel):
    id: str
    object: Literal["tenant.deleted"] = "tenant.deleted"
    deleted: Literal[True] = True


router = APIRouter(prefix="/context", tags=["tenant"])


@router.get("/tenant")
async def read_tenant(tenant: Tenant) -> TenantOut:
    """Say which tenant this key belongs to."""
    return TenantOut(id=tenant)


@router.delete("/tenant")
async def delete_tenant(services: TheServices, tenant: Tenant) -> TenantDeletedOut:
    """Forgets everything that is stored of the caller. Summaries in the making are not stored any more."""

    # Waited for, not awaited: what a client begins and does not wait for is still finished.
    erasing = services.tasks.start(services.erase(tenant), f"erasing {tenant}")
    await asyncio.wait({erasing})
    erasing.result()
    return TenantDeletedOut(id=tenant)


@router.get(
    "/tenant/export",
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "One JSON object a line."}},
)
async def export_tenant(services: TheServices, tenant: Tenant) -> StreamingResponse:
    """Everything that is stored of the caller, as lines of JSON: `object` is the kind. The last line, `export.end`,
    shows that none is missing."""
    rows = services.store.export(tenant)
    first = await anext(rows, None)  # A database that is away is an error of ours, and not a broken answer.

    async def lines() -> AsyncIterator[bytes]:
        number = 0
        if first is not None:
            number += 1
            yield _line(*first)
        async for kind, row in rows:
            number += 1
            yield _line(kind, row)
        yield _line("export.end", {"tenant": tenant, "rows": number})

    return StreamingResponse(lines(), media_type=NDJSON)


def _line(kind: str, row: dict[str, Any]) -> bytes:
    readable = {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
    return msgspec.json.encode({"object": kind, **readable}) + b"\n"

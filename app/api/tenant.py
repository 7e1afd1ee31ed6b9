"""REST over tenants: who the caller is to Steno, and all that is stored of him."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.dependencies import Tenant, TheServices


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

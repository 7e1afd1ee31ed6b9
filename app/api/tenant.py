"""REST over tenants: who the caller is to Steno."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.rest import Tenant


class TenantOut(BaseModel):
    id: str = Field(description="What the settings call this caller. It does not give the key away.")
    object: Literal["tenant"] = "tenant"


router = APIRouter(prefix="/context", tags=["context"])


@router.get("/tenant")
async def read_tenant(tenant: Tenant) -> TenantOut:
    """Whose key this is."""
    return TenantOut(id=tenant)

"""REST over coverage: which messages of the latest payload stood for themselves, and which were summarised."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.rest.dependencies import STATUSES, ConversationId, Tenant, TheServices, known


class CoverageOut(BaseModel):
    conversation_id: str
    object: Literal["coverage"] = "coverage"
    context_status: str = Field(description=f"{STATUSES}.")
    tokens: int
    parts: list[dict[str, Any]] = Field(description="The latest payload in order, without gaps.")


router = APIRouter(prefix="/context", tags=["conversations"])


@router.get("/conversations/{conversation_id}/coverage")
async def read_coverage(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> CoverageOut:
    """The latest payload in order: which messages were summarised, carried, shortened or verbatim."""
    conversation = await known(services, tenant, conversation_id)
    parts = msgspec.json.decode(conversation.coverage or b"[]", type=list[dict[str, Any]])
    return CoverageOut(
        conversation_id=conversation_id,
        context_status=conversation.status,
        tokens=conversation.tokens_after or 0,
        parts=parts,
    )

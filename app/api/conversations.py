"""REST over conversations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.api.dependencies import (
    STATUSES,
    ConversationId,
    Listing,
    NewestFirst,
    Tenant,
    TheServices,
    known,
    listing,
    made_of,
    no_conversation,
)
from app.proxy.reply import Tokens
from app.store import StoredConversation
from app.store.conversations import read_conversations


class ConversationOut(BaseModel):
    id: str
    object: Literal["conversation"] = "conversation"
    model: str
    turns: int = Field(description="User messages in the longest history seen.")
    messages: int = Field(description="Messages after the instructions in the latest request.")
    requests: int
    context_status: str = Field(description=f"Of the latest request: {STATUSES}.")
    reason: str | None
    tokens: dict[str, int] = Field(description="Of the latest request: estimated, forwarded, saved, window.")
    forked_from: str | None
    created_at: datetime
    updated_at: datetime


class DeletedOut(BaseModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class CoverageOut(BaseModel):
    conversation_id: str
    object: Literal["coverage"] = "coverage"
    context_status: str = Field(description=f"{STATUSES}.")
    tokens: int
    parts: list[dict[str, Any]] = Field(description="The latest payload in order, without gaps.")


router = APIRouter(prefix="/context", tags=["conversations"])


@router.get("/conversations")
async def list_conversations(services: TheServices, tenant: Tenant, paging: NewestFirst) -> Listing[ConversationOut]:
    """The caller's conversations, newest first."""
    found = await services.store.rest(read_conversations, tenant, paging)
    return listing(found, _conversation)


@router.get("/conversations/{conversation_id}")
async def read_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> ConversationOut:
    """One conversation, as of its latest request."""
    return _conversation(await known(services, tenant, conversation_id))


@router.get("/conversations/{conversation_id}/coverage")
async def read_coverage(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> CoverageOut:
    """The latest payload in order: which messages were summarised, carried, shortened or verbatim."""
    conversation = await known(services, tenant, conversation_id)
    return CoverageOut(
        conversation_id=conversation_id,
        context_status=conversation.status,
        tokens=conversation.tokens_after or 0,
        parts=conversation.parts,
    )


@router.delete("/conversations/{conversation_id}")
async def delete_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Forgets a conversation and the summaries it made. One in the making is not stored any more."""
    if not await services.delete(tenant, conversation_id):
        raise no_conversation(conversation_id)
    return DeletedOut(id=conversation_id)


def _conversation(conversation: StoredConversation) -> ConversationOut:
    sizes = (tokens or 0 for tokens in (conversation.tokens_before, conversation.tokens_after, conversation.window))
    return made_of(
        ConversationOut,
        conversation,
        context_status=conversation.status,
        tokens=asdict(Tokens.counted(*sizes)),
    )

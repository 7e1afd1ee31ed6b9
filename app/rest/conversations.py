"""REST over conversations."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.rest.dependencies import (
    STATUSES,
    After,
    ConversationId,
    Limit,
    Listing,
    Order,
    Tenant,
    TheServices,
    known,
    known_cursor,
    listing,
    no_conversation,
)
from app.store import StoredConversation
from app.store.conversation_rows import read_conversations


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


router = APIRouter(prefix="/context", tags=["conversations"])


@router.get("/conversations")
async def list_conversations(
    services: TheServices, tenant: Tenant, limit: Limit = 20, after: After = None, order: Order = "desc"
) -> Listing[ConversationOut]:
    """The caller's conversations, newest first."""
    with known_cursor():
        page = await services.store.rest(read_conversations, tenant, limit=limit, after=after, order=order)
    return listing(page, _conversation)


@router.get("/conversations/{conversation_id}")
async def read_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> ConversationOut:
    """One conversation, as of its latest request."""
    return _conversation(await known(services, tenant, conversation_id))


@router.delete("/conversations/{conversation_id}")
async def delete_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Forgets a conversation and the summaries it made. One in the making is not stored any more."""
    services.conversations.forget(tenant, conversation_id)
    was_there = await services.store.delete_conversation(tenant, conversation_id)
    # Not before: a request may have read them meanwhile.
    services.compactor.forget(tenant, conversation_id)
    if not was_there:
        raise no_conversation(conversation_id)
    return DeletedOut(id=conversation_id)


def _conversation(conversation: StoredConversation) -> ConversationOut:
    before, after, window = (
        tokens or 0 for tokens in (conversation.tokens_before, conversation.tokens_after, conversation.window)
    )
    return ConversationOut(
        id=conversation.id,
        model=conversation.model,
        turns=conversation.turns,
        messages=conversation.messages,
        requests=conversation.requests,
        context_status=conversation.status,
        reason=conversation.reason,
        tokens={"estimated": before, "forwarded": after, "saved": before - after, "window": window},
        forked_from=conversation.forked_from,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
    )

"""REST over conversations, their pins, and all that is stored of one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from msgspec import Meta, Struct
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.api.dependencies import (
    STATUSES,
    Body,
    ConversationId,
    Listing,
    NewestFirst,
    Tenant,
    TheServices,
    decoded,
    known,
    listing,
    made_of,
    no_conversation,
    request_body,
)
from app.proxy.reply import Tokens
from app.store import Pin, StoredConversation
from app.store.conversations import find_pins, read_conversations, set_pins


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


class CoverageOut(BaseModel):
    conversation_id: str
    object: Literal["coverage"] = "coverage"
    context_status: str = Field(description=f"{STATUSES}.")
    tokens: int
    parts: list[dict[str, Any]] = Field(description="The latest payload in order, without gaps.")


class PinOut(BaseModel):
    index: int = Field(description="Of the message, counted after the instructions, from 0.")
    object: Literal["pin"] = "pin"
    bound: bool = Field(description="Whether a request has shown the message: from then on the pin is its history's.")
    created_at: datetime


class TenantOut(BaseModel):
    id: str = Field(description="What the settings call this caller. It does not give the key away.")
    object: Literal["tenant"] = "tenant"


class DeletedOut(BaseModel):
    id: str
    object: Literal["conversation.deleted", "pins.deleted", "tenant.deleted"]
    deleted: Literal[True] = True


class Pins(Struct):
    indexes: Annotated[list[Annotated[int, Meta(ge=0, le=1_000_000)]], Meta(max_length=100)]


router = APIRouter(prefix="/context")


@router.get("/conversations", tags=["conversations"])
async def list_conversations(services: TheServices, tenant: Tenant, paging: NewestFirst) -> Listing[ConversationOut]:
    """The caller's conversations, newest first."""
    found = await services.store.rest(read_conversations, tenant, paging)
    return listing(found, _conversation)


@router.get("/conversations/{conversation_id}", tags=["conversations"])
async def read_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> ConversationOut:
    """One conversation, as of its latest request."""
    return _conversation(await known(services, tenant, conversation_id))


def _conversation(conversation: StoredConversation) -> ConversationOut:
    sizes = (tokens or 0 for tokens in (conversation.tokens_before, conversation.tokens_after, conversation.window))
    tokens = asdict(Tokens.counted(*sizes))
    return made_of(ConversationOut, conversation, context_status=conversation.status, tokens=tokens)


@router.get("/conversations/{conversation_id}/coverage", tags=["conversations"])
async def read_coverage(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> CoverageOut:
    """The latest payload in order: which messages were summarised, carried, shortened or verbatim."""
    conversation = await known(services, tenant, conversation_id)
    return CoverageOut(
        conversation_id=conversation_id,
        context_status=conversation.status,
        tokens=conversation.tokens_after or 0,
        parts=conversation.parts,
    )


@router.delete("/conversations/{conversation_id}", tags=["conversations"])
async def delete_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Forgets a conversation and the summaries it made. One in the making is not stored any more."""
    if not await services.delete(tenant, conversation_id):
        raise no_conversation(conversation_id)
    return DeletedOut(id=conversation_id, object="conversation.deleted")


@router.get("/conversations/{conversation_id}/pins", tags=["pins"])
async def list_pins(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> Listing[PinOut]:
    """The pinned messages in order."""
    await known(services, tenant, conversation_id)
    return _pins(await services.store.rest(find_pins, tenant, conversation_id))


@router.put("/conversations/{conversation_id}/pins", tags=["pins"], openapi_extra=request_body(Pins, required=True))
async def replace_pins(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Listing[PinOut]:
    """Pin these messages from now on, and no others."""
    return _pins(await pin(services, tenant, conversation_id, read_pins(body).indexes))


def read_pins(body: bytes) -> Pins:
    """Raises `InvalidRequest`."""
    return decoded(body, Pins, 10_000, 'Send {"indexes": [0, 4]}: the messages to pin, counted after the instructions.')


@router.delete("/conversations/{conversation_id}/pins", tags=["pins"])
async def delete_pins(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Nothing is pinned any more; the next payload has the messages as summaries, or in their place, only."""
    await pin(services, tenant, conversation_id, ())
    return DeletedOut(id=conversation_id, object="pins.deleted")


async def pin(services: TheServices, tenant: str, conversation_id: str, indexes: Sequence[int]) -> list[Pin]:
    """Pin these messages and no others. Raises `ConversationNotFound`."""
    found = await services.store.rest_change(set_pins, tenant, conversation_id, indexes)
    if found is None:
        raise no_conversation(conversation_id)
    return found


def _pins(pins: Sequence[Pin]) -> Listing[PinOut]:
    return Listing(
        data=[PinOut(index=pin.position, bound=pin.digest is not None, created_at=pin.created_at) for pin in pins],
        first_id=str(pins[0].position) if pins else None,
        last_id=str(pins[-1].position) if pins else None,
        has_more=False,
    )


@router.get("/tenant", tags=["tenant"])
async def read_tenant(tenant: Tenant) -> TenantOut:
    """Say which tenant this key belongs to."""
    return TenantOut(id=tenant)


@router.delete("/tenant", tags=["tenant"])
async def delete_tenant(services: TheServices, tenant: Tenant) -> DeletedOut:
    """Forgets everything that is stored of the caller. Summaries in the making are not stored any more."""

    # Waited for, not awaited: what a client begins and does not wait for is still finished.
    erasing = services.tasks.start(services.erase(tenant), f"erasing {tenant}")
    await asyncio.wait({erasing})
    erasing.result()
    return DeletedOut(id=tenant, object="tenant.deleted")

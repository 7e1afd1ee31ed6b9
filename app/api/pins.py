"""REST over pins: messages that stay verbatim in every payload of their conversation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.dependencies import Body, ConversationId, Listing, Tenant, TheServices, known, no_conversation
from app.errors import InvalidRequest
from app.formats.raw_json import RawObject, Unreadable
from app.proxy.services import Services
from app.store import Pin
from app.store.conversations import find_pins, set_pins

MOST_PINS = 100
LARGEST_INDEX = 1_000_000
LONGEST_BODY = 10_000
"""Bytes of a body; what is larger is not read."""


class PinOut(BaseModel):
    index: int = Field(description="Of the message, counted after the instructions, from 0.")
    object: Literal["pin"] = "pin"
    bound: bool = Field(description="Whether a request has shown the message: from then on the pin is its history's.")
    created_at: datetime


class PinsDeletedOut(BaseModel):
    id: str
    object: Literal["pins.deleted"] = "pins.deleted"
    deleted: Literal[True] = True


_INDEXES: dict[str, Any] = {
    "type": "object",
    "required": ["indexes"],
    "properties": {
        "indexes": {
            "type": "array",
            "maxItems": MOST_PINS,
            "items": {"type": "integer", "minimum": 0, "maximum": LARGEST_INDEX},
        }
    },
}

router = APIRouter(prefix="/context/conversations/{conversation_id}", tags=["pins"])


@router.get("/pins")
async def list_pins(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> Listing[PinOut]:
    """The pinned messages in order."""
    await known(services, tenant, conversation_id)
    return _listing(await services.store.rest(find_pins, tenant, conversation_id))


@router.put(
    "/pins", openapi_extra={"requestBody": {"content": {"application/json": {"schema": _INDEXES}}, "required": True}}
)
async def replace_pins(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Listing[PinOut]:
    """Pin these messages from now on, and no others."""
    return _listing(await _replaced(services, tenant, conversation_id, read_indexes(body)))


@router.delete("/pins")
async def delete_pins(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> PinsDeletedOut:
    """Nothing is pinned any more; the next payload has the messages as summaries, or in their place, only."""
    await _replaced(services, tenant, conversation_id, ())
    return PinsDeletedOut(id=conversation_id)


def read_indexes(body: bytes) -> Sequence[int]:
    """Indexes that a body names. Raises `InvalidRequest`."""
    if len(body) > LONGEST_BODY:
        raise InvalidRequest(f"The body has {len(body)} bytes; {MOST_PINS} indexes fit into {LONGEST_BODY}.", "indexes")
    try:
        indexes = RawObject(body).value("indexes")
    except Unreadable:
        indexes = None
    if not isinstance(indexes, list):
        raise InvalidRequest(
            'Send {"indexes": [0, 4]}: the messages to pin, counted after the instructions.', "indexes"
        )
    if len(indexes) > MOST_PINS:
        raise InvalidRequest(f"indexes holds {len(indexes)} messages; at most {MOST_PINS} can be pinned.", "indexes")
    for index in indexes:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= LARGEST_INDEX:
            expected = f"an index is a whole number from 0 to {LARGEST_INDEX}"
            raise InvalidRequest(f"indexes holds {index!r:.100}; {expected}.", "indexes")
    return indexes


async def _replaced(services: Services, tenant: str, conversation_id: str, indexes: Sequence[int]) -> list[Pin]:
    found = await services.store.rest_change(set_pins, tenant, conversation_id, indexes)
    if found is None:
        raise no_conversation(conversation_id)
    return found


def _listing(pins: Sequence[Pin]) -> Listing[PinOut]:
    return Listing(
        data=[PinOut(index=pin.position, bound=pin.digest is not None, created_at=pin.created_at) for pin in pins],
        first_id=str(pins[0].position) if pins else None,
        last_id=str(pins[-1].position) if pins else None,
        has_more=False,
    )

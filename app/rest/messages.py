"""REST over the archive: the whole conversation as it was sent, with what became of each message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from app.errors import InvalidRequest, MessagesNotKept
from app.proxy.services import Services
from app.rest.dependencies import ConversationId, Listing, OldestFirst, Tenant, TheServices, known, listing, made_of
from app.rest.usage import TotalsOut, totals_out
from app.store import MessagePage, StoredMessage
from app.store.message_rows import read_history, read_messages

MOST_AT_ONCE = 100
"""Messages of a history that are read at once."""
FirstIndex = Annotated[
    int | None, Query(description="First message of a part of the latest request's history, without paging.")
]
LastIndex = Annotated[int | None, Query(description="Last message of that part; the first one if it is not named.")]


class MessageOut(BaseModel):
    """A message as it was sent."""

    id: str
    object: Literal["message"] = "message"
    conversation_id: str
    previous_id: str | None = Field(description="The message it follows; null for the first one.")
    index: int = Field(description="After the leading instructions, from 0; those count from -1 back.")
    role: str
    kind: str = Field(description="instructions, user, assistant, result or other, whatever the format calls them.")
    format: str
    tokens: int = Field(description="Steno's estimate.")
    request_id: str = Field(description="Of the request that brought it first.")
    created_at: datetime
    sent: Any = Field(description="Its JSON, letter by letter.")


class CoverageOfMessageOut(BaseModel):
    kind: str = Field(description="As in the coverage: verbatim, summarized, carried, masked, pruned, ...")
    summary_id: str | None = Field(description="Of the summary that stands for it.")


class ArchivedMessageOut(MessageOut):
    coverage: CoverageOfMessageOut | None = Field(
        description="What became of it in the latest payload; null for leading instructions, and where the latest"
        " request did not hold it."
    )
    usage: TotalsOut | None = Field(description="What its request took; null where the ledger has nothing of it.")


router = APIRouter(prefix="/context", tags=["conversations"])


@router.get("/conversations/{conversation_id}/messages", response_model=Listing[ArchivedMessageOut])
async def list_messages(
    services: TheServices,
    tenant: Tenant,
    conversation_id: ConversationId,
    paging: OldestFirst,
    first_index: FirstIndex = None,
    last_index: LastIndex = None,
) -> Response:
    """Everything that was said in a conversation, its branches too, in the order in which it came; or a part of the
    latest request's history."""
    refuse_unless_kept(services)
    conversation = await known(services, tenant, conversation_id)
    if first_index is None:
        found = await services.store.rest(read_messages, tenant, conversation_id, paging)
    else:
        found = await services.store.rest(read_history, tenant, conversation_id, *_part(first_index, last_index))
    parts = conversation.parts
    return rendered(listing(found.page, lambda message: _archived(message, found, parts)))


def _part(first: int, last: int | None) -> tuple[int, int]:
    """Indexes of a part of a history. Raises `InvalidRequest`."""
    last = first if last is None else last
    if not 0 <= last - first < MOST_AT_ONCE:
        raise InvalidRequest(
            f"last_index is first_index ({first}) or up to {MOST_AT_ONCE - 1} more; it is {last}.", "last_index"
        )
    return first, last


def refuse_unless_kept(services: Services) -> None:
    """Raises `MessagesNotKept`."""
    if not services.keeps_messages:
        raise MessagesNotKept("Steno keeps no messages here: storage.messages is off.")


def message_out(message: StoredMessage) -> MessageOut:
    return made_of(MessageOut, message, index=message.position)


def rendered(page: Listing[Any]) -> Response:
    """JSON answer with messages letter by letter as sent: no number, space or escape is written anew."""
    shown = page.model_dump(mode="json", exclude={"data"})
    data = [entry.model_dump(mode="json") for entry in page.data]
    for entry in data:
        if "sent" in entry:
            entry["sent"] = msgspec.Raw(entry["sent"].encode())
    return Response(msgspec.json.encode({**shown, "data": data}), media_type="application/json")


def _archived(message: StoredMessage, found: MessagePage, parts: Sequence[Mapping[str, Any]]) -> ArchivedMessageOut:
    sums = found.usage.get(message.request_id)
    is_latest = message.id in found.latest
    return made_of(
        ArchivedMessageOut,
        message,
        index=message.position,
        coverage=coverage_at(parts, message.position) if is_latest else None,
        usage=sums and totals_out(sums),
    )


def coverage_at(parts: Sequence[Mapping[str, Any]], index: int) -> CoverageOfMessageOut | None:
    """Coverage part that tells what became of a message: where a part shows more of it than its summary does, that
    part."""
    standing = [part for part in parts if part.get("first_index", index + 1) <= index <= part["last_index"]]
    shown = next((part for part in standing if part["kind"] not in ("summarized", "pruned")), None)
    if not standing:
        return None
    summary = next((part["summary_id"] for part in standing if part["kind"] == "summarized"), None)
    return CoverageOfMessageOut(kind=(shown or standing[0])["kind"], summary_id=summary)

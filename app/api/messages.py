"""REST over stored messages: the history of the latest request as it was sent, with what became of each message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from app.api.dependencies import ConversationId, Listing, OldestFirst, Tenant, TheServices, known, listing
from app.api.handoff import message_in
from app.errors import MessagesNotKept
from app.formats.format import WireFormat
from app.store import Page, Paging, StoredHistory, StoredMessage, UnknownCursor

_ID = re.compile(r"msg_(-?\d{1,9})")


class CoverageOfMessageOut(BaseModel):
    kind: str = Field(description="As in the coverage: verbatim, summarized, carried, masked, pruned, ...")
    summary_id: str | None = Field(description="Of the summary that stands for it.")


class MessageOut(BaseModel):
    """A message as it was sent."""

    id: str = Field(description="`msg_` and the index.")
    object: Literal["message"] = "message"
    conversation_id: str
    index: int = Field(description="After the leading instructions, from 0; those count from -1 back.")
    role: str
    kind: str = Field(description="instructions, user, assistant, result or other, whatever the format calls them.")
    format: str
    tokens: int = Field(description="Steno's estimate.")
    sent: Any = Field(description="Its JSON, letter by letter.")
    coverage: CoverageOfMessageOut | None = Field(
        description="What became of it in the latest payload; null for leading instructions."
    )


router = APIRouter(prefix="/context", tags=["conversations"])


@router.get("/conversations/{conversation_id}/messages", response_model=Listing[MessageOut])
async def list_messages(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: OldestFirst
) -> Response:
    """The history of the conversation's latest request, leading instructions first. `after` may be `msg_` and any
    index."""
    if not services.keeps_messages:
        raise MessagesNotKept("Steno keeps no messages here: storage.messages is off.")
    conversation = await known(services, tenant, conversation_id)
    history = await services.store.history(tenant, conversation_id)
    page = _page(history, paging)
    format_ = next((each for each in services.formats if history and each.name == history.format), None)
    parts = conversation.parts if history and history.is_latest else ()

    def shown() -> bytes:
        return _rendered(listing(page, lambda message: _message_out(message, conversation_id, format_, parts)))

    return Response(await services.work.do(tenant, shown), media_type="application/json")


def _page(history: StoredHistory | None, paging: Paging) -> Page[StoredMessage]:
    """Raises UnknownCursor."""
    is_rising = paging.order == "asc"
    messages = (history.messages if is_rising else history.messages[::-1]) if history else ()
    if paging.after is not None:
        if (named := _ID.fullmatch(paging.after)) is None:
            raise UnknownCursor(f"The list holds no {paging.after!r:.100} to continue after.")
        after = int(named[1])
        messages = [each for each in messages if (each.index > after if is_rising else each.index < after)]
    data = messages[: paging.limit]
    first, last = (_id(data[0]), _id(data[-1])) if data else (None, None)
    return Page(data, first, last, has_more=len(messages) > paging.limit)


def _id(message: StoredMessage) -> str:
    return f"msg_{message.index}"


def _message_out(
    message: StoredMessage, conversation_id: str, format_: WireFormat | None, parts: Sequence[Mapping[str, Any]]
) -> MessageOut:
    read = message_in(message.sent, format_)
    return MessageOut(
        id=_id(message),
        conversation_id=conversation_id,
        index=message.index,
        role=read.role if read else "unread",
        kind=read.kind.name.lower() if read else "other",
        format=message.format,
        tokens=message.tokens,
        sent=message.sent,
        coverage=coverage_at(parts, message.index),
    )


def _rendered(page: Listing[MessageOut]) -> bytes:
    """JSON with messages letter by letter as sent: no number, space or escape is written anew."""
    shown = page.model_dump(mode="json", exclude={"data"})
    data = [{**entry.model_dump(mode="json"), "sent": msgspec.Raw(entry.sent.encode())} for entry in page.data]
    return msgspec.json.encode({**shown, "data": data})


def coverage_at(parts: Sequence[Mapping[str, Any]], index: int) -> CoverageOfMessageOut | None:
    """Coverage part that tells what became of a message: where a part shows more of it than its summary does, that
    part."""
    standing = [part for part in parts if part.get("first_index", index + 1) <= index <= part["last_index"]]
    shown = next((part for part in standing if part["kind"] not in ("summarized", "pruned")), None)
    if not standing:
        return None
    summary = next((part["summary_id"] for part in standing if part["kind"] == "summarized"), None)
    return CoverageOfMessageOut(kind=(shown or standing[0])["kind"], summary_id=summary)

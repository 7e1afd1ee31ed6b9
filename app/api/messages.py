"""REST over stored messages: the history of the latest request as it was sent, with what became of each message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from app.api.dependencies import (
    ConversationId,
    Listing,
    OldestFirst,
    Tenant,
    TheServices,
    known,
    listing,
    page_of,
)
from app.compaction.handoff import handoff, standing
from app.conversation.messages import History, Kind, Message
from app.errors import MessagesNotKept
from app.formats.paths import BY_NAME
from app.formats.raw_json import Unreadable
from app.store import Paging, Store, StoredConversation, StoredHistory, StoredMessage, UnknownCursor
from app.store.chunks import chunks_named, read_summaries

MOST_SUMMARIES = 500
"""Summaries that are read for a document."""
NOT_KEPT = (
    "The messages are not stored: `storage.messages` is off, or was off at the latest request, or they are too large."
    " Nothing but their summaries is known, nor whether all of these are of the latest branch."
)

router = APIRouter(prefix="/context", tags=["conversations"])


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


@router.get("/conversations/{conversation_id}/handoff", response_class=Markdown)
async def read_handoff(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> Markdown:
    """A document in Markdown from which another model, or a person, can go on. No model is asked."""
    conversation = await known(services, tenant, conversation_id)
    run, keeps = partial(services.work.do, tenant), services.keeps_messages
    return Markdown(await handoff_of(services.store, tenant, conversation, run=run, keeps_messages=keeps))


async def handoff_of(
    store: Store,
    tenant: str,
    conversation: StoredConversation,
    *,
    run: Callable[[Callable[[], str]], Awaitable[str]] = asyncio.to_thread,
    keeps_messages: bool = True,
) -> str:
    """The document; `run` runs what may take long. Raises `StoreUnavailable`."""
    id_ = conversation.id
    kept = await store.history(tenant, id_) if keeps_messages else None
    shown = await store.rest(chunks_named, tenant, conversation.summaries)
    latest = await store.rest(read_summaries, tenant, id_, Paging(MOST_SUMMARIES, order="desc"))
    stored = sorted(latest.data, key=lambda chunk: chunk.id)
    chunks = standing(shown, stored, lambda chunk: kept is None or chunk.through_digest in kept.digests)
    about = {
        "conversation": id_,
        "model": conversation.model,
        "turns": conversation.turns,
        "messages": conversation.messages,
        "latest request": f"{conversation.updated_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    return await run(lambda: handoff(about, chunks, _history(kept) if kept else History(), NOT_KEPT))


def _history(kept: StoredHistory) -> History:
    """Messages after the leading instructions."""
    unread = ((message_in(each.sent, kept.format), each.sent) for each in kept.messages)
    return History(message or Message(Kind.OTHER, "unread", (sent,), b"", b"") for message, sent in unread).rest


def message_in(sent: str, format_name: str) -> Message | None:
    """Stored message as its format reads it; None where it cannot be read any more."""
    if (format_ := BY_NAME.get(format_name)) is None:
        return None
    try:
        return format_.message(format_.raw_of(sent.encode("utf-8", "surrogatepass"))).message
    except Unreadable:
        return None


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


@router.get("/conversations/{conversation_id}/messages", response_model=Listing[MessageOut])
async def list_messages(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: OldestFirst
) -> Response:
    """The history of the conversation's latest request, leading instructions first. `after` may be `msg_` and any
    index."""
    if not services.keeps_messages:
        raise MessagesNotKept("Steno keeps no messages here: storage.messages is off.")
    conversation = await known(services, tenant, conversation_id)
    named = None if paging.after is None else _ID.fullmatch(paging.after)
    if paging.after is not None and named is None:
        raise UnknownCursor(f"The list holds no {paging.after!r:.100} to continue after.")
    history = await services.store.history(tenant, conversation_id)
    kept = {each.index: each for each in history.messages} if history else {}
    page = page_of(kept, paging, int(named[1]) if named else None, "msg_{}".format)
    parts = conversation.parts if history and history.is_latest else ()

    def shown() -> bytes:
        return _rendered(listing(page, lambda message: _message_out(message, conversation_id, parts)))

    return Response(await services.work.do(tenant, shown), media_type="application/json")


def _message_out(message: StoredMessage, conversation_id: str, parts: Sequence[Mapping[str, Any]]) -> MessageOut:
    read = message_in(message.sent, message.format)
    return MessageOut(
        id=f"msg_{message.index}",
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

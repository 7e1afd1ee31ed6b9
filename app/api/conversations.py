"""REST routes of conversations, with their coverage, messages, pins and summaries, and of the tenant's data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from msgspec import Meta, Struct
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.api.dependencies import (
    STATUSES,
    Body,
    ConversationId,
    Tenant,
    TheServices,
    decoded,
    known,
    made_of,
    request_body,
)
from app.api.paging import After, Limit, Listing, NewestFirst, OldestFirst, listing, page_of
from app.compaction.chunk_builder import corrected
from app.compaction.chunks import SummaryChunk
from app.compaction.handoff import handoff, standing
from app.conversation.messages import History, Kind, Message
from app.conversation.secrets import without_secrets
from app.errors import ConversationNotFound, InvalidRequest, MessagesNotKept, SummaryNotFound
from app.formats.paths import BY_NAME
from app.formats.raw_json import Unreadable
from app.proxy.exchange import Services
from app.proxy.reply import tokens_of
from app.store import Paging, Pin, StoredConversation, StoredHistory, StoredMessage, UnknownCursor
from app.store.chunks import chunks_named, delete_chunk, find_summary, read_summaries, replace_chunk, search_summaries
from app.store.conversations import find_pins, read_conversations, set_pins

MOST_SUMMARIES = 500
"""Maximum number of summaries that are read for a handoff document."""
NOT_KEPT = (
    "The messages are not stored: `storage.messages` is off, or was off at the latest request, or they are too large."
    " Nothing but their summaries is known, nor whether all of these are of the latest branch."
)

Text = Annotated[str, Query(max_length=200, description="Part of a text, in upper or lower case.")]
_ID = re.compile(r"msg_(-?\d{1,9})")


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
        description="Treatment of the message in the latest payload; null for leading instructions."
    )


class PinOut(BaseModel):
    index: int = Field(description="Of the message, counted after the instructions, from 0.")
    object: Literal["pin"] = "pin"
    bound: bool = Field(description="Whether a request has shown the message: from then on the pin is its history's.")
    created_at: datetime


class TenantOut(BaseModel):
    id: str = Field(description="Name of this caller in the settings, or a digest. It does not give the key away.")
    object: Literal["tenant"] = "tenant"


class DeletedOut(BaseModel):
    id: str
    object: Literal["conversation.deleted", "pins.deleted", "tenant.deleted"]
    deleted: Literal[True] = True


class SummaryOut(BaseModel):
    id: str
    object: Literal["summary"] = "summary"
    conversation_id: str
    text: str
    summarized_through_turn: int
    first_index: int = Field(description="First message it stands for, counted after the instructions, from 0.")
    last_index: int = Field(description="Last message it stands for, inclusive.")
    carried: list[int] = Field(description="Messages of that range that stay verbatim after the summary.")
    level: int = Field(description="0: made from messages; more: a fold of summaries.")
    children: list[str] = Field(description="Summaries a fold stands for.")
    values: list[str] = Field(description="Exact values of those messages, copied by code: they stand after the text.")
    values_kept: float | None = Field(description="Share of the values that the text holds, too; null without any.")
    user_words: list[dict[str, int | str | None]] = Field(
        description="The user's words in those messages: `turn` and `text`."
    )
    user_words_tokens: int
    token_count: int
    model: str
    prompt_version: str = Field(description="`edited` where a person wrote the text.")
    created_at: datetime | None


class SummaryEdit(Struct, forbid_unknown_fields=True):
    text: str


class SummariesDeletedOut(BaseModel):
    conversation_id: str
    object: Literal["summaries.deleted"] = "summaries.deleted"
    data: list[str] = Field(description="Ids of the summary and of every fold that stood for it.")


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
    return made_of(ConversationOut, conversation, context_status=conversation.status, tokens=tokens_of(*sizes))


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


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


@router.get("/conversations/{conversation_id}/handoff", tags=["conversations"], response_class=Markdown)
async def read_handoff(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> Markdown:
    """A document in Markdown from which another model, or a person, can go on. No model is asked."""
    conversation, store = await known(services, tenant, conversation_id), services.store
    kept = await store.history(tenant, conversation_id) if services.keeps_messages else None
    shown = await store.rest(chunks_named, tenant, conversation.summaries)
    latest = await store.rest(read_summaries, tenant, conversation_id, Paging(MOST_SUMMARIES, order="desc"))
    stored = sorted(latest.data, key=lambda chunk: chunk.id)
    chunks = standing(shown, stored, lambda chunk: kept is None or chunk.through_digest in kept.digests)
    about = {
        "conversation": conversation_id,
        "model": conversation.model,
        "turns": conversation.turns,
        "messages": conversation.messages,
        "latest request": f"{conversation.updated_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    history = _history(kept) if kept else History()
    return Markdown(await services.work.do(tenant, lambda: handoff(about, chunks, history, NOT_KEPT)))


def _history(kept: StoredHistory) -> History:
    """Return the stored messages after the leading instructions."""
    unread = ((message_in(each.sent, kept.format), each.sent) for each in kept.messages)
    return History(message or Message(Kind.OTHER, "unread", (sent,), b"", b"") for message, sent in unread).rest


def message_in(sent: str, format_name: str) -> Message | None:
    """Parse a stored message; None if this release cannot read the message or does not know the format."""
    if (format_ := BY_NAME.get(format_name)) is None:
        return None
    try:
        return format_.message(format_.raw_of(sent.encode("utf-8", "surrogatepass"))).message
    except Unreadable:
        return None


@router.get("/conversations/{conversation_id}/messages", tags=["conversations"], response_model=Listing[MessageOut])
async def list_messages(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: OldestFirst
) -> Response:
    """The history of the conversation's latest request, leading instructions first. `after` may be `msg_` and any
    index."""
    if not services.keeps_messages:
        raise MessagesNotKept
    conversation = await known(services, tenant, conversation_id)
    named = None if paging.after is None else _ID.fullmatch(paging.after)
    if paging.after is not None and named is None:
        raise UnknownCursor(f"The list holds no {paging.after!r:.100} to continue after.")
    history = await services.store.history(tenant, conversation_id)
    kept = {each.index: each for each in history.messages} if history else {}
    page = page_of(kept, paging, int(named[1]) if named else None, "msg_{}".format)
    parts = conversation.parts if history and history.is_latest else ()

    def shown() -> bytes:
        data = [_message(message, conversation_id, parts) for message in page.data]
        # Pydantic would change the messages' bytes.
        return msgspec.json.encode({"object": "list", **asdict(page), "data": data})

    return Response(await services.work.do(tenant, shown), media_type="application/json")


def _message(message: StoredMessage, conversation_id: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the members of `MessageOut`."""
    read, coverage = message_in(message.sent, message.format), coverage_at(parts, message.index)
    return {
        "id": f"msg_{message.index}",
        "object": "message",
        "conversation_id": conversation_id,
        "index": message.index,
        "role": read.role if read else "unread",
        "kind": read.kind.name.lower() if read else "other",
        "format": message.format,
        "tokens": message.tokens,
        "sent": msgspec.Raw(message.sent.encode()),
        "coverage": coverage and coverage.model_dump(),
    }


def coverage_at(parts: Sequence[Mapping[str, Any]], index: int) -> CoverageOfMessageOut | None:
    """Return the coverage of a message: from the part that shows it, else from a summary; None if no part covers it."""
    standing = [part for part in parts if part.get("first_index", index + 1) <= index <= part["last_index"]]
    shown = next((part for part in standing if part["kind"] not in ("summarized", "pruned")), None)
    if not standing:
        return None
    summary = next((part["summary_id"] for part in standing if part["kind"] == "summarized"), None)
    return CoverageOfMessageOut(kind=(shown or standing[0])["kind"], summary_id=summary)


@router.delete("/conversations/{conversation_id}", tags=["conversations"])
async def delete_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Forgets a conversation and the summaries it made. One in the making is not stored any more."""
    if not await services.delete(tenant, conversation_id):
        raise ConversationNotFound(conversation_id)
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
    pins = decoded(body, Pins, 'Send {"indexes": [0, 4]}: the messages to pin, counted after the instructions.')
    return _pins(await pin(services, tenant, conversation_id, pins.indexes))


@router.delete("/conversations/{conversation_id}/pins", tags=["pins"])
async def delete_pins(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Remove all pins of the conversation. From the next payload on, Steno adds no copies of these messages."""
    await pin(services, tenant, conversation_id, ())
    return DeletedOut(id=conversation_id, object="pins.deleted")


async def pin(services: TheServices, tenant: str, conversation_id: str, indexes: Sequence[int]) -> list[Pin]:
    """Replace the conversation's pins by pins of these messages. Raises `ConversationNotFound`."""
    found = await services.store.rest_change(set_pins, tenant, conversation_id, indexes)
    if found is None:
        raise ConversationNotFound(conversation_id)
    return found


def _pins(pins: Sequence[Pin]) -> Listing[PinOut]:
    return Listing(
        data=[PinOut(index=pin.position, bound=pin.digest is not None, created_at=pin.created_at) for pin in pins],
        first_id=str(pins[0].position) if pins else None,
        last_id=str(pins[-1].position) if pins else None,
        has_more=False,
    )


@router.get("/conversations/{conversation_id}/summaries", tags=["summaries"])
async def list_summaries(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: OldestFirst
) -> Listing[SummaryOut]:
    """The summaries that a conversation made or uses, oldest first."""
    await known(services, tenant, conversation_id)
    found = await services.store.rest(read_summaries, tenant, conversation_id, paging)
    return listing(found, summary_out)


@router.get("/conversations/{conversation_id}/summaries/{summary_id}", tags=["summaries"])
async def read_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummaryOut:
    return summary_out(await found_summary(services, tenant, conversation_id, summary_id))


async def found_summary(services: Services, tenant: str, conversation_id: str, summary_id: str) -> SummaryChunk:
    """Return a stored summary of the tenant. Raises `SummaryNotFound`."""
    chunk = await services.store.rest(find_summary, tenant, conversation_id, summary_id)
    if chunk is None:
        raise SummaryNotFound(conversation_id, summary_id)
    return chunk


def summary_out(chunk: SummaryChunk) -> SummaryOut:
    return made_of(
        SummaryOut,
        chunk,
        summarized_through_turn=chunk.through_turn,
        user_words=[asdict(said) for said in chunk.user_words],
        carried=[chunk.first_index + offset for offset in chunk.carried],
        token_count=chunk.tokens,
    )


@router.patch(
    "/conversations/{conversation_id}/summaries/{summary_id}",
    openapi_extra=request_body(SummaryEdit, required=True),
    tags=["summaries"],
)
async def edit_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str, body: Body
) -> SummaryOut:
    """Replaces the summary: a new one with this text stands for its messages, under an id of its own, from the next
    request on. Every fold that stood for it is deleted."""
    text = without_secrets(decoded(body, SummaryEdit, 'Send {"text": "..."}: the new text.').text)
    if not text.strip():
        raise InvalidRequest("The text is empty. To be rid of the summary, delete it.", "text")
    old = await found_summary(services, tenant, conversation_id, summary_id)
    conversation = await known(services, tenant, conversation_id)
    count, budget = services.model_limits.for_summaries(conversation.model, tenant, services.format)
    new = await services.work.do(tenant, lambda: corrected(old, conversation_id, count, text))
    most = max(budget.summary, old.tokens)
    if new.tokens > most:
        shown, room = (round(budget.line.ratio * tokens) for tokens in (new.tokens, most))
        raise InvalidRequest(
            f"The summary would take about {shown} tokens with its values and the user's words; it may take {room}"
            " (summary.max_tokens, and a share of the model's window).",
            "text",
        )
    if new is old:
        return summary_out(old)
    stored = await services.store.rest_change(replace_chunk, tenant, old.id, new)
    services.compactor.memory.forget_chunks(tenant, [old.id])
    if stored is None:
        raise SummaryNotFound(conversation_id, summary_id)
    return summary_out(stored)


@router.delete("/conversations/{conversation_id}/summaries/{summary_id}", tags=["summaries"])
async def delete_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummariesDeletedOut:
    """Deletes the summary and every fold that stands for it: its messages are sent again, or summarised anew."""
    chunk = await found_summary(services, tenant, conversation_id, summary_id)
    deleted = await services.store.rest_change(delete_chunk, tenant, chunk.id)
    services.compactor.memory.forget_chunks(tenant, [chunk.id])
    if not deleted:
        raise SummaryNotFound(conversation_id, summary_id)
    return SummariesDeletedOut(conversation_id=conversation_id, data=deleted)


@router.get("/search", tags=["summaries"])
async def search(
    services: TheServices, tenant: Tenant, q: Text = "", limit: Limit = 20, after: After = None
) -> Listing[SummaryOut]:
    """The caller's summaries that hold `q` in their text, values or user's words, newest first."""
    if not q.strip():
        raise InvalidRequest("q must hold the text to look for; it is empty.", "q")
    found = await services.store.rest(search_summaries, tenant, q.strip(), Paging(limit, after, "desc"))
    return listing(found, summary_out)


@router.get("/tenant", tags=["tenant"])
async def read_tenant(tenant: Tenant) -> TenantOut:
    """Say which tenant this key belongs to."""
    return TenantOut(id=tenant)


@router.delete("/tenant", tags=["tenant"])
async def delete_tenant(services: TheServices, tenant: Tenant) -> DeletedOut:
    """Deletes everything stored for the caller. Summaries that are being made will not be stored."""

    # `wait` does not cancel the task, so the data are erased even if the client disconnects.
    erasing = services.tasks.start(services.erase(tenant), f"erasing {tenant}")
    await asyncio.wait({erasing})
    erasing.result()
    return DeletedOut(id=tenant, object="tenant.deleted")

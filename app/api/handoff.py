"""Handoff: what is stored of a conversation as one document to go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from app.api.dependencies import ConversationId, Tenant, TheServices, known
from app.compaction.chunks import SummaryChunk
from app.compaction.handoff import handoff, standing
from app.conversation.messages import History, Kind, Message
from app.formats.format import WireFormat
from app.formats.raw_json import Unreadable
from app.store import Store, StoredConversation, StoredHistory
from app.store.chunks import chunks_named, latest_summaries

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
    write = await handoff_of(
        services.store, services.formats, tenant, conversation, keeps_messages=services.keeps_messages
    )
    return Markdown(await services.work.do(tenant, write))


async def handoff_of(
    store: Store,
    formats: Sequence[WireFormat],
    tenant: str,
    conversation: StoredConversation,
    *,
    keeps_messages: bool = True,
) -> Callable[[], str]:
    """Read what is stored, and return what writes the document, which may take long. Raises `StoreUnavailable`."""
    id_ = conversation.id
    kept = await store.history(tenant, id_) if keeps_messages else None
    shown = await store.rest(chunks_named, tenant, conversation.summaries)
    stored = await store.rest(latest_summaries, tenant, id_, MOST_SUMMARIES)

    def is_of_it(chunk: SummaryChunk) -> bool:
        return kept is None or chunk.through_digest in kept.digests

    about = {
        "conversation": id_,
        "model": conversation.model,
        "turns": conversation.turns,
        "messages": conversation.messages,
        "latest request": f"{conversation.updated_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    chunks = standing(shown, stored, is_of_it)
    return lambda: handoff(about, chunks, _history(kept, formats) if kept else History(), NOT_KEPT)


def _history(kept: StoredHistory, formats: Sequence[WireFormat]) -> History:
    """Messages after the leading instructions."""
    format_ = next((each for each in formats if each.name == kept.format), None)
    unread = ((message_in(each.sent, format_), each.sent) for each in kept.messages)
    return History(message or Message(Kind.OTHER, "unread", (sent,), b"", b"") for message, sent in unread).rest


def message_in(sent: str, format_: WireFormat | None) -> Message | None:
    """Stored message as its format reads it; None where it cannot be read any more."""
    if format_ is None:
        return None
    try:
        return format_.message(format_.raw_of(sent.encode("utf-8", "surrogatepass"))).message
    except Unreadable:
        return None

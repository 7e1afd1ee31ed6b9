"""REST that changes summaries: a text of one's own, one that is not to be used any more, a compaction undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.core.history.secrets import Scrub
from app.core.summary.versions import edited, last_compaction
from app.core.view.chunks import SummaryChunk
from app.errors import InvalidRequest, SummaryNotActive, SummaryNotFound
from app.proxy.services import Services
from app.rest.dependencies import Body, ConversationId, Tenant, TheServices, known
from app.rest.summaries import SummaryOut, found_summary, summary_out
from app.store.chunks import chunks_named, deactivate_summaries, read_summaries, replace_summary
from app.store.pages import Paging
from app.wire.members import RawObject, Unreadable

LONGEST_BODY = 200_000
"""Bytes of a body; no summary is as long."""
MOST_LINES = 1_000
NEWEST = 100
"""Number of latest summaries among which the last compaction is looked for."""
_MEMBERS = ("text", "values", "rules")
_LINES: dict[str, Any] = {"type": "array", "maxItems": MOST_LINES, "items": {"type": "string"}}
_EDIT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "values": _LINES, "rules": _LINES},
}
_EXAMPLE = {"text": "The customer asked about the orders ORD-0001 to ORD-0012; all are on their way."}
_WHAT_TO_SEND = 'Send {"text": "..."}, the new text of the summary; "values" and "rules" are lists of lines beside it.'


class DeactivatedOut(BaseModel):
    """Summaries that no payload uses from now on. They stay readable."""

    conversation_id: str
    object: Literal["summaries.deactivated"] = "summaries.deactivated"
    data: list[str] = Field(description="Their ids, with those of every fold over any of them.")


router = APIRouter(prefix="/context/conversations/{conversation_id}/summaries", tags=["summaries"])


@router.patch(
    "/{summary_id}",
    openapi_extra={
        "requestBody": {"content": {"application/json": {"schema": _EDIT, "example": _EXAMPLE}}, "required": True}
    },
)
async def edit_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str, body: Body
) -> SummaryOut:
    """The summary with this text in place of its own, as its next version: payloads use it from the next request on.
    What it replaces stays readable, and every fold over it is not used any more."""
    members = _read_edit(body, services.scrub)
    old = await _active(services, tenant, conversation_id, summary_id)
    conversation = await known(services, tenant, conversation_id)
    count, budget = services.measuring.summaries_of(conversation.model, tenant, services.format)
    new = await services.work.do(tenant, lambda: edited(old, conversation_id, count, **members))
    most = max(budget.summary, old.tokens)
    if new.tokens > most:
        shown, room = (round(budget.line.ratio * tokens) for tokens in (new.tokens, most))
        raise InvalidRequest(
            f"The summary would take about {shown} tokens with its values and rules; it may take {room}"
            " (summary.max_tokens, and a share of the model's window).",
            "text",
        )
    if new is old:
        return summary_out(old)
    stored = await services.store.rest_change(replace_summary, tenant, old.id, new)
    services.compactor.forget_summaries(tenant, [old.id])
    if stored is None:
        raise _not_active(old.id)
    return summary_out(stored)


@router.delete("/{summary_id}")
async def deactivate_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> DeactivatedOut:
    """No payload uses the summary any more, nor a fold over it: its messages are sent again, or summarised anew."""
    chunk = await _active(services, tenant, conversation_id, summary_id)
    return await _deactivated(services, tenant, conversation_id, [chunk])


@router.post("/undo")
async def undo_compaction(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeactivatedOut:
    """The same for all that the last compaction made: the last one in the latest payload, or else the one that was
    stored last."""
    conversation = await known(services, tenant, conversation_id)
    sent = await services.store.request(chunks_named, tenant, conversation.summaries)
    page = await services.store.rest(read_summaries, tenant, conversation_id, Paging(NEWEST, order="desc"))
    made = last_compaction(sent, page.data)
    if not made:
        raise SummaryNotFound(f"The conversation {conversation_id!r} has no summary that is in use.")
    return await _deactivated(services, tenant, conversation_id, made)


async def _active(services: Services, tenant: str, conversation_id: str, summary_id: str) -> SummaryChunk:
    """Stored summary that is in use. Raises `SummaryNotFound` and `SummaryNotActive`."""
    chunk = await found_summary(services, tenant, conversation_id, summary_id)
    if chunk.deactivated_at is not None:
        raise _not_active(summary_id)
    return chunk


def _not_active(summary_id: str) -> SummaryNotActive:
    return SummaryNotActive(
        f"The summary {summary_id!r} is not in use any more: it was edited, deactivated or undone. The list of the"
        " conversation's summaries says which ones are."
    )


async def _deactivated(
    services: Services, tenant: str, conversation_id: str, chunks: Sequence[SummaryChunk]
) -> DeactivatedOut:
    asked = [chunk.id for chunk in chunks]
    done = await services.store.rest_change(deactivate_summaries, tenant, asked)
    services.compactor.forget_summaries(tenant, asked)
    if not done:
        raise _not_active(asked[0])
    return DeactivatedOut(conversation_id=conversation_id, data=done)


def _read_edit(body: bytes, scrub: Scrub) -> dict[str, Any]:
    """Text, values and rules that replace the summary's own, without secrets. Raises `InvalidRequest`."""
    if len(body) > LONGEST_BODY:
        raise InvalidRequest(f"The body has {len(body)} bytes; a summary fits into {LONGEST_BODY}.", "text")
    try:
        given = RawObject(body)
        members: dict[str, Any] = {name: value for name in _MEMBERS if (value := given.value(name)) is not None}
    except Unreadable:
        members = {}
    if not members:
        raise InvalidRequest(_WHAT_TO_SEND, "text")
    text = members.get("text", " - ")
    if not isinstance(text, str):
        raise InvalidRequest(_WHAT_TO_SEND, "text")
    if not text.strip():
        raise InvalidRequest("The text is empty. To have the summary used no more, delete it.", "text")
    for name in ("values", "rules"):
        _check_lines(name, members.get(name, []))
    return {
        name: scrub(new) if isinstance(new, str) else [scrub(line) for line in new] for name, new in members.items()
    }


def _check_lines(name: str, lines: object) -> None:
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InvalidRequest(f"{name} is a list of texts, one for each line.", name)
    if len(lines) > MOST_LINES:
        raise InvalidRequest(f"{name} holds {len(lines)} lines; at most {MOST_LINES} can be kept.", name)
    for line in lines:
        if not line.strip() or len(line.splitlines()) > 1:
            raise InvalidRequest(f"{name} holds {line!r:.100}, which is not one line of text.", name)

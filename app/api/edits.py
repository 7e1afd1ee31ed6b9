"""REST that changes summaries: a person's text in place of a summary's, and deletion."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.dependencies import Body, ConversationId, Tenant, TheServices, known
from app.api.summaries import SummaryOut, found_summary, no_summary, summary_out
from app.core.history.secrets import Scrub
from app.core.summary.correction import corrected
from app.errors import InvalidRequest
from app.formats.members import RawObject, Unreadable
from app.store.chunks import delete_chunk, replace_chunk

LONGEST_BODY = 200_000
"""Bytes of a body; no summary is as long."""
MOST_LINES = 1_000
_MEMBERS = ("text", "values", "rules")
_LINES: dict[str, Any] = {"type": "array", "maxItems": MOST_LINES, "items": {"type": "string"}}
_EDIT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "values": _LINES, "rules": _LINES},
}
_EXAMPLE = {"text": "The customer asked about the orders ORD-0001 to ORD-0012; all are on their way."}
_WHAT_TO_SEND = 'Send {"text": "..."}, the new text of the summary; "values" and "rules" are lists of lines beside it.'


class SummariesDeletedOut(BaseModel):
    conversation_id: str
    object: Literal["summaries.deleted"] = "summaries.deleted"
    data: list[str] = Field(description="Ids of the summary and of every fold that stood for it.")


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
    """Replaces the summary: a new one with this text stands for its messages, under an id of its own, from the next
    request on. Every fold that stood for it is deleted."""
    members = _read_edit(body, services.scrub)
    old = await found_summary(services, tenant, conversation_id, summary_id)
    conversation = await known(services, tenant, conversation_id)
    count, budget = services.measuring.summaries_of(conversation.model, tenant, services.format)
    new = await services.work.do(tenant, lambda: corrected(old, conversation_id, count, **members))
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
    stored = await services.store.rest_change(replace_chunk, tenant, old.id, new)
    services.compactor.forget_summaries(tenant, [old.id])
    if stored is None:
        raise no_summary(conversation_id, summary_id)
    return summary_out(stored)


@router.delete("/{summary_id}")
async def delete_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummariesDeletedOut:
    """Deletes the summary and every fold that stands for it: its messages are sent again, or summarised anew."""
    chunk = await found_summary(services, tenant, conversation_id, summary_id)
    deleted = await services.store.rest_change(delete_chunk, tenant, chunk.id)
    services.compactor.forget_summaries(tenant, [chunk.id])
    if not deleted:
        raise no_summary(conversation_id, summary_id)
    return SummariesDeletedOut(conversation_id=conversation_id, data=deleted)


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
        raise InvalidRequest("The text is empty. To be rid of the summary, delete it.", "text")
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

"""REST that compacts: for gateways that send the request themselves, and on demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import ceil
from time import monotonic
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from app.core.reasons import Code
from app.core.stages.ladder import Decision
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import build_view, paths, widest_path
from app.errors import InvalidRequest, TooManyCompactions
from app.proxy.intake import Understood, read, understand
from app.proxy.naming import encoded_name
from app.proxy.observe import Observation
from app.proxy.record import REQUEST, Record
from app.proxy.services import Services
from app.rest.rest import (
    CHAT_BODY,
    Body,
    ConversationId,
    SummaryOut,
    Tenant,
    TheServices,
    known,
    readable,
    summary_out,
)
from app.wire.chat_completions import Bounds, ChatRequest, read_focus, read_request
from app.wire.members import RawObject, Unreadable


class CompactionOut(BaseModel):
    """What would be sent to the provider."""

    object: Literal["compaction"] = "compaction"
    model: str
    messages: list[dict[str, Any]] = Field(description="To be sent in place of those that came.")
    context_status: str
    context: dict[str, Any]


class ForcedCompactionOut(CompactionOut):
    summaries: list[SummaryOut] = Field(description="Those that were made for it.")


NO_MESSAGES = (
    "Steno does not keep messages, so it can only compact those you send:"
    ' {"model": "...", "messages": [...], "instructions": "..."}, as in a chat completions request.'
)

router = APIRouter(prefix="/context", tags=["context"])


@router.post("/compact", openapi_extra=CHAT_BODY, response_model=CompactionOut)
async def compact(request: Request, services: TheServices, tenant: Tenant, body: Body) -> Response:
    """What Steno would send for this chat completions body. Summaries are made and kept; the model is asked nothing."""
    record: Record = request.scope[REQUEST]
    _count(services, tenant)
    with readable():
        chat = await read(services, tenant, body)
        understood = await understand(services, chat, tenant, request.scope["headers"], record.request_id)
    decision = await _prepare(services, understood, record)
    return _answer(await understood.beside(lambda: _compaction(services, understood, decision)))


@router.post("/conversations/{conversation_id}/compact", openapi_extra=CHAT_BODY, response_model=ForcedCompactionOut)
async def compact_conversation(
    request: Request, services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Response:
    """Summarises now what would be summarised when the window is full. The body is a chat completions request;
    `instructions` says what the summary is to look after."""
    record: Record = request.scope[REQUEST]
    _count(services, tenant)
    await known(services, tenant, conversation_id)
    chat = await services.work.do(tenant, lambda: _read_forced(body, services.bounds))
    # First, so that no other name in the request stands before it.
    headers = [(b"x-context-conversation-id", encoded_name(conversation_id)), *request.scope["headers"]]
    with readable():
        understood = await understand(services, chat, tenant, headers, record.request_id)
    await understood.counted()
    held = await _chunks(services, understood)
    threshold = await understood.beside(partial(_threshold, understood, held.values()))
    due = replace(chat, threshold=threshold)
    with readable():
        understood = await understand(services, due, tenant, headers, record.request_id)
    # Masking alone would do for the numbers, but what was asked for is a summary.
    job = understood.job
    understood = replace(understood, job=replace(job, policy=replace(job.policy, mask=None)))
    decision = await _prepare(services, understood, record)
    made = [chunk for id_, chunk in (await _chunks(services, understood)).items() if id_ not in held]
    summaries = [summary_out(chunk).model_dump(mode="json") for chunk in made]
    shown = await understood.beside(lambda: _compaction(services, understood, decision))
    return _answer({**shown, "summaries": summaries})


def _count(services: Services, tenant: str) -> None:
    """Raises `TooManyCompactions`."""
    if seconds := services.quotas.force(tenant):
        most = services.settings.limits.forced_compactions_per_minute
        raise TooManyCompactions(
            f"{most} compactions were asked for in the last minute, which is all that one key may have"
            f" (limits.forced_compactions_per_minute). Ask again in {ceil(seconds)} s.",
            seconds,
        )


def _read_forced(body: bytes, bounds: Bounds) -> ChatRequest:
    """Raises `InvalidRequest`."""
    try:
        chat = read_request(body, bounds)
    except Unreadable as error:
        if error.reason is Code.UNREADABLE and _lacks_messages(body):
            raise InvalidRequest(NO_MESSAGES, "messages") from error
        with readable():
            raise
    if not chat.raw_messages:
        raise InvalidRequest(NO_MESSAGES, "messages")
    return replace(chat, focus=read_focus(chat.source.value("instructions"), "instructions") or chat.focus)


def _lacks_messages(body: bytes) -> bool:
    try:
        return RawObject(body).value("messages") is None
    except Unreadable:
        return True


def _threshold(understood: Understood, chunks: Iterable[SummaryChunk]) -> int:
    """The largest that what is stored already cannot meet, so that a compaction is due.

    Not the smallest there is: target, tail and summaries are measured by it.
    """
    conversation = understood.job.conversation
    smallest = build_view(conversation, widest_path(paths(conversation, chunks))).tokens
    return max(1, understood.job.budget.line.reported(smallest) - 1)


async def _chunks(services: Services, understood: Understood) -> dict[str, SummaryChunk]:
    job = understood.job
    found = await services.store.chunks_in(job.tenant, job.series, job.conversation.cut_digests)
    return {chunk.id: chunk for chunk in found}


async def _prepare(services: Services, understood: Understood, record: Record) -> Decision:
    """As for a chat request: what it showed is remembered, so that the next one is recognised."""
    began = monotonic()
    decision = await services.compactor.prepare(understood.job)
    await understood.counted()
    record.decided(understood, decision, began)
    services.store.record(await understood.beside(lambda: understood.seen(decision)))
    return decision


def _compaction(services: Services, understood: Understood, decision: Decision) -> dict[str, Any]:
    payload = RawObject(Observation(services, understood, decision).body()).raw("messages")
    return {
        "object": "compaction",
        "model": understood.request.model,
        "messages": msgspec.Raw(payload or b"[]"),
        "context_status": decision.status,
        "context": understood.report(decision),
    }


def _answer(shown: dict[str, Any]) -> Response:
    # Not through pydantic: the messages keep their bytes.
    return Response(msgspec.json.encode(shown), media_type="application/json")

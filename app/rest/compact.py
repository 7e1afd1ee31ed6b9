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
from app.proxy.archiving import archive
from app.proxy.caller import Caller
from app.proxy.facts import Facts
from app.proxy.intake import count, read, take_in
from app.proxy.naming import encoded_name
from app.proxy.record import REQUEST, RequestRecord
from app.proxy.report import context_of, seen
from app.proxy.services import Services
from app.rest.dependencies import (
    REQUEST_BODY,
    Body,
    ConversationId,
    Tenant,
    TheServices,
    format_of,
    known,
    readable,
)
from app.rest.summaries import SummaryOut, summary_out
from app.wire.format import WireFormat, WireRequest
from app.wire.members import RawObject, Unreadable
from app.wire.options import read_focus


class CompactionOut(BaseModel):
    """What would be sent to the provider."""

    object: Literal["compaction"] = "compaction"
    format: str
    model: str
    messages: list[dict[str, Any]] = Field(description="To be sent in place of those that came, in the same format.")
    context_status: str
    context: dict[str, Any]


class ForcedCompactionOut(CompactionOut):
    summaries: list[SummaryOut] = Field(description="Those that were made for it.")


NO_MESSAGES = (
    "Steno does not keep messages, so it can only compact those you send:"
    ' {"model": "...", "messages": [...], "instructions": "..."}, as in a chat completions request.'
)

router = APIRouter(prefix="/context", tags=["compactions"])


@router.post("/compact", openapi_extra=REQUEST_BODY, response_model=CompactionOut)
async def compact(request: Request, services: TheServices, tenant: Tenant, body: Body) -> Response:
    """What Steno would send for this request; its `format` is chat_completions unless it says otherwise. Summaries are
    made and kept; the model is asked nothing."""
    record: RequestRecord = request.scope[REQUEST]
    _count(services, tenant)
    format_ = await format_of(services, tenant, body)
    caller = Caller(tenant, request.scope["headers"], format_)
    with readable(format_):
        facts = await take_in(services, await read(services, caller, body), caller, record.request_id)
    decision = await _prepare(services, facts, record)
    return _answer(await facts.job.beside(services.work, lambda: _compaction(facts, decision)))


@router.post("/conversations/{conversation_id}/compact", openapi_extra=REQUEST_BODY, response_model=ForcedCompactionOut)
async def compact_conversation(
    request: Request, services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Response:
    """Summarises now what would be summarised when the window is full. The body is a request, in chat
    completions unless its `format` says otherwise; `context.instructions` says what the summary is to look after, and
    in chat completions `instructions`, too."""
    record: RequestRecord = request.scope[REQUEST]
    _count(services, tenant)
    await known(services, tenant, conversation_id)
    format_ = await format_of(services, tenant, body)
    asked = await services.work.do(tenant, lambda: _read_forced(services, format_, body))
    # First, so that no other name in the request stands before it.
    headers = [(b"x-context-conversation-id", encoded_name(conversation_id)), *request.scope["headers"]]
    caller = Caller(tenant, headers, format_)
    with readable(format_):
        facts = await take_in(services, asked, caller, record.request_id)
    await count(services, tenant, facts.job.conversation, facts.prompt)
    held = await _chunks(services, facts)
    threshold = await facts.job.beside(services.work, partial(_threshold, facts, held.values()))
    with readable(format_):
        facts = await take_in(services, asked.asking(threshold=threshold), caller, record.request_id)
    # Masking alone would do for the numbers, but what was asked for is a summary.
    job = facts.job
    facts = replace(facts, job=replace(job, policy=replace(job.policy, mask=None)))
    decision = await _prepare(services, facts, record)
    made = [chunk for id_, chunk in (await _chunks(services, facts)).items() if id_ not in held]
    summaries = [summary_out(chunk).model_dump(mode="json") for chunk in made]
    shown = await job.beside(services.work, lambda: _compaction(facts, decision))
    return _answer({**shown, "summaries": summaries})


def _count(services: Services, tenant: str) -> None:
    """Raises `TooManyCompactions`."""
    if seconds := services.quotas.force(tenant):
        most = services.limits.forced_compactions_per_minute
        raise TooManyCompactions(
            f"{most} compactions were asked for in the last minute, which is all that one key may have"
            f" (limits.forced_compactions_per_minute). Ask again in {ceil(seconds)} s.",
            seconds,
        )


def _read_forced(services: Services, format_: WireFormat, body: bytes) -> WireRequest:
    """Raises `InvalidRequest`."""
    is_first = format_ is services.format
    try:
        asked = format_.read(body, services.bounds)
    except Unreadable as error:
        if is_first and error.reason is Code.UNREADABLE and _lacks_messages(body):
            raise InvalidRequest(NO_MESSAGES, "messages") from error
        with readable(format_):
            raise
    if not asked.raw_messages:
        raise InvalidRequest(NO_MESSAGES, "messages")
    if not is_first:  # There `instructions` may be a member of its own.
        return asked
    return asked.asking(focus=read_focus(RawObject(body).value("instructions"), "instructions") or asked.focus)


def _lacks_messages(body: bytes) -> bool:
    try:
        return RawObject(body).value("messages") is None
    except Unreadable:
        return True


def _threshold(facts: Facts, chunks: Iterable[SummaryChunk]) -> int:
    """The largest that what is stored already cannot meet, so that a compaction is due.

    Not the smallest there is: target, tail and summaries are measured by it.
    """
    conversation = facts.job.conversation
    smallest = build_view(conversation, widest_path(paths(conversation, chunks))).tokens
    return max(1, facts.job.budget.line.reported(smallest) - 1)


async def _chunks(services: Services, facts: Facts) -> dict[str, SummaryChunk]:
    job = facts.job
    cuts = await job.beside(services.work, lambda: job.conversation.cut_digests)
    found = await services.store.chunks_in(job.tenant, job.series, cuts)
    return {chunk.id: chunk for chunk in found}


async def _prepare(services: Services, facts: Facts, record: RequestRecord) -> Decision:
    """As for a chat request: what it showed is remembered, so that the next one is recognised."""
    began = monotonic()
    decision = await services.compactor.prepare(facts.job)
    await count(services, facts.job.tenant, facts.job.conversation, facts.prompt)
    record.decided(facts, decision, began, waited=False)
    services.store.record(await facts.job.beside(services.work, lambda: seen(facts, decision)))
    if services.keeps_messages:
        archive(services, facts)
    return decision


def _compaction(facts: Facts, decision: Decision) -> dict[str, Any]:
    return {
        "object": "compaction",
        "format": facts.format.name,
        "model": facts.request.model,
        "messages": msgspec.Raw(facts.format.messages_in(facts.payload(decision))),
        "context_status": decision.status,
        "context": context_of(facts, decision),
    }


def _answer(shown: dict[str, Any]) -> Response:
    # Not through pydantic: the messages keep their bytes.
    return Response(msgspec.json.encode(shown), media_type="application/json")

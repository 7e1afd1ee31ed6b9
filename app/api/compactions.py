"""REST routes of compactions: plans of requests, compacted payloads, and compactions on demand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec.structs import replace
from pydantic import BaseModel, Field

from app.api.conversations import SummaryOut, summary_out
from app.api.dependencies import (
    STATUSES,
    Body,
    ConversationId,
    OfFormat,
    Tenant,
    TheServices,
    format_of,
    known,
    readable,
    request_body,
)
from app.compaction.chunks import SummaryChunk
from app.compaction.decision import Decision
from app.compaction.planning_state import build_view, paths, widest_path
from app.compaction.request import ChatRequest
from app.compaction.verify import coverage_of
from app.errors import InvalidRequest
from app.formats.format import WireFormat
from app.formats.paths import BY_NAME
from app.formats.raw_json import RawObject
from app.formats.requests import BOUNDS, WireRequest, is_given, read_focus
from app.http.headers import CONVERSATION_ID
from app.proxy.caller import Caller
from app.proxy.conversation_ids import encoded_name
from app.proxy.exchange import Services
from app.proxy.learn import conversation_seen, latest_history, plan_of
from app.proxy.reply import context_of
from app.proxy.request import count_messages, parse_request, split_body
from app.proxy.request_log import REQUEST, RequestRecord
from app.store import StoredConversation
from app.store.chunks import chunks_in

NO_MESSAGES = (
    "Steno does not keep messages, so it can only compact those you send:"
    ' {"model": "...", "messages": [...], "instructions": "..."}, as in a chat completions request.'
)
NOT_KEPT = (
    "The messages of the conversation's latest request are not stored as they were sent: they came before messages were"
    " kept, their secrets were removed, or they are too many. Send them."
)


async def _asked(
    services: Services, tenant: str, conversation: StoredConversation, body: bytes
) -> tuple[WireFormat, WireRequest, bytes | None]:
    """Read the request in the body. If the body has no messages, build the request from the stored messages, and also
    return the digest of the client's original history. Raises `InvalidRequest`."""
    format_ = await format_of(services, tenant, body)

    def sent() -> tuple[RawObject, WireRequest | None]:
        with readable(format_):
            members = RawObject(body.strip() or b"{}")
            return members, format_.read(body) if is_given(members, format_.spec.history) else None

    members, wire = await services.work.do(tenant, sent)
    head: bytes | None = None
    if wire is None:
        if not services.keeps_messages:
            raise InvalidRequest(NO_MESSAGES, "messages")
        format_, wire, head = await _stored(services, tenant, conversation, members)
    elif format_ is not services.format:  # Other formats may have a member `instructions` of their own.
        return format_, wire, None
    return format_, wire.asking(focus=read_focus(members.value("instructions"), "instructions")), head


async def _stored(
    services: Services, tenant: str, conversation: StoredConversation, members: RawObject
) -> tuple[WireFormat, WireRequest, bytes]:
    """Build a request from the stored messages. Return format, request, and digest of the client's original history."""
    history = await services.store.history(tenant, conversation.id)
    format_ = BY_NAME.get(history.format) if history else None
    if history is None or history.head is None or format_ is None or len(history.messages) > BOUNDS.messages:
        raise InvalidRequest(NOT_KEPT, "messages")
    model, context = members.value("model"), members.raw("context")
    named = model if isinstance(model, str) else conversation.model

    def read() -> WireRequest:
        body = format_.assembled(named, [message.sent.encode() for message in history.messages])
        if context is not None:
            body = RawObject(body).spliced(add=b'"context":' + context)
        return format_.read(body)

    with readable(format_):
        return format_, await services.work.do(tenant, read), history.head


class CompactionOut(BaseModel):
    """Payload that would be sent to the provider."""

    object: Literal["compaction"] = "compaction"
    format: str
    model: str
    messages: list[dict[str, Any]] = Field(
        description="Messages to send in place of the request's, in the same format."
    )
    context_status: str
    context: dict[str, Any]


class ForcedCompactionOut(CompactionOut):
    summaries: list[SummaryOut] = Field(description="Summaries that were made for this request.")


class PlanOut(BaseModel):
    """Plan of a request: what would happen to it now; summaries that would be made are imagined at their largest."""

    object: Literal["plan"] = "plan"
    format: str
    context_status: str = Field(description=f"{STATUSES}.")
    context: dict[str, Any]
    parts: list[dict[str, Any]]
    summaries_to_make: int
    messages_to_summarize: int
    budget: dict[str, int | str]
    plan: dict[str, Any] | None = Field(
        description="Numbers of the choice, in the provider's tokens, and its `steps` in order; null where nothing"
        " is due."
    )


router = APIRouter(prefix="/context", tags=["compactions"])


@router.post("/plan", openapi_extra=request_body(OfFormat))
async def plan(request: Request, services: TheServices, tenant: Tenant, body: Body) -> PlanOut:
    """Plans this request; its `format` is chat_completions unless it says otherwise. Nothing is sent to the provider,
    nothing is stored."""
    chat = await parsed(request, services, tenant, body, remember=False)
    await count_messages(services, tenant, chat.conversation, chat.prompt)
    decision = chat.with_output_limits(await services.compactor.dry_run(chat).prepare())
    budget = chat.budget
    return PlanOut(
        format=chat.format.name,
        context_status=decision.status,
        context=dict(context_of(chat, decision)),
        parts=await chat.beside(
            services.work.do, lambda: coverage_of(chat.conversation, decision.view, budget.line, chat.cost)
        ),
        summaries_to_make=len(decision.made),
        messages_to_summarize=sum(c.last_index - c.first_index + 1 for c in decision.made if c.level == 0),
        budget={
            "window": budget.window,
            "window_source": chat.window.source,
            "limit": budget.line.to_provider_tokens(budget.limit),
            "trigger": budget.line.to_provider_tokens(min(budget.trigger.quiet_tokens, budget.limit)),
            "target": budget.line.to_provider_tokens(budget.target),
        },
        plan=await chat.beside(services.work.do, lambda: plan_of(chat, decision)),
    )


@router.post("/compact", openapi_extra=request_body(OfFormat), response_model=CompactionOut)
async def compact(request: Request, services: TheServices, tenant: Tenant, body: Body) -> Response:
    """Makes the payload that Steno would send for this request; its `format` is chat_completions unless it says
    otherwise. Summaries are made and kept; the model is asked nothing."""
    chat = await parsed(request, services, tenant, body)
    decision = await _prepare(services, chat, request.scope[REQUEST])
    shown = await chat.beside(services.work.do, lambda: _compaction(chat, decision))
    return Response(msgspec.json.encode(shown), media_type="application/json")  # Pydantic would change the messages.


@router.post(
    "/conversations/{conversation_id}/compact", openapi_extra=request_body(OfFormat), response_model=ForcedCompactionOut
)
async def compact_conversation(
    request: Request, services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Response:
    """Summarises now the messages that would be summarised when the window is full. The body is a request, in chat
    completions unless its `format` says otherwise; without messages it is about those that are stored.
    `context.instructions` says what the summary is to look after, and in chat completions `instructions`, too."""
    record: RequestRecord = request.scope[REQUEST]
    conversation = await known(services, tenant, conversation_id)
    format_, wire, head = await _asked(services, tenant, conversation, body)
    # This header is the first, and so overrides other names in the request.
    headers = [(CONVERSATION_ID, encoded_name(conversation_id)), *request.scope["headers"]]
    caller = Caller(tenant, headers, format_, target=_target(request, format_))
    with readable(format_):
        chat = await parse_request(services, wire, caller, record.request_id)
    # If secrets were removed from the stored messages, the client's requests could not use a summary of them.
    if head not in (None, chat.conversation.chain.digests[-1]):
        raise InvalidRequest(NOT_KEPT, "messages")
    await count_messages(services, tenant, chat.conversation, chat.prompt)
    held = await _chunks(services, chat)
    # The client wants a new summary: lower the trigger below the size with stored summaries, and switch masks off.
    threshold = await chat.beside(services.work.do, partial(_threshold, chat, held.values()))
    with readable(format_):
        chat = await parse_request(services, wire.asking(threshold=threshold), caller, record.request_id)
    chat = replace(chat, policy=replace(chat.policy, mask=None))
    decision = await _prepare(services, chat, record)
    made = [chunk for id_, chunk in (await _chunks(services, chat)).items() if id_ not in held]
    summaries = [summary_out(chunk).model_dump(mode="json") for chunk in made]
    shown = await chat.beside(services.work.do, lambda: _compaction(chat, decision))
    return Response(msgspec.json.encode({**shown, "summaries": summaries}), media_type="application/json")


async def parsed(
    request: Request, services: Services, tenant: str, body: bytes, *, remember: bool = True
) -> ChatRequest:
    """Parse a request. Its member `format` names its format. `remember=False`: a dry run. Raises `InvalidRequest`."""
    format_ = await format_of(services, tenant, body)
    caller = Caller(tenant, request.scope["headers"], format_, target=_target(request, format_))
    with readable(format_):
        wire = await split_body(services, caller, body)
        return await parse_request(services, wire, caller, request.scope[REQUEST].request_id, remember=remember)


def _target(request: Request, format_: WireFormat) -> bytes:
    """Return path and query for a request in this format. The query is that of `request`, and may contain a key."""
    return (b"" if format_.spec.address else format_.path) + b"?" + bytes(request.scope["query_string"])


def _threshold(chat: ChatRequest, chunks: Iterable[SummaryChunk]) -> int:
    """Return a trigger in the provider's tokens, just below the size of the smallest view with stored summaries.

    At this trigger, a compaction is due. A smaller trigger would make target, tail and summaries needlessly small.
    """
    conversation = chat.conversation
    smallest = build_view(conversation, widest_path(paths(conversation, chunks))).tokens
    return max(1, chat.budget.line.to_provider_tokens(smallest) - 1)


async def _chunks(services: Services, chat: ChatRequest) -> dict[str, SummaryChunk]:
    cuts = await chat.beside(services.work.do, lambda: chat.conversation.cut_digests)
    found = await services.store.request(chunks_in, chat.tenant, chat.series, cuts)
    return {chunk.id: chunk for chunk in found}


async def _prepare(services: Services, chat: ChatRequest, record: RequestRecord) -> Decision:
    """Prepare the payload as for a chat request, and log the decision. Unless the conversation was erased meanwhile,
    store the request's state, so that Steno recognises the conversation's next request."""
    began = monotonic()
    decision = await services.compactor.for_request(chat).prepare()
    await count_messages(services, chat.tenant, chat.conversation, chat.prompt)
    record.decided(chat, decision, seconds=round(monotonic() - began, 3), waited=False)
    if not services.store.is_erased(*chat.conversation_key, chat.epoch):
        services.store.writes.record(await chat.beside(services.work.do, lambda: conversation_seen(chat, decision)))
        if services.keeps_messages:
            services.store.writes.record_history(latest_history(chat))
    return decision


def _compaction(chat: ChatRequest, decision: Decision) -> dict[str, Any]:
    return {
        "object": "compaction",
        "format": chat.format.name,
        "model": chat.wire.model,
        "messages": msgspec.Raw(chat.format.messages_in(chat.payload(decision))),
        "context_status": decision.status,
        "context": context_of(chat, decision),
    }

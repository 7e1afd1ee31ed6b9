"""REST over what is stored: conversations, summaries, coverage, and the dry run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, get_args

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from app.core.stages.ladder import Status
from app.core.view.coverage import coverage_of
from app.errors import InvalidRequest, SummaryNotFound
from app.providers.providers import Provider
from app.proxy.caller import Caller
from app.proxy.intake import count, read, take_in
from app.proxy.record import REQUEST
from app.proxy.report import context_of
from app.proxy.services import Services
from app.rest.dependencies import (
    CHAT_BODY,
    Body,
    ConversationId,
    Limit,
    Listing,
    Order,
    SummaryOut,
    Tenant,
    TheServices,
    known,
    listing,
    no_conversation,
    readable,
    summary_out,
)
from app.store import Page, StoredCalibration, StoredConversation, StoreUnavailable, UnknownCursor

STATUSES = ", ".join(get_args(Status))


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


class CalibrationOut(BaseModel):
    id: str
    object: Literal["calibration"] = "calibration"
    upstream: str
    model: str
    formula: str = Field(description="What the estimates were counted with.")
    tools: bool = Field(description="Whether it holds for requests with tools or for those without.")
    ratio: float = Field(description="Tokens the provider counts for one that is estimated.")
    offset: float = Field(description="Tokens the provider counts in every prompt beside those.")
    samples: int = Field(description="Answered requests it was learnt from.")
    source: Literal["prior", "learnt"] = Field(description="prior: what is expected of the model's family.")
    note: str | None = Field(description="Why somebody should look at it.")
    updated_at: datetime


class ModelOut(BaseModel):
    id: str
    object: Literal["model_window"] = "model_window"
    upstream: str = Field(description="The upstream's name in the settings.")
    context_window: int = Field(description="Tokens, prompt and completion together.")
    max_input_tokens: int | None = Field(description="What the prompt may have, where that is less.")
    max_output_tokens: int | None = Field(description="What an answer may have.")
    source: Literal["config", "provider", "learnt", "bundled", "default"]
    note: str | None = Field(description="What is to be known about it.")
    base_model: str = Field(description="The model it is counted and sized as.")
    listed: bool = Field(description="Whether the provider lists it.")


class DeletedOut(BaseModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class PlanOut(BaseModel):
    """What would happen to a request now; summaries that would be made are imagined at their largest."""

    object: Literal["plan"] = "plan"
    context_status: str = Field(description=f"{STATUSES}.")
    context: dict[str, Any]
    parts: list[dict[str, Any]]
    summaries_to_make: int
    messages_to_summarize: int
    budget: dict[str, int | str]


router = APIRouter(prefix="/context", tags=["context"])


@router.get("/conversations")
async def list_conversations(
    services: TheServices, tenant: Tenant, limit: Limit = 20, after: str | None = None, order: Order = "desc"
) -> Listing[ConversationOut]:
    """The caller's conversations, newest first."""
    try:
        return listing(await services.store.conversations(tenant, limit=limit, after=after, order=order), _conversation)
    except UnknownCursor as error:
        raise InvalidRequest(str(error), "after") from error


@router.get("/conversations/{conversation_id}")
async def read_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> ConversationOut:
    """One conversation, as of its latest request."""
    return _conversation(await known(services, tenant, conversation_id))


@router.delete("/conversations/{conversation_id}")
async def delete_conversation(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> DeletedOut:
    """Forgets a conversation and the summaries it made. One in the making is not stored any more."""
    services.conversations.forget(tenant, conversation_id)
    was_there = await services.store.delete_conversation(tenant, conversation_id)
    # Not before: a request may have read them meanwhile.
    services.compactor.forget(tenant, conversation_id)
    if not was_there:
        raise no_conversation(conversation_id)
    return DeletedOut(id=conversation_id)


@router.get("/conversations/{conversation_id}/summaries")
async def list_summaries(
    services: TheServices,
    tenant: Tenant,
    conversation_id: ConversationId,
    limit: Limit = 20,
    after: str | None = None,
    order: Order = "asc",
) -> Listing[SummaryOut]:
    """The summaries that a conversation made or uses, oldest first."""
    await known(services, tenant, conversation_id)
    try:
        page = await services.store.summaries(tenant, conversation_id, limit=limit, after=after, order=order)
    except UnknownCursor as error:
        raise InvalidRequest(str(error), "after") from error
    return listing(page, summary_out)


@router.get("/conversations/{conversation_id}/summaries/{summary_id}")
async def read_summary(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, summary_id: str
) -> SummaryOut:
    chunk = await services.store.summary(tenant, conversation_id, summary_id)
    if chunk is None:
        raise SummaryNotFound(f"The conversation {conversation_id!r} has no summary {summary_id!r}.")
    return summary_out(chunk)


@router.get("/conversations/{conversation_id}/coverage")
async def read_coverage(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> CoverageOut:
    """The latest payload in order: which messages were summarised, carried, shortened or verbatim."""
    conversation = await known(services, tenant, conversation_id)
    parts = msgspec.json.decode(conversation.coverage or b"[]", type=list[dict[str, Any]])
    return CoverageOut(
        conversation_id=conversation_id,
        context_status=conversation.status,
        tokens=conversation.tokens_after or 0,
        parts=parts,
    )


@router.get("/calibration")
async def list_calibrations(
    services: TheServices, tenant: Tenant, limit: Limit = 20, after: str | None = None, order: Order = "desc"
) -> Listing[CalibrationOut]:
    """How the caller's estimates become the provider's tokens, for the models its requests taught; newest first."""
    await services.providers.flush()
    try:
        page = await services.store.calibrations_of(tenant, limit=limit, after=after, order=order)
    except UnknownCursor as error:
        raise InvalidRequest(str(error), "after") from error
    return listing(page, partial(_calibration, services))


@router.get("/models")
async def list_models(
    request: Request,
    services: TheServices,
    tenant: Tenant,
    limit: Limit = 20,
    after: str | None = None,
    order: Order = "asc",
) -> Listing[ModelOut]:
    """The windows Steno goes by, and where each is from: of models that the provider lists, that the settings name, and
    that the caller used; by name. A list that the provider shows to keys alone is read with the caller's own.
    A model that several upstreams list is there once for each, and counts once."""
    used: list[str] = []
    with suppress(StoreUnavailable):  # What is in memory is shown all the same.
        used = await services.store.models_used(tenant)
    # The caller's key is meant for the default upstream; to another one it goes with the chats that are sent there.
    await services.providers.default.windows.show(tenant, request.scope["headers"])
    providers = services.providers.known(tenant, used)
    page = _page(list(providers), limit, after, order)
    return Listing(
        data=[_model(services, provider, name, tenant) for name in page.data for provider in providers[name]],
        first_id=page.first_id,
        last_id=page.last_id,
        has_more=page.has_more,
    )


@router.post("/plan", openapi_extra=CHAT_BODY)
async def plan(request: Request, services: TheServices, tenant: Tenant, body: Body) -> PlanOut:
    """What would happen to this chat completions body. Nothing is sent to the provider, nothing is stored."""
    caller = Caller(tenant, request.scope["headers"], request.scope[REQUEST].request_id, services.format)
    with readable():
        facts = await take_in(services, await read(services, caller, body), caller, remember=False)
    job = facts.job
    await count(services, tenant, job.conversation, facts.prompt)
    prepared, made = await services.compactor.plan(job)
    budget = job.budget
    return PlanOut(
        context_status=prepared.status,
        context=context_of(facts, prepared),
        parts=await job.beside(services.work, lambda: coverage_of(job.conversation, prepared.view, budget.line)),
        summaries_to_make=len(made),
        messages_to_summarize=sum(c.last_index - c.first_index + 1 for c in made if c.level == 0),
        budget={
            "window": budget.window,
            "window_source": facts.window.source,
            "limit": budget.line.reported(budget.limit),
            "trigger": budget.line.reported(min(budget.trigger.tokens, budget.limit)),
            "target": budget.line.reported(budget.target),
        },
    )


def _conversation(conversation: StoredConversation) -> ConversationOut:
    before, after, window = (
        tokens or 0 for tokens in (conversation.tokens_before, conversation.tokens_after, conversation.window)
    )
    return ConversationOut(
        id=conversation.id,
        model=conversation.model,
        turns=conversation.turns,
        messages=conversation.messages,
        requests=conversation.requests,
        context_status=conversation.status,
        reason=conversation.reason,
        tokens={"estimated": before, "forwarded": after, "saved": before - after, "window": window},
        forked_from=conversation.forked_from,
        created_at=conversation.created_at,
        updated_at=conversation.updated_at,
    )


def _page(names: Sequence[str], limit: int, after: str | None, order: Order) -> Page[str]:
    """A page of a list that is in memory, in order."""
    if after is not None and after not in names:
        raise InvalidRequest(f"The list holds no {after!r} to continue after.", "after")
    ordered = sorted(names, reverse=order == "desc")
    start = ordered.index(after) + 1 if after is not None else 0
    shown = ordered[start : start + limit]
    return Page(shown, shown[0] if shown else None, shown[-1] if shown else None, start + limit < len(ordered))


def _model(services: Services, provider: Provider, name: str, tenant: str) -> ModelOut:
    window = provider.windows.of(name, tenant)
    return ModelOut.model_validate(
        {
            "id": name,
            "upstream": provider.name,
            "context_window": window.context,
            "max_input_tokens": window.max_input,
            "max_output_tokens": window.max_output,
            "source": window.source,
            "note": window.note,
            "base_model": services.base_model(name),
            "listed": provider.windows.listed(name, tenant),
        }
    )


def _calibration(services: Services, stored: StoredCalibration) -> CalibrationOut:
    key, calibration = stored.key, services.providers.in_force(stored)
    return CalibrationOut(
        id=key.id,
        upstream=key.upstream,
        model=key.model,
        formula=key.formula,
        tools=key.tools,
        ratio=round(calibration.ratio, 4),
        offset=round(calibration.offset, 1),
        samples=calibration.samples,
        source="learnt" if calibration.samples else "prior",
        note=calibration.note,
        updated_at=stored.updated_at,
    )

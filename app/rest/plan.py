"""REST over the dry run: what would happen to a request."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from app.core.view.coverage import coverage_of
from app.proxy.caller import Caller
from app.proxy.intake import count, read, take_in
from app.proxy.record import REQUEST
from app.proxy.report import context_of
from app.rest.dependencies import REQUEST_BODY, STATUSES, Body, Tenant, TheServices, format_of, readable


class PlanOut(BaseModel):
    """What would happen to a request now; summaries that would be made are imagined at their largest."""

    object: Literal["plan"] = "plan"
    format: str
    context_status: str = Field(description=f"{STATUSES}.")
    context: dict[str, Any]
    parts: list[dict[str, Any]]
    summaries_to_make: int
    messages_to_summarize: int
    budget: dict[str, int | str]


router = APIRouter(prefix="/context", tags=["compactions"])


@router.post("/plan", openapi_extra=REQUEST_BODY)
async def plan(request: Request, services: TheServices, tenant: Tenant, body: Body) -> PlanOut:
    """What would happen to this request; its `format` is chat_completions unless it says otherwise. Nothing is sent to
    the provider, nothing is stored."""
    format_ = await format_of(services, tenant, body)
    caller, request_id = Caller(tenant, request.scope["headers"], format_), request.scope[REQUEST].request_id
    with readable(format_):
        facts = await take_in(services, await read(services, caller, body), caller, request_id, remember=False)
    job = facts.job
    await count(services, tenant, job.conversation, facts.prompt)
    prepared, made = await services.compactor.plan(job)
    budget = job.budget
    return PlanOut(
        format=format_.name,
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

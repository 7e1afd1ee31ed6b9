"""REST over plans: what would happen to a request, and what happened to the latest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from app.api.compact import parsed
from app.api.dependencies import (
    STATUSES,
    Body,
    ConversationId,
    OfFormat,
    Tenant,
    TheServices,
    known,
    request_body,
)
from app.compaction.fallback import StepName
from app.compaction.verify import coverage_of
from app.proxy.learn import plan_of
from app.proxy.reply import context_of
from app.proxy.request import count_messages


class StepOut(BaseModel):
    step: StepName
    outcome: str = Field(
        description="Of stored: fits, too_large. Of mask: set, put_off. Of summarise: made, failed, in_background, ..."
        " Of the others: sent, refused."
    )
    tokens: int | None = Field(description="Of the prompt with it; of summarise: of the summaries that were made.")
    summaries: int = Field(description="How many stand in the prompt, or were made.")
    reason: str | None


class PlanDetailsOut(BaseModel):
    """How a payload came about. Tokens are the provider's."""

    request_id: str
    turn: int
    window: int
    window_source: str = Field(description="config, provider, learnt, bundled or default.")
    limit: int = Field(description="What the prompt may use of the window.")
    trigger: int = Field(description="Over so many tokens a compaction is due.")
    target: int = Field(description="What a compaction aims at.")
    floor: int = Field(description="What nothing can take away: instructions, tools and the last user message.")
    estimated: int = Field(description="Of what came.")
    forwarded: int = Field(description="Of what was sent.")
    context_status: str = Field(description=f"{STATUSES}.")
    actions: list[str]
    reason: str | None
    steps: list[StepOut] = Field(description="What was looked at and tried, in order; the last one is what was sent.")
    words: list[str] = Field(description="The same as sentences.")


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
    plan: PlanDetailsOut | None = Field(description="What would be tried, and why; null where nothing is due.")


class ConversationPlanOut(BaseModel):
    conversation_id: str
    object: Literal["conversation.plan"] = "conversation.plan"
    plan: PlanDetailsOut | None = Field(
        description="Of the latest request whose payload was changed, or due to be; null where there was none."
    )


router = APIRouter(prefix="/context", tags=["compactions"])


@router.post("/plan", openapi_extra=request_body(OfFormat))
async def plan(request: Request, services: TheServices, tenant: Tenant, body: Body) -> PlanOut:
    """Plans this request; its `format` is chat_completions unless it says otherwise. Nothing is sent to the provider,
    nothing is stored."""
    chat = await parsed(request, services, tenant, body, remember=False)
    await count_messages(services, tenant, chat.conversation, chat.prompt)
    decision = chat.with_output_limits(await services.compaction.dry_run(chat).prepare())
    budget = chat.budget
    return PlanOut(
        format=chat.format.name,
        context_status=decision.status,
        context=msgspec.to_builtins(context_of(chat, decision)),
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
        plan=_details(await chat.beside(services.work.do, lambda: plan_of(chat, decision))),
    )


@router.get("/conversations/{conversation_id}/plan")
async def read_plan(services: TheServices, tenant: Tenant, conversation_id: ConversationId) -> ConversationPlanOut:
    """How the latest payload that was changed, or due to be, came about: the numbers, what was tried, and why."""
    conversation = await known(services, tenant, conversation_id)
    stored = conversation.plan and msgspec.json.decode(conversation.plan)
    return ConversationPlanOut(conversation_id=conversation_id, plan=_details(stored or None))


def _details(plan: dict[str, Any] | None) -> PlanDetailsOut | None:
    return None if plan is None else PlanDetailsOut.model_validate({**plan, "words": in_words(plan)})


_ATTEMPTS: Mapping[str, str] = {
    "failed": "A summary was due and could not be made",
    "lease_lost": "A summary was being made, and another process made it first",
    "deleted": "A summary was being made when the conversation was deleted",
    "store_away": "The database did not answer",
    "takes_too_long": "A summary is still being made: the request went on without it",
    "awaited": "Another request was making the summary that was due, and this one waited for it",
    "in_background": "A summary is due: it is made after the answer, and this request went on without it",
    "nothing_to_summarise": "A summary was due, but there is nothing left that one could stand for",
    "not_begun": "A summary was due, and none was begun",
}
_SENT: Mapping[str, str] = {
    "least": "The smallest change that suffices was sent",
    "widest": "Every stored summary and mask was used, and that was sent",
    "fit": "Large texts were shortened, and that was sent",
    "prune": "The oldest messages were left out, and the rest was sent",
    "truncate": "All that was left was cut short, and that was sent",
    "without_summaries": "The summaries left too little room: the history was cut and sent without them",
    "unchanged": "The request was sent as it came",
}
_REFUSED: Mapping[str, str] = {
    "least": "The smallest change that stays under the trigger was not enough",
    "widest": "Using every stored summary and mask was not enough",
    "fit": "Shortening large texts was not enough",
    "prune": "Leaving out the oldest messages was not enough",
    "truncate": "Cutting all that was left was not enough",
    "without_summaries": "Cutting the whole history, without summaries, was not enough",
}


def in_words(plan: Mapping[str, Any]) -> list[str]:
    """Sentences for a plan: the numbers first, then each step, then the outcome."""
    sent = f"The provider was sent {plan['forwarded']:,} tokens ({plan['context_status']})"
    return [*_numbers(plan), *map(step_in_words, plan["steps"]), _because(sent, plan["reason"])]


def _numbers(plan: Mapping[str, Any]) -> list[str]:
    came = f"The request came with about {plan['estimated']:,} tokens."
    window = f"The window has {plan['window']:,} tokens ({plan['window_source']})"
    limits = (
        f"{window}; the prompt may use {plan['limit']:,} of them. Over {plan['trigger']:,} a compaction is due; it"
        f" aims at {plan['target']:,}, and nothing can bring the prompt under {plan['floor']:,}."
    )
    return [came, limits]


def step_in_words(step: Mapping[str, Any]) -> str:
    """Sentence for one step of a plan."""
    name, outcome = step["step"], step["outcome"]
    if name == "stored":
        suffices = "enough" if outcome == "fits" else "over the trigger"
        return f"With {_summaries(step)} of those stored the prompt has {step['tokens']:,} tokens: {suffices}."
    if name == "mask":
        if outcome == "set":
            return "Results of tools that the assistant has answered are shortened from here on."
        return "Shortening results of tools was put off: it would cost more than it saves."
    if name == "summarise":
        if outcome == "made":
            was = "was" if step["summaries"] == 1 else "were"
            return f"{_summaries(step).capitalize()} of {step['tokens'] or 0:,} tokens in all {was} made."
        return _because(_ATTEMPTS.get(outcome, outcome), step["reason"])
    sentences = _SENT if outcome == "sent" else _REFUSED
    return _because(f"{sentences.get(name, name)} ({step['tokens']:,} tokens)", step["reason"])


def _because(text: str, reason: str | None) -> str:
    return f"{text}: {reason}." if reason else f"{text}."


def _summaries(step: Mapping[str, Any]) -> str:
    number = step["summaries"]
    return "one summary" if number == 1 else f"{number or 'no'} summaries"

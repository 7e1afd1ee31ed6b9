"""REST over the ledger: what a conversation's calls to the providers took."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.core.tokens.usage import Kind, Purpose, spends
from app.rest.dependencies import (
    ConversationId,
    Limit,
    Listing,
    Order,
    Tenant,
    TheServices,
    known,
    known_cursor,
    listing,
)
from app.store import StoredUsage, TurnUsage, UsageSum, UsageSums

DECIMALS = 9
"""Beyond them the parts of a millionth are only what adding up floating point numbers leaves."""


class SpendOut(BaseModel):
    kind: Kind
    amount: int = Field(description="Tokens, negative: they are spent.")
    rate: float | None = Field(description="Price of a million tokens, where one is set.")
    value: float | None = Field(description="Amount times rate: millionths of the prices' currency unit.")


class TokensOut(BaseModel):
    estimated: int | None = Field(description="Steno's estimate of what came; null for a summary.")
    forwarded: int | None = Field(description="Steno's estimate of what was sent; null for a summary.")
    saved: int = Field(description="estimated - forwarded; 0 for a summary, and where no answer was given.")
    prompt: int | None = Field(description="As the provider reported, null where it did not; likewise the others.")
    completion: int | None
    cached: int | None = Field(description="Of the prompt, from the provider's cache.")
    reasoning: int | None = Field(description="Of the completion, for reasoning.")


class UsageOut(BaseModel):
    """One answered call to a provider."""

    id: str
    object: Literal["usage"] = "usage"
    request_id: str = Field(description="Shared by all calls that one request of the client led to.")
    turn: int = Field(description="User messages in the request's history.")
    purpose: Purpose
    upstream: str
    model: str
    status: int
    context_status: str | None
    tokens: TokensOut
    rows: list[SpendOut]
    cost: float | None = Field(description="In the prices' currency unit; null where a price or a count is not known.")
    created_at: datetime


class SummarySumOut(BaseModel):
    calls: int
    prompt: int
    completion: int
    cached: int


class SumOut(BaseModel):
    """What was reported, added up."""

    requests: int
    calls: int = Field(description="Answered calls, those for summaries not counted; likewise the next four.")
    prompt: int
    completion: int
    cached: int
    reasoning: int
    summary: SummarySumOut = Field(description="The calls for summaries, those in the background too.")
    saved: int
    unreported: int = Field(description="Answers whose prompt the provider did not tell: they count as 0 here.")
    unpriced: int = Field(description="Answers whose cost is not known: they count as 0 in the cost.")
    cost: float | None = Field(description="Of all calls, in the prices' currency unit; null if none is known.")


class TurnOut(SumOut):
    turn: int
    first_prompt: int | None = Field(description="Prompt of the first answered call, as reported.")
    first_forwarded: int | None = Field(description="Steno's estimate of the same.")


class UsageListing(Listing[UsageOut]):
    conversation_id: str
    totals: SumOut
    turns: list[TurnOut] = Field(
        description="The turns that the calls on this page belong to, each with all its calls."
    )


router = APIRouter(prefix="/context/conversations/{conversation_id}", tags=["context"])


@router.get("/usage")
async def read_usage(
    services: TheServices,
    tenant: Tenant,
    conversation_id: ConversationId,
    limit: Limit = 20,
    after: str | None = None,
    order: Order = "desc",
) -> UsageListing:
    """What the conversation's calls took: in all, by turn, and each by itself, newest first."""
    await known(services, tenant, conversation_id)
    with known_cursor():
        found = await services.store.usage(tenant, conversation_id, limit=limit, after=after, order=order)
    return UsageListing(
        conversation_id=conversation_id,
        totals=_sum(found.sums),
        turns=list(map(_turn, found.turns)),
        **dict(listing(found.page, _record)),
    )


def _record(stored: StoredUsage) -> UsageOut:
    record = stored.record
    told = asdict(record)
    sizes = {name: told[name] for name in ("estimated", "forwarded", "saved")}
    rows = ({**asdict(spend), "value": _rounded(spend.value)} for spend in spends(record.tokens, record.price))
    shown = {"tokens": sizes | told["tokens"], "rows": list(rows), "cost": _rounded(record.cost)}
    return UsageOut.model_validate({**told, **shown, "created_at": stored.created_at})


def _turn(turn: TurnUsage) -> TurnOut:
    first = turn.first
    return TurnOut(
        turn=turn.turn,
        first_prompt=first and first.tokens.prompt,
        first_forwarded=first and first.forwarded,
        **dict(_sum(turn.sums)),
    )


def _sum(sums: UsageSums) -> SumOut:
    messages, summaries = sums.messages, sums.summaries
    of_both = {
        "unreported": messages.unreported + summaries.unreported,
        "unpriced": messages.unpriced + summaries.unpriced,
        "cost": _rounded(_cost(messages, summaries)),
    }
    return SumOut.model_validate({**asdict(messages), **of_both, "summary": asdict(summaries)})


def _cost(*sums: UsageSum) -> float | None:
    known_costs = [one.cost for one in sums if one.cost is not None]
    return sum(known_costs) if known_costs else None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, DECIMALS)

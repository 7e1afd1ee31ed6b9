"""REST routes of the ledger: tokens and costs of the calls to providers, by conversation or in total."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.api.dependencies import ConversationId, Tenant, TheServices, known, made_of
from app.api.paging import Listing, NewestFirst, listing
from app.errors import InvalidRequest
from app.store import StoredUsage, UsageSum, UsageSums
from app.store.usage import read_records, read_report
from app.tokens.costs import PriceSource, Purpose

USUAL_PERIOD = timedelta(days=30)
LONGEST_PERIOD = timedelta(days=366)
DECIMALS = 9
"""Number of decimals of amounts of money. A float has more decimals, but the last ones are rounding errors."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_BOTH = ("unreported", "unpriced", "list_priced", "billed")
"""Names of the counts in `TotalsOut` that include both calls for answers and calls for summaries."""


class TokensOut(BaseModel):
    estimated: int | None = Field(description="Steno's estimate of what came; null for a summary.")
    forwarded: int | None = Field(description="Steno's estimate of what was sent; null for a summary.")
    saved: int = Field(description="estimated - forwarded; 0 for a summary, and where no answer was given.")
    prompt: int | None = Field(description="As the provider reported, null where it did not; likewise the others.")
    completion: int | None
    cached: int | None = Field(description="Of the prompt, from the provider's cache.")
    written: int | None = Field(description="Of the prompt, written to the provider's cache.")
    reasoning: int | None = Field(description="Of the completion, for reasoning.")
    written_hour: int | None = Field(description="Of those written, what is kept for an hour.")
    audio: int | None = Field(description="Of the prompt, sound that came from no cache.")
    speech: int | None = Field(description="Of the completion, sound.")
    window: int | None = Field(description="The model's, for this request; null for a summary, likewise the next two.")
    limit: int | None = Field(description="Tokens of the window that the prompt might use.")
    trigger: int | None = Field(description="Tokens above which a compaction was due.")
    replaced: int | None = Field(description="Of what a summary was to stand for; null for a message.")
    summary: int | None = Field(description="Of the summary that was kept; null where none was, and for a message.")


class UsageOut(BaseModel):
    """One answered call to a provider."""

    id: str
    object: Literal["usage"] = "usage"
    request_id: str = Field(description="Shared by all calls that one request of the client led to.")
    turn: int = Field(description="User messages in the request's history.")
    purpose: Purpose
    upstream: str
    format: str | None = Field(description="Of the call; null in a record of an earlier release.")
    model: str = Field(description="The one that was asked for.")
    status: int
    context_status: str | None
    actions: list[str] = Field(description="Changes to the request's history; empty for a summary.")
    reason: str | None = Field(description="Why Steno could not do something.")
    waited_seconds: float | None = Field(
        description="Seconds that the request waited for a compaction; null where none was being made for it."
    )
    seconds: float | None = Field(description="Duration of the call for a summary; null for a message.")
    summary_id: str | None = Field(description="The summary that came of it; null where none was kept.")
    tokens: TokensOut
    cost: float | None = Field(description="In the prices' currency unit; null where a price or a count is not known.")
    saved_cost: float | None = Field(
        description="Cost of the client's own request, had it been sent whole, less the cost: negative where that is"
        " more, and for a summary. null where one of them is not known."
    )
    values_kept: float | None = Field(description="Of a summary: the share of its exact values that its text holds.")
    price_source: PriceSource | None = Field(
        description="provider: what it says it charged, in US dollars. settings: the operator's price."
        " registry: the public list price, in US dollars."
    )
    priced_model: str | None = Field(description="Model of the price: the one that answered, where it is known.")
    tier: str | None = Field(description="The service tier, as the answer says it.")
    created_at: datetime


class CallsOut(BaseModel):
    """Sums of what was reported of calls."""

    calls: int
    prompt: int
    completion: int
    cached: int
    cached_share: float | None = Field(
        description="cached / prompt: what the provider's cache spared; null without a prompt."
    )
    written: int = Field(description="Of the prompts, written to the provider's cache.")


class TooLargeOut(BaseModel):
    """Requests that came larger than the model's window leaves room for, and were answered."""

    requests: int
    tokens: int = Field(description="Of these requests as they came, by Steno's estimate.")
    saved_cost: float | None = Field(description="Savings on them, as if the window had been large enough.")


class TotalsOut(CallsOut):
    """Sums of what was reported; those of calls and tokens without the calls for summaries, which have their own."""

    reasoning: int
    summary: CallsOut = Field(description="Calls for summaries, also in the background.")
    saved: int
    unreported: int = Field(description="Answers without reported prompt tokens. They count as 0 here.")
    unpriced: int = Field(description="Answers of unknown cost. They count as 0 in the cost.")
    cost: float | None = Field(description="Cost of all calls, in the prices' currency unit; null if no cost is known.")
    list_priced: int = Field(description="Calls priced by public list prices, in US dollars.")
    billed: int = Field(description="Calls priced by the charge that their provider reported, in US dollars.")
    saved_cost: float | None = Field(
        description="Cost of the client's requests if Steno had sent them unchanged, less the cost of all calls;"
        " negative if the calls cost more. Calls are left out if either cost is unknown; null if all are left out."
    )
    too_large: TooLargeOut


class SumOut(TotalsOut):
    requests: int = Field(description="Of the client, that the calls belong to.")


class UsageListing(Listing[UsageOut]):
    conversation_id: str
    totals: SumOut


class UsageGroupOut(TotalsOut):
    """The calls of one model, or of one day in UTC."""

    model: str | None = None
    day: date | None = None


class UsageReportOut(BaseModel):
    """Usage of all calls of the caller in a period."""

    object: Literal["usage_report"] = "usage_report"
    since: datetime
    until: datetime | None = Field(description="null: until now.")
    totals: TotalsOut
    groups: list[UsageGroupOut] = Field(description="By model, the largest prompts first; or by day. Empty without by.")
    has_more: bool = Field(description="Whether there are more groups.")


router = APIRouter(prefix="/context", tags=["usage"])


@router.get("/usage")
async def report_usage(
    services: TheServices,
    tenant: Tenant,
    since: Annotated[datetime | None, Query(description="30 days before its end, if it is not given.")] = None,
    until: Annotated[datetime | None, Query(description="Not included. The period has at most 366 days.")] = None,
    model: Annotated[str | None, Query(description="Of this model alone.")] = None,
    by: Annotated[Literal["day", "model"] | None, Query(description="Add groups: a day, or a model, each.")] = None,
) -> UsageReportOut:
    """Usage of the caller's calls in all conversations together, and how much of it came from the provider's cache.

    A time without an offset is in UTC.
    """
    begin, end = _period(since, until)
    within = (round(time.timestamp() * 1000) for time in (begin, end))
    found = await services.store.rest(read_report, tenant, *within, model=model, by=by)
    return UsageReportOut(
        since=begin,
        until=end if until else None,
        totals=TotalsOut.model_validate(totals_of(found.sums)),
        groups=[UsageGroupOut.model_validate({**totals_of(each.sums), by: each.key}) for each in found.groups],
        has_more=found.has_more,
    )


@router.get("/conversations/{conversation_id}/usage")
async def read_usage(
    services: TheServices, tenant: Tenant, conversation_id: ConversationId, paging: NewestFirst
) -> UsageListing:
    """Usage of the conversation's calls: in all, and each by itself, newest first."""
    await known(services, tenant, conversation_id)
    found = await services.store.rest(read_records, tenant, conversation_id, paging)
    return UsageListing(
        conversation_id=conversation_id,
        totals=SumOut.model_validate({**totals_of(found.sums), "requests": found.sums.messages.requests}),
        **dict(listing(found.page, _record)),
    )


def _record(stored: StoredUsage) -> UsageOut:
    record = stored.record
    decided, made = record.decided, record.made
    return made_of(
        UsageOut,
        record,
        actions=list(decided.actions) if decided else [],
        reason=decided and decided.reason,
        waited_seconds=decided and decided.waited_seconds,
        seconds=made and made.seconds,
        summary_id=made and made.summary_id,
        tokens={
            "estimated": record.estimated,
            "forwarded": record.forwarded,
            "saved": record.saved,
            **asdict(record.tokens),
            **{name: getattr(decided, name, None) for name in ("window", "limit", "trigger")},
            **{name: getattr(made, name, None) for name in ("replaced", "summary")},
        },
        cost=_rounded(record.cost),
        saved_cost=_rounded(record.saved_cost),
        created_at=stored.created_at,
    )


def _period(since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    """Return beginning and end of a period. Without `until`, the end is tomorrow, because the database's clock may
    be ahead of Steno's. Raises `InvalidRequest`."""
    now = datetime.now(UTC)
    latest = now + timedelta(days=1)
    end = _in_utc(until, latest) if until else latest
    begin = _in_utc(since, latest) if since else max(EPOCH + USUAL_PERIOD, min(end, now)) - USUAL_PERIOD
    if begin >= end:
        sent = {name: time.isoformat() for name, time in (("since", since), ("until", until)) if time}
        told = ", ".join(f"{name}={time}" for name, time in sent.items())
        raise InvalidRequest(
            f"A period begins before its end, after 1970 and not in the future: not {told}.", next(iter(sent))
        )
    if end - begin > LONGEST_PERIOD + timedelta(days=1):
        raise InvalidRequest(f"A period has at most {LONGEST_PERIOD.days} days; ask for several.", "since")
    return begin, end


def _in_utc(time: datetime, latest: datetime) -> datetime:
    """Return the time in UTC, but not before 1970 or after `latest`: Python cannot convert some extreme times."""
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return EPOCH if zoned < EPOCH else latest if zoned > latest else zoned.astimezone(UTC)


def totals_of(sums: UsageSums) -> dict[str, Any]:
    """Return the members of `TotalsOut`."""
    messages, summaries = sums.messages, sums.summaries

    def known(name: str, calls: str, *of: UsageSum) -> float | None:
        """Return the sum of costs; None if no call's cost is known."""
        return _rounded(sum(getattr(each, name) for each in of)) if any(getattr(each, calls) for each in of) else None

    def shown(each: UsageSum) -> dict[str, Any]:
        return {**asdict(each), "cached_share": round(each.cached / each.prompt, 4) if each.prompt else None}

    return {
        **shown(messages),
        **{name: getattr(messages, name) + getattr(summaries, name) for name in _OF_BOTH},
        "cost": known("cost", "priced", messages, summaries),
        "saved_cost": known("saved_cost", "compared", messages, summaries),
        "too_large": {
            "requests": messages.too_large,
            "tokens": messages.too_large_tokens,
            "saved_cost": known("too_large_saved_cost", "too_large_compared", messages),
        },
        "summary": shown(summaries),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, DECIMALS)

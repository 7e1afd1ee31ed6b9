"""`/ui`: what Steno did and saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from math import isinf
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from fastapi.responses import Response
from msgspec import Struct
from prometheus_client.samples import Sample

from app.compaction.fallback import Status
from app.inspector.formats import DOLLARS, short, whole, words
from app.inspector.pages import address
from app.inspector.sawtooth import Stacked, stacked
from app.inspector.visits import PageRoute, TheVisit, Visit, redirected
from app.store import DayUsage, Sorting, StoredCalibration, UnknownCursor, UsageOverview, UsageSum, Wanted
from app.store.calibrations import read_models_used, read_own_calibrations
from app.store.conversations import search_conversations
from app.store.histories import find_titles
from app.store.tables import Paging
from app.store.usage import add_sums, read_overview

PERIODS = (7, 14, 30)
USUAL_DAYS = 14
SENT, SAVED, FAILED = "sent", "saved", "failed"
FATES = ("full", "summarized", "trimmed", "bypassed")
MOST_CALIBRATIONS = 30

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class Totals(Struct, frozen=True):
    """Figures of a period."""

    answers: UsageSum
    summaries: UsageSum

    @property
    def came(self) -> int:
        """Tokens that would have been sent, had nothing been done."""
        return self.answers.prompt + self.answers.saved

    @property
    def saved_share(self) -> float | None:
        return self.answers.saved / self.came if self.came else None

    @property
    def cached_share(self) -> float | None:
        return self.answers.cached / self.answers.prompt if self.answers.prompt else None

    @property
    def net(self) -> float | None:
        """Money that was saved, negative where more was paid than without Steno."""
        return self.answers.saved_cost + self.summaries.saved_cost if self.priced else None

    @property
    def paid(self) -> float:
        return self.answers.cost + self.summaries.cost

    @property
    def priced(self) -> int:
        return self.answers.priced + self.summaries.priced

    @property
    def currency(self) -> str:
        """Currency sign of the amounts: list prices and providers' bills are in US dollars, the operator's own prices
        in an unknown unit."""
        in_dollars = sum(of.list_priced + of.billed for of in (self.answers, self.summaries))
        return DOLLARS if in_dollars == self.priced else ""


class Counted(Struct, frozen=True):
    """A count since the start, of all tenants together."""

    name: str
    number: float
    share: float
    """Share of the largest count, from 0 to 1."""


@router.get("/ui")
async def show_overview(visit: TheVisit, days: Annotated[int, Query(ge=1, le=366)] = USUAL_DAYS) -> Response:
    usage = await visit.find(read_overview, days)
    calibrations = await visit.find(read_own_calibrations, Paging(MOST_CALIBRATIONS, order="desc"))
    return visit.page(
        "overview.html",
        days=days,
        periods=PERIODS,
        totals=totals_of(usage.days),
        tokens=tokens_by_day(usage, days),
        fates=fates_by_day(usage, days),
        table=by_day(usage),
        models=usage.models,
        calibrations=[calibration_of(visit, stored) for stored in calibrations.data],
        **(since_start(visit) if visit.sees_server else {}),
    )


def totals_of(days: Iterable[DayUsage]) -> Totals:
    kept = list(days)
    return Totals(
        add_sums(each.sums for each in kept if each.purpose == "message"),
        add_sums(each.sums for each in kept if each.purpose != "message"),
    )


def tokens_by_day(usage: UsageOverview, days: int) -> Stacked:
    """Chart of what was sent each day, and on top of it what was saved."""
    places = []
    for day, parts in _each_day(usage, days):
        totals = totals_of(parts)
        sent, saved = totals.answers.prompt, max(totals.answers.saved, 0)
        label = f"{_named(day)}: {short(sent)} tokens sent, {short(saved)} saved"
        places.append((_named(day), label, {SENT: float(sent), SAVED: float(saved)}))
    return stacked(places, (SENT, SAVED))


def fates_by_day(usage: UsageOverview, days: int) -> Stacked:
    """Chart of answers by what was done to the context, and of those that no provider gave."""
    places = []
    for day, parts in _each_day(usage, days):
        amounts = dict.fromkeys((*FATES, FAILED), 0.0)
        for part in parts:
            if part.purpose == "message":
                amounts[part.context_status or "full"] += part.sums.calls - part.sums.failed
                amounts[FAILED] += part.sums.failed
        said = ", ".join(f"{whole(number)} {kind}" for kind, number in amounts.items() if number)
        places.append((_named(day), f"{_named(day)}: {said or 'no calls'}", amounts))
    return stacked(places, (*FATES, FAILED))


def by_day(usage: UsageOverview) -> list[tuple[date, Totals]]:
    """Table of the days, the latest first."""
    days = sorted({each.day for each in usage.days}, reverse=True)
    return [(day, totals_of(each for each in usage.days if each.day == day)) for day in days]


def since_start(visit: Visit) -> dict[str, Any]:
    """Counts of all tenants since this Steno was started, from the metrics."""
    visit.services.store.writes.catch_up()
    samples = visit.inspector.metrics.samples()
    [waited], [seconds] = (samples[f"steno_summary_wait_seconds_{name}"] for name in ("count", "sum"))
    return {
        "compactions": _counted(samples["steno_compactions_total"], "outcome"),
        "upstream_errors": _counted(samples["steno_upstream_errors_total"], "code"),
        "waits": _waits(samples["steno_summary_wait_seconds_bucket"]),
        "waited": waited.value,
        "mean_wait": seconds.value / waited.value if waited.value else None,
    }


def _counted(samples: Iterable[Sample], label: str) -> list[Counted]:
    """Sums that are not 0, by the values of a label, the largest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        sums[sample.labels[label]] += sample.value
    named = sorted(((words(value), number) for value, number in sums.items() if number), key=lambda each: -each[1])
    return [Counted(name, number, number / named[0][1]) for name, number in named]


def _waits(buckets: Iterable[Sample]) -> list[Counted]:
    """Waits by their length, from the cumulative buckets of a histogram."""
    ends = sorted((float(sample.labels["le"]), sample.value) for sample in buckets)
    numbers = [high[1] - low[1] for low, high in pairwise([(0.0, 0.0), *ends])]
    most, bounds = max(numbers), (0.0, *(bound for bound, _ in ends))
    if not most:
        return []
    names = [f"over {low:g} s" if isinf(high) else f"{low:g} to {high:g} s" for low, high in pairwise(bounds)]
    return [Counted(name, number, number / most) for name, number in zip(names, numbers, strict=True)]


def _name_of(visit: Visit, base_url: str) -> str:
    """Name of an upstream, whose address is the operator's to see; empty for one that there is no more."""
    providers = visit.services.providers.all
    return next((each.name for each in providers if each.settings.base_url == base_url), "")


def calibration_of(visit: Visit, stored: StoredCalibration) -> dict[str, Any]:
    learnt = visit.services.providers.in_force(stored)
    return {
        "model": stored.key.model,
        "tools": stored.key.tools,
        "upstream": stored.key.upstream if visit.sees_server else _name_of(visit, stored.key.upstream),
        "ratio": learnt.line.ratio,
        "offset": learnt.line.offset,
        "samples": learnt.samples,
        "note": learnt.note,
        "updated_at": stored.updated_at,
    }


def _each_day(usage: UsageOverview, days: int) -> list[tuple[date, list[DayUsage]]]:
    """Every day of a period, those without a call too."""
    today = datetime.now(UTC).date()
    wanted = [today - timedelta(days=back) for back in reversed(range(days))]
    return [(day, [each for each in usage.days if each.day == day]) for day in wanted]


def _named(day: date) -> str:
    return f"{day.day} {day:%b}"


PER_PAGE = 50
LONGEST_SEARCH = 200
STATUSES = get_args(Status)
SORTED_BY = {
    "updated": "last request",
    "created": "first request",
    "saved": "tokens saved",
    "size": "size",
    "requests": "requests",
}
HERE = "/ui/conversations"
Text = Annotated[str, Query(max_length=LONGEST_SEARCH)]


@router.get(HERE)
async def list_conversations(
    visit: TheVisit,
    q: Text = "",
    status: Text = "",
    model: Text = "",
    saved: bool = False,
    failed: bool = False,
    sort: Sorting = "updated",
    after: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    wanted = Wanted(text=q.strip(), status=status or None, model=model or None, saved=saved, failed=failed)
    # As they stand in the form, so that a link to the next page asks for the same.
    asked = {"q": q.strip(), "status": status, "model": model, "saved": saved or None, "failed": failed or None}
    asked["sort"] = None if sort == "updated" else sort
    try:
        found = await visit.find(search_conversations, wanted, sort, limit=PER_PAGE, after=after)
    except UnknownCursor:
        return redirected(address(HERE, **asked))
    return visit.page(
        "conversations.html",
        found=found,
        titles=await visit.find(find_titles, [each.id for each in found.data]),
        wanted=wanted,
        sort=sort,
        asked=asked,
        is_filtered=wanted != Wanted(),
        first_page=after is None,
        statuses=STATUSES,
        models=await visit.find(read_models_used, 100),
        sorted_by=SORTED_BY,
        here=HERE,
    )

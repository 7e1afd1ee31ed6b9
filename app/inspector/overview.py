"""`/ui`: usage and savings in a period."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from app.api.usage import totals_of
from app.inspector.pages import currency_of, short, whole
from app.inspector.sessions import PageRoute, TheVisit, Visit
from app.store import StoredCalibration, UsageSum, UsageSums
from app.store.calibrations import read_own_calibrations
from app.store.tables import Paging
from app.store.usage import read_report

PERIODS = {1: "24 hours", 7: "7 days", 30: "30 days"}
KINDS = ("full", "summarized", "trimmed", "bypassed", "failed")
"""Kinds of calls: answered calls by context status, and failed calls."""
MOST_CALIBRATIONS = 30
MOST_MODELS = 20
Text = Annotated[str, Query(max_length=200)]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/ui")
@router.get("/ui/")
async def show_overview(visit: TheVisit, days: Annotated[int, Query(ge=1, le=366)] = 1) -> Response:
    """Show the usage of the latest `days` days: by day, or by hour for a single day."""
    starts, size = _starts(days), timedelta(hours=1) if days == 1 else timedelta(days=1)
    within = [round(time.timestamp() * 1_000) for time in (starts[0], starts[-1] + size)]
    usage = await visit.find(read_report, *within, by="hour" if days == 1 else "day")
    periods = dict.fromkeys(starts, UsageSums()) | {each.key: each.sums for each in usage.groups}
    calibrations = await visit.find(read_own_calibrations, Paging(MOST_CALIBRATIONS, order="desc"))
    return visit.page(
        "overview.html",
        days=days,
        periods=PERIODS,
        named=PERIODS.get(days, f"{days} days"),
        totals=totals_of(usage.sums),
        currency=currency_of(usage.sums.messages, usage.sums.summaries),
        is_simulated=visit.is_simulated(visit.services.providers.all),
        tokens=[_tokens(_named(start, days), sums.messages) for start, sums in periods.items()],
        fates=[_fates(_named(start, days), sums.messages) for start, sums in periods.items()],
        kinds=KINDS,
        table=[(start, totals_of(sums)) for start, sums in reversed(periods.items()) if sums != UsageSums()],
        models=(await visit.find(read_report, *within, by="model")).groups[:MOST_MODELS],
        calibrations=[_calibration(visit, stored) for stored in calibrations.data],
        others_exist=await visit.others_exist(),
    )


def _starts(days: int) -> list[datetime]:
    """Return the start times of all bars: one for each hour or day, even if it has no calls."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    if days == 1:
        return [hour - timedelta(hours=back) for back in reversed(range(24))]
    return [hour.replace(hour=0) - timedelta(days=back) for back in reversed(range(days))]


def _named(start: datetime, days: int) -> str:
    return f"{start:%H:%M}" if days == 1 else f"{start.day} {start:%b}"


def _bar(name: str, label: str, amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return a bar of a chart. `label`: its tooltip; `amounts`: numbers by kind, from the bottom up."""
    return {"name": name, "label": label, "amounts": amounts, "total": sum(amounts.values())}


def _tokens(name: str, answers: UsageSum) -> dict[str, Any]:
    sent, saved = answers.prompt, max(answers.saved, 0)
    return _bar(name, f"{name}: {short(sent)} tokens sent, {short(saved)} saved", {"sent": sent, "saved": saved})


def _fates(name: str, answers: UsageSum) -> dict[str, Any]:
    """Return a bar of the answered calls by context status, and of the failed calls."""
    others = {kind: getattr(answers, kind) for kind in KINDS if kind != "full"}
    amounts = {"full": answers.calls - sum(others.values()), **others}
    said = ", ".join(f"{whole(number)} {kind}" for kind, number in amounts.items() if number)
    return _bar(name, f"{name}: {said or 'no calls'}", amounts)


def _calibration(visit: Visit, stored: StoredCalibration) -> dict[str, Any]:
    key, providers = stored.key, visit.services.providers.all
    # Only the operator may see an upstream's address. Tenants see its name, if it is still in the settings.
    name = next((each.name for each in providers if each.settings.base_url == key.upstream), "")
    return {"key": key, "upstream": key.upstream if visit.sees_server else name, "stored": stored}

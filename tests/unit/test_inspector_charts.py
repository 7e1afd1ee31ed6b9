"""The charts of a conversation: where the lines, marks and numbers of its requests stand, and what fills the window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.inspector.charts import ChartedRequest, Compaction, Share, chart_of, payload_shares, requests_of, window_shares
from app.store import StoredUsage, UsageRecord
from app.tokens.costs import DecisionRecord, SummaryStats, Tokens

AT = datetime(2026, 11, 22, tzinfo=UTC)
DECIDED = DecisionRecord(window=8_000, limit=7_600, trigger=5_320, actions=("summarized",), waited_seconds=2.5)


def call(place: int, request: str, purpose: Any = "message", **changes: Any) -> StoredUsage:
    record = UsageRecord(
        tenant="t",
        id=f"{place:04d}",
        conversation_id="c",
        request_id=request,
        turn=1,
        purpose=purpose,
        upstream="default",
        model="m",
        estimated=6_000 if purpose == "message" else None,
        forwarded=2_500 if purpose == "message" else None,
        saved=0,
        tokens=Tokens(prompt=2_510),
        price=None,
        cost=0.5,
        status=200,
        context_status="summarized",
        decided=DECIDED if purpose == "message" else None,
        made=None if purpose == "message" else SummaryStats(1.5, 4_000, 500, f"chk_{place}"),
    )
    return StoredUsage(replace(record, **changes), AT + timedelta(seconds=place))


def test_its_summaries_are_one_compaction_with_all_they_took() -> None:
    (request,) = requests_of([call(0, "a", "summary"), call(1, "a", "summary"), call(2, "a")], 1, 10)
    (made,) = request.compactions
    assert (made.before, made.replaced, made.summaries) == (6_000, 8_000, 1_000)
    assert (made.made, made.seconds, made.cost, made.ahead) == (2, 2.5, "$1.00", False)
    assert request.cost == "$1.50"


def test_a_compaction_begins_at_the_payload_that_would_have_been_without_it() -> None:
    """What is quoted in this payload alone is no part of what was before."""
    (request,) = requests_of([call(0, "a", "summary"), call(1, "a", estimated=9_000, forwarded=2_900)], 1, 10)
    assert [made.before for made in request.compactions] == [2_900 + 4_000 - 500]


def request(number: int, sent: int, forwarded: int | None = None, **changes: Any) -> ChartedRequest:
    compactions = changes.pop("compactions", ())
    decided = DecisionRecord(**{"trigger": 5_600, "limit": 7_600, "window": 8_000, **changes})
    record = call(0, "a", decided=decided).record
    return ChartedRequest(number, AT, record, sent, sent if forwarded is None else forwarded, "", compactions)


def made(before: int, after: int, **changes: Any) -> Compaction:
    known: dict[str, Any] = {"replaced": before - after + 500, "summaries": 500, "made": 1, "calls": 1, "ahead": False}
    return Compaction(before=before, **(known | {"seconds": 3.2, "cost": ""} | changes))


def drawn(*requests: ChartedRequest) -> Any:
    chart = chart_of(requests)
    assert chart is not None
    return SimpleNamespace(**chart)


SIZES = st.tuples(*2 * [st.integers(0, 3_000_000)], *2 * [st.integers(0, 2_000_000)])


@given(st.lists(SIZES, min_size=1, max_size=60))
def test_everything_is_inside_the_chart(requests: list[tuple[int, int, int, int]]) -> None:
    shown = [
        request(
            number,
            sent,
            forwarded,
            trigger=trigger,
            window=window,
            compactions=(made(sent + forwarded, forwarded),) if number % 7 == 0 else (),
        )
        for number, (sent, forwarded, trigger, window) in enumerate(requests, 1)
    ]
    chart = drawn(*shown)
    at = [float(number) for point in chart.area.split() for number in point.split(",")[1:]]
    at += [float(point.split(",")[1]) for point in chart.sent.split()] + [at for at, _ in chart.y_ticks]
    at += [mark[end] for mark in chart.marks for end in ("upper", "lower")]
    assert all(0 <= each <= 100 for each in (*at, *(column.x for column in chart.columns)))


# The window


KINDS = (
    *("verbatim", "summarized", "carried", "pinned", "pruned", "stub", "exact_values", "recalled"),
    *("masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"),
)


def instructions(tokens: int, tools: int = 0) -> dict[str, Any]:
    return {"kind": "instructions", "messages": 1, "tokens": tokens, "tools_tokens": tools}


def part(kind: str, tokens: int) -> dict[str, Any]:
    return {"kind": kind, "tokens": tokens}


def shown(shares: list[Share]) -> dict[str, int]:
    return {share.filling: share.tokens for share in shares}


@given(
    tokens=st.integers(0, 300_000),
    tools=st.integers(0, 400_000),
    parts=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 200_000)), max_size=30),
    window=st.integers(1, 1_000_000),
    limit=st.none() | st.integers(0, 1_200_000),
)
def test_the_shares_add_up_to_the_window(
    tokens: int, tools: int, parts: list[tuple[str, int]], window: int, limit: int | None
) -> None:
    payload = [instructions(tokens, tools), *(part(*each) for each in parts)]
    total = sum(each["tokens"] for each in payload)
    assert sum(payload_shares(payload).values()) == total
    amounts = shown(window_shares(payload, window, limit))
    over = amounts.pop("over", 0)
    assert sum(amounts.values()) == window
    assert over == max(0, total - window)
    assert min(amounts.values()) > 0

"""Teeth: the ledger's records as the requests of a sawtooth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from app.inspector.sawtooth import teeth_of
from app.store import StoredUsage, UsageRecord
from app.tokens.usage import DecisionRecord, SummaryStats, Tokens

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


def test_a_request_is_one_tooth_with_what_was_decided_for_it() -> None:
    (tooth,) = teeth_of([call(0, "a")], 1, 10)
    assert (tooth.sent, tooth.forwarded, tooth.reported, tooth.trigger, tooth.window) == (
        6_000,
        2_500,
        2_510,
        5_320,
        8_000,
    )
    assert (tooth.actions, tooth.waited, tooth.compactions) == (("summarized",), 2.5, ())


def test_its_summaries_are_one_compaction_with_all_they_took() -> None:
    (tooth,) = teeth_of([call(0, "a", "summary"), call(1, "a", "summary"), call(2, "a")], 1, 10)
    (made,) = tooth.compactions
    assert (made.before, made.after, made.replaced, made.summaries) == (6_000, 2_500, 8_000, 1_000)
    assert (made.made, made.seconds, made.cost, made.ahead) == (2, 2.5, 1.0, False)
    assert tooth.cost == 1.5


def test_a_compaction_begins_at_the_previous_payload_with_the_new_messages() -> None:
    """What is quoted in this payload alone is no part of what was before."""
    again = [call(0, "a"), call(1, "b", "summary"), call(2, "b", estimated=7_000, forwarded=2_900)]
    (made,) = teeth_of(again, 2, 10)[1].compactions
    assert (made.before, made.after) == (2_500 + 1_000, 2_900)


def test_summaries_for_later_requests_spare_this_one_nothing() -> None:
    (tooth,) = teeth_of([call(0, "a"), call(1, "a", "background")], 1, 10)
    (made,) = tooth.compactions
    assert (made.before, made.after, made.ahead, made.seconds) == (2_500, 2_500, True, 1.5)


def test_calls_whose_summary_was_not_kept_are_counted_as_failed() -> None:
    failed = SummaryStats(1.5, 4_000)
    (tooth,) = teeth_of([call(0, "a", "summary", made=failed), call(1, "a")], 1, 10)
    (made,) = tooth.compactions
    assert (made.made, made.calls, made.before) == (0, 1, 2_500)


def test_of_a_request_that_was_sent_again_the_last_call_counts() -> None:
    (tooth,) = teeth_of([call(0, "a", status=400, forwarded=7_000), call(1, "a")], 1, 10)
    assert (tooth.status, tooth.forwarded) == (200, 2_500)


def test_requests_are_numbered_to_the_last_one_whatever_is_left_out() -> None:
    teeth = teeth_of([call(place, f"r{place}") for place in reversed(range(5))], 12, 3)
    assert [(tooth.number, tooth.request_id) for tooth in teeth] == [(10, "r2"), (11, "r3"), (12, "r4")]


def test_calls_of_a_request_that_was_never_answered_are_no_tooth() -> None:
    assert teeth_of([call(0, "a", "summary")], 1, 10) == []


def test_a_record_of_an_earlier_release_has_its_sizes_alone() -> None:
    (tooth,) = teeth_of([call(0, "a", decided=None)], 1, 10)
    assert (tooth.trigger, tooth.window, tooth.actions) == (None, None, ())

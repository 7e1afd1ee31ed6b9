"""The ledger: what a call took and cost, in a form that adds up, and never in a request's way."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.core.history.identity import Chain
from app.core.tokens.savings import Estimated
from app.core.tokens.usage import Bill, Price, Spend, Tariff, Tokens, cost, saved, spends
from app.providers.ledger import Ledger, new_request_id
from app.settings import load
from app.store import UsageRecord
from app.telemetry.metrics import Metrics

PRICE = Price(prompt=15, completion=75)
CACHING = Price(prompt=15, completion=75, cached=1.5)


class Kept:
    """A store that keeps records in a list."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []

    def record_usage(self, record: UsageRecord) -> None:
        self.records.append(record)


Call = dict[str, Any]


def history(messages: int, branch: str = "") -> Chain:
    """Each that is longer goes on from a shorter one of the same branch."""
    return Chain(tuple(f"{branch}{number}".encode() for number in range(messages + 1)))


def call(**changes: Any) -> Call:
    members = {
        "tenant": "t",
        "conversation_id": "c",
        "request_id": "req_1",
        "turn": 3,
        "purpose": "message",
        "upstream": "default",
        "format_": "chat_completions",
        "model": "gpt-4o",
        "status": 200,
        "tokens": Tokens(2_761, 100),
        "estimated": 5_000,
        "forwarded": 2_700,
        "context_status": "summarized",
        "chain": history(3),
        "sizes": Estimated(5_000, 2_700),
    }
    return {**members, **changes}


def recorded(*calls: Call, price: Price | None = None) -> list[UsageRecord]:
    store: Any = Kept()
    ledger = Ledger(
        store, lambda asked, _: None if price is None else Tariff(asked, "settings", ((0, price),)), Metrics()
    )
    for each in calls:
        ledger.record(**each)
    records: list[UsageRecord] = store.records
    return records


# Rows


def test_a_rows_value_is_its_amount_times_its_rate() -> None:
    assert spends(Tokens(2_761, 100), PRICE) == (
        Spend("prompt", -2_761, 15, -41_415),
        Spend("completion", -100, 75, -7_500),
    )


def test_a_row_without_a_price_has_its_amount_only() -> None:
    assert spends(Tokens(2_761, 100, 50), None) == (
        Spend("prompt", -2_761, None, None),
        Spend("completion", -100, None, None),
    )


def test_cached_tokens_leave_the_prompts_row_only_for_a_row_of_their_own() -> None:
    tokens = Tokens(2_761, 100, 2_000)
    assert [row.amount for row in spends(tokens, CACHING)] == [-761, -2_000, -100]
    assert [row.amount for row in spends(tokens, PRICE)] == [-2_761, -100]
    assert [row.kind for row in spends(Tokens(2_761, 100, 0), CACHING)] == ["prompt", "completion"]
    assert [row.kind for row in spends(Tokens(2_761, 100, None), CACHING)] == ["prompt", "completion"]


def test_written_tokens_leave_the_prompts_row_only_for_a_row_of_their_own() -> None:
    tokens = Tokens(2_761, 100, 2_000, written=500)
    writing = replace(CACHING, written=18.75)
    assert [(row.kind, row.amount, row.value) for row in spends(tokens, writing)] == [
        ("prompt", -261, -261 * 15),
        ("cached", -2_000, -2_000 * 1.5),
        ("written", -500, -500 * 18.75),
        ("completion", -100, -7_500),
    ]
    assert [row.amount for row in spends(tokens, CACHING)] == [-761, -2_000, -100]
    assert [row.kind for row in spends(Tokens(2_761, 100), writing)] == ["prompt", "completion"]


def test_what_was_not_reported_has_no_row() -> None:
    assert spends(Tokens(), PRICE) == ()
    assert [row.kind for row in spends(Tokens(completion=5), PRICE)] == ["completion"]


def test_the_cost_is_what_the_rows_add_up_to() -> None:
    assert cost(Tokens(2_761, 100), PRICE) == pytest.approx(0.048915)
    assert cost(Tokens(2_761, 100, 2_000), CACHING) == pytest.approx((761 * 15 + 2_000 * 1.5 + 7_500) / 1e6)


def test_a_cost_that_is_not_known_in_full_is_not_known() -> None:
    assert cost(Tokens(2_761, 100), None) is None
    assert cost(Tokens(2_761, None), PRICE) is None
    assert cost(Tokens(None, 100), PRICE) is None


def test_what_is_free_costs_nothing_rather_than_less() -> None:
    assert str(cost(Tokens(2_761, 100), Price(0, 0))) == "0.0"


@pytest.mark.parametrize(
    ("estimated", "forwarded", "status", "expected"),
    [(5_000, 2_700, 200, 2_300), (5_000, 5_000, 200, 0), (5_000, 2_700, 429, 0), (None, 3, 200, 0), (3, None, 200, 0)],
)
def test_tokens_are_saved_where_an_answer_came(
    estimated: int | None, forwarded: int | None, status: int, expected: int
) -> None:
    assert saved(estimated, forwarded, status) == expected


# Records


def test_a_call_is_recorded_with_its_tokens_and_what_they_cost() -> None:
    [record] = recorded(call(), price=PRICE)
    assert record.tokens == Tokens(2_761, 100)
    assert record.cost == pytest.approx(0.048915)
    assert (record.price, record.saved, record.turn, record.request_id) == (PRICE, 2_300, 3, "req_1")


def test_a_call_whose_usage_was_not_told_keeps_its_estimate() -> None:
    [record] = recorded(call(tokens=Tokens()), price=PRICE)
    assert (record.tokens, record.cost) == (Tokens(), None)
    assert (record.estimated, record.forwarded, record.saved) == (5_000, 2_700, 2_300)


def test_ids_grow_in_the_order_of_the_calls() -> None:
    ids = [record.id for record in recorded(*[call()] * 1_000)]
    assert ids == sorted(set(ids))


def test_ids_grow_although_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((2_000_000_000_000_000_000, 1_000_000_000_000_000_000))
    monkeypatch.setattr("app.providers.ledger.time_ns", lambda: next(times))
    first, second = recorded(call(), call())
    assert first.id < second.id


def test_requests_are_told_apart() -> None:
    assert new_request_id() != new_request_id()


def test_a_models_name_is_kept_up_to_a_length() -> None:
    [record] = recorded(call(model="m" * 1_000_000))
    assert record.model == "m" * 300


def test_a_call_that_cannot_be_recorded_fails_nothing() -> None:
    class Broken:
        def record_usage(self, _: UsageRecord) -> None:
            raise RuntimeError

    store: Any = Broken()
    with capture_logs() as logs:
        Ledger(store, lambda *_: None, Metrics()).record(**call())
    assert [entry["event"] for entry in logs] == ["a call was not recorded"]


# Prices


def test_the_first_price_that_matches_holds() -> None:
    settings = load(
        prices=[
            {"match": "gpt-4o-mini*", "prompt": 0.15, "completion": 0.6, "cached": 0.075},
            {"match": "gpt-4o*", "prompt": 2.5, "completion": 10},
        ]
    )
    mini, usual = Price(0.15, 0.6, 0.075), Price(2.5, 10)
    assert settings.tariff_of("openai/gpt-4o-mini") == Tariff("openai/gpt-4o-mini", "settings", ((0, mini),))
    assert settings.tariff_of("gpt-4o-2024-11-20") == Tariff("gpt-4o-2024-11-20", "settings", ((0, usual),))
    assert settings.tariff_of("o3") is None


def test_a_call_is_charged_by_the_model_that_answered() -> None:
    store: Any = Kept()
    tariffs = {name: Tariff(name, "registry", ((0, price),)) for name, price in (("a", PRICE), ("b", CACHING))}
    ledger = Ledger(store, lambda asked, answered: tariffs.get(answered) or tariffs.get(asked), Metrics())
    for answered in ("b", "a", "", "unknown"):
        ledger.record(**call(model="a", bill=Bill(answered, "flex", searches=2)))
    assert [record.priced_model for record in store.records] == ["b", "a", "a", "a"]
    first = store.records[0]
    assert (first.model, first.price, first.price_source) == ("a", CACHING, "registry")
    assert (first.tier, first.searches, first.format) == ("flex", 2, "chat_completions")
    assert (ledger.price_of("a"), ledger.price_of("unknown")) == (PRICE, None)


def test_what_a_provider_charged_is_the_cost_whatever_the_price() -> None:
    billed, unknown = recorded(call(bill=Bill(cost=0.5)), price=PRICE)[0], recorded(call(bill=Bill(cost=0.25)))[0]
    assert (billed.cost, billed.price_source, billed.price, billed.priced_model) == (0.5, "provider", PRICE, "gpt-4o")
    assert (unknown.cost, unknown.price_source, unknown.price, unknown.priced_model) == (0.25, "provider", None, None)
    assert recorded(call(tokens=Tokens(), bill=Bill(cost=0.125)))[0].cost == 0.125


def test_a_tier_without_prices_of_its_own_costs_the_usual_price() -> None:
    long, flex = Price(30, 150), Price(7.5, 37.5)
    tariff = Tariff("m", "registry", ((0, PRICE), (1_000, long)), {"flex": ((0, flex),)}, {"us": 2.0})
    assert tariff.price(1_000) is PRICE
    assert tariff.price(1_001) is long
    assert tariff.price(0) is PRICE
    assert tariff.price(5_000, Bill(tier="flex")) is flex
    assert tariff.price(1_001, Bill(tier="scale")) is long
    assert tariff.price(5_000, Bill(tier="flex", region="us")) == Price(15, 75)
    assert tariff.price(1_000, Bill(region="eu")) is PRICE


# The provider's cache


def warmth(*calls: Call, passed: float = 0.0) -> bool:
    """Whether the conversation of `call` is warm so many seconds after these."""
    now = [0.0]
    store: Any = Kept()
    ledger = Ledger(store, lambda *_: None, Metrics(), lambda: now[0])
    for each in calls:
        ledger.record(**each)
    now[0] = passed
    return ledger.is_warm("t", "c", "gpt-4o")


CACHED = call(tokens=Tokens(1_000, 10, 900))


@pytest.mark.parametrize(
    "tokens",
    [Tokens(1_000, 10, 500), Tokens(1_000, 10, None, None, 1_000), Tokens(1_000, 10, 300, None, 200)],
    ids=["read", "written", "both"],
)
def test_a_prompt_is_warm_where_its_provider_says_that_it_has_most_of_it(tokens: Tokens) -> None:
    assert warmth(call(tokens=tokens))


@pytest.mark.parametrize(
    "told",
    [
        call(tokens=Tokens(1_000, 10, 499)),
        call(tokens=Tokens(1_000, 10)),
        call(tokens=Tokens(None, 10)),
        call(tokens=Tokens(0, 10, 0)),
        call(tokens=CACHED["tokens"], tenant="another"),
        call(tokens=CACHED["tokens"], conversation_id="another"),
        call(tokens=CACHED["tokens"], model="another"),
        call(tokens=CACHED["tokens"], purpose="summary", chain=None),
    ],
)
def test_nothing_is_warm_that_nobody_said_so_of(told: Call) -> None:
    assert not warmth(told)


def test_the_latest_answer_that_says_something_decides() -> None:
    assert not warmth(CACHED, call(tokens=Tokens(1_000, 10, 0)))
    assert warmth(CACHED, call(tokens=Tokens()))


def test_a_cache_is_believed_in_for_five_minutes() -> None:
    assert warmth(CACHED, passed=299)
    assert not warmth(CACHED, passed=301)


def test_what_it_is_paid_to_keep_for_an_hour_is_believed_in_for_one() -> None:
    hour = call(tokens=Tokens(1_000, 10, 0, written=1_000, written_hour=1_000))
    assert warmth(hour, passed=3_599)
    assert not warmth(hour, passed=3_601)


# What was saved

LARGE = call(tokens=Tokens(5_000, 100, 4_000), forwarded=5_000, sizes=Estimated(5_000, 5_000))
"""A request that goes as it came."""


def saved_by(*calls: Call, passed: float = 0.0) -> float | None:
    """Of the last one, so many seconds after the others, in prompt tokens."""
    now, store = [0.0], Kept()
    kept: Any = store
    tariff = Tariff("gpt-4o", "settings", ((0, Price(1, 5, cached=0.1)),))
    ledger = Ledger(kept, lambda *_: tariff, Metrics(), lambda: now[0])
    for each in calls:
        if each is calls[-1]:
            now[0] = passed
        ledger.record(**each)
    saved_cost = store.records[-1].saved_cost
    return None if saved_cost is None else round(saved_cost * 1e6, 3)


COMPACTED = call(
    tokens=Tokens(1_500, 100, 500), estimated=6_000, forwarded=1_500, chain=history(5), sizes=Estimated(6_000, 1_500)
)


def test_a_request_that_went_as_it_came_saved_nothing() -> None:
    assert saved_by(LARGE) == 0.0


def test_a_compaction_is_held_against_the_cache_that_it_broke() -> None:
    """Whole it would have been 1,000 new tokens and 5,000 from the cache; 1,000 were new and 500 from the cache."""
    assert saved_by(LARGE, COMPACTED) == 450.0


def test_a_compaction_after_the_cache_is_gone_saves_all_that_it_leaves_out() -> None:
    assert saved_by(LARGE, COMPACTED, passed=301) == 4_500.0


def test_another_branch_says_nothing_about_the_cache() -> None:
    assert saved_by({**LARGE, "chain": history(3, "other")}, COMPACTED) == 4_500.0
    assert saved_by({**LARGE, "chain": history(6)}, COMPACTED) == 4_500.0


def test_a_summary_saves_nothing_by_itself() -> None:
    assert saved_by(call(purpose="summary", tokens=Tokens(1_000, 100), chain=None, sizes=None)) == -1_500.0


def test_a_refused_call_saves_nothing_that_is_known() -> None:
    assert saved_by(call(status=400, tokens=Tokens())) is None

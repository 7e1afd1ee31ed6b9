"""The ledger: what a call took, cost and saved, in a form that adds up, and never in a request's way."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.conversation.identity import Chain
from app.providers.ledger import Ledger
from app.store import UsageRecord
from app.telemetry.metrics import Metrics
from app.tokens.costs import (
    UNBILLED,
    Bill,
    Charge,
    EarlierRequest,
    Price,
    PromptEstimate,
    Tariff,
    Tokens,
    charge,
    cost,
    earlier_request,
    saved,
    saved_cost,
    uncompacted_usage,
)
from tests.unit.conversations import sure

PRICE = Price(prompt=15, completion=75)


class Kept:
    """A store that keeps records in a list."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []

    def record_usage(self, record: UsageRecord) -> None:
        self.records.append(record)


Call = dict[str, Any]
"""Members of a `UsageRecord`, and the `chain` and `sizes` of its request."""


def enter(ledger: Ledger, call: Call) -> None:
    members = {**call}
    chain, sizes = members.pop("chain"), members.pop("sizes")
    ledger.record(UsageRecord(**members), chain=chain, sizes=sizes)


def call(**changes: Any) -> Call:
    members = {
        "tenant": "t",
        "conversation_id": "c",
        "request_id": "req_1",
        "turn": 3,
        "purpose": "message",
        "upstream": "default",
        "format": "chat_completions",
        "model": "gpt-4o",
        "status": 200,
        "tokens": Tokens(2_761, 100),
        "estimated": 5_000,
        "forwarded": 2_700,
        "context_status": "summarized",
        "chain": Chain((b"0", b"1", b"2", b"3")),
        "sizes": PromptEstimate(5_000, 2_700),
    }
    return {**members, **changes}


def recorded(*calls: Call) -> list[UsageRecord]:
    store: Any = Kept()
    ledger = Ledger(store, lambda *_: None, Metrics())
    for each in calls:
        enter(ledger, each)
    records: list[UsageRecord] = store.records
    return records


def test_a_cost_that_is_not_known_in_full_is_not_known() -> None:
    assert cost(Tokens(2_761, 100), None) is None
    assert cost(Tokens(2_761, None), PRICE) is None
    assert cost(Tokens(None, 100), PRICE) is None


@pytest.mark.parametrize(
    ("estimated", "forwarded", "status", "expected"),
    [(5_000, 2_700, 200, 2_300), (5_000, 5_000, 200, 0), (5_000, 2_700, 429, 0), (None, 3, 200, 0), (3, None, 200, 0)],
)
def test_tokens_are_saved_where_an_answer_came(
    estimated: int | None, forwarded: int | None, status: int, expected: int
) -> None:
    assert saved(estimated, forwarded, status) == expected


# Records


def test_ids_grow_although_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((2_000_000_000_000_000_000, 1_000_000_000_000_000_000))
    monkeypatch.setattr("app.providers.ledger.time_ns", lambda: next(times))
    first, second = recorded(call(), call())
    assert first.id < second.id


def test_a_models_name_is_kept_up_to_a_length() -> None:
    [record] = recorded(call(model="m" * 1_000_000))
    assert record.model == "m" * 300


def test_a_call_that_cannot_be_recorded_fails_nothing() -> None:
    class Broken:
        def record_usage(self, _: UsageRecord) -> None:
            raise RuntimeError

    store: Any = Broken()
    with capture_logs() as logs:
        enter(Ledger(store, lambda *_: None, Metrics()), call())
    assert [entry["event"] for entry in logs] == ["a call was not recorded"]


# The provider's cache


def warmth(*calls: Call, passed: float = 0.0) -> bool:
    """Whether the conversation of `call` is warm so many seconds after these."""
    now = [0.0]
    store: Any = Kept()
    ledger = Ledger(store, lambda *_: None, Metrics(), lambda: now[0])
    for each in calls:
        enter(ledger, each)
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


# Savings: the cost of the client's own request

TARIFF = Tariff("model", "settings", ((0, Price(10, 50, cached=1, written=12.5)),))
BEFORE = EarlierRequest(PromptEstimate(50_000, 10_000), prompt=10_000, whole=50_000, caches=True)
"""A request of which 40,000 tokens were taken out."""


def whole(tokens: Tokens, came: int, sent: int, before: EarlierRequest | None = BEFORE) -> Tokens:
    return uncompacted_usage(tokens, PromptEstimate(came, sent), before, recent=True)


def test_a_request_of_which_nothing_was_ever_taken_is_what_was_reported() -> None:
    tokens = Tokens(900, 10, 300)
    earlier = later(Tokens(800, 10), PromptEstimate(700, 700), None)
    assert whole(tokens, 1_000, 1_000, None) is tokens
    assert whole(tokens, 1_000, 1_000, earlier) is tokens


SAME, OTHER = Tokens(11_000, 10, 9_900), Tokens(8_000, 10, 500)
"""40,000 tokens were left out, as before, and 1,000 are new; or 44,000, and the cache has what stands before them."""
WHOLE: dict[str, tuple[Tokens, int, int, EarlierRequest | None, Tokens]] = {
    "what is left out is read with the rest": (SAME, 51_000, 11_000, BEFORE, Tokens(51_000, 10, 49_900)),
    "as the provider counts": (SAME, 51_300, 11_300, BEFORE, Tokens(51_000, 10, 49_900)),
    "little of the rest was read": (replace(SAME, cached=200), 51_000, 11_000, BEFORE, Tokens(51_000, 10, 200)),
    "a change leaves what came in the cache": (OTHER, 52_000, 8_000, BEFORE, Tokens(52_000, 10, 50_000)),
    "but for its end": (OTHER, 52_000, 8_000, replace(BEFORE, lag=128), Tokens(52_000, 10, 49_872)),
    "none is kept": (OTHER, 52_000, 8_000, replace(BEFORE, caches=False), Tokens(52_000, 10, 500)),
    "nothing is told of a cache": (Tokens(8_000, 10), 52_000, 8_000, BEFORE, Tokens(52_000, 10)),
    "sent whole again": (Tokens(52_000, 10, 500), 52_000, 52_000, BEFORE, Tokens(52_000, 10, 50_000)),
    "by the estimate alone": (replace(OTHER, cached=6_000), 52_000, 8_000, None, Tokens(52_000, 10, 50_000)),
    "never less than a token": (Tokens(8_000, 10), 8_000, 20_000, None, Tokens(1, 10)),
}


@pytest.mark.parametrize(("tokens", "received", "sent", "before", "expected"), WHOLE.values(), ids=WHOLE)
def test_the_clients_own_request_would_have_taken(
    tokens: Tokens, received: int, sent: int, before: EarlierRequest | None, expected: Tokens
) -> None:
    assert whole(tokens, received, sent, before) == expected


def test_as_large_a_share_of_what_is_new_is_written_to_the_cache() -> None:
    found = whole(replace(SAME, written=1_100), 51_000, 11_000)
    assert found == Tokens(51_000, 10, 49_900, written=1_100)
    missed = whole(Tokens(11_000, 10, 0, written=5_500, written_hour=1_100), 51_000, 11_000)
    assert missed == Tokens(51_000, 10, 0, written=25_500, written_hour=5_100)


# Earlier requests


def later(tokens: Tokens, sizes: PromptEstimate, before: EarlierRequest | None) -> EarlierRequest:
    return sure(earlier_request(tokens, uncompacted_usage(tokens, sizes, before, recent=True), sizes, before))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (Tokens(1_000, 10, 500), True),
        (Tokens(1_000, 10, 499), False),
        (Tokens(1_000, 10, None, written=1_000), True),
        (Tokens(1_000, 10, 300, written=200), True),
        (Tokens(1_000, 10), False),
    ],
)
def test_a_provider_keeps_prompts_of_which_it_read_or_wrote_most(tokens: Tokens, expected: bool) -> None:
    assert later(tokens, PromptEstimate(1_000, 1_000), None).caches is expected


def test_a_large_turn_does_not_hide_that_all_before_it_was_read() -> None:
    before = later(Tokens(1_000, 10, 0), PromptEstimate(1_000, 1_000), None)
    found = later(Tokens(9_000, 10, 950), PromptEstimate(9_000, 9_000), before)
    assert (found.caches, found.lag) == (True, 50)


@pytest.mark.parametrize(("read", "written", "caches"), [(0, None, False), (3_000, 3_000, True)])
def test_the_same_prompt_is_kept_where_most_of_it_is_read_or_written(
    read: int, written: int | None, caches: bool
) -> None:
    found = later(Tokens(11_000, 10, read, written=written), PromptEstimate(51_000, 11_000), replace(BEFORE, lag=7))
    assert (found.caches, found.lag) == (caches, 7)


def test_what_is_paid_to_be_kept_for_an_hour_is_until_something_else_is_written() -> None:
    hour = later(Tokens(1_000, 10, 0, written=1_000, written_hour=1_000), PromptEstimate(1_000, 1_000), None)
    read = later(Tokens(1_000, 10, 1_000), PromptEstimate(1_000, 1_000), hour)
    written = later(Tokens(1_200, 10, 1_000, written=200), PromptEstimate(1_200, 1_200), read)
    assert (hour.long, read.long, written.long) == (True, True, False)


# Money


def cost_of(
    tokens: Tokens, instead: Tokens | None, bill: Bill = UNBILLED, tariff: Tariff | None = TARIFF
) -> float | None:
    return saved_cost(tokens, instead, bill, charge(tokens, bill, tariff), tariff)


def test_what_is_saved_is_what_it_would_have_cost_less_what_it_cost() -> None:
    saved = cost_of(Tokens(11_000, 10, 9_900), Tokens(51_000, 10, 49_900))
    assert saved == pytest.approx(40_000 * 1 / 1e6)
    lost = cost_of(Tokens(8_000, 10, 500), Tokens(52_000, 10, 50_000))
    assert lost == pytest.approx((2_000 * 10 + 50_000 - 7_500 * 10 - 500) / 1e6)


def test_a_larger_prompt_is_charged_by_its_own_step() -> None:
    stepped = replace(TARIFF, steps=((0, Price(10, 50)), (200_000, Price(20, 75))))
    saved = cost_of(Tokens(100_000, 100), Tokens(300_000, 100), tariff=stepped)
    assert saved == pytest.approx((300_000 * 20 + 100 * 75 - 100_000 * 10 - 100 * 50) / 1e6)


def test_where_the_provider_billed_the_difference_is_the_tables() -> None:
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), Bill(cost=9.0)) == pytest.approx(0.4)
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), Bill(cost=9.0), None) is None
    assert cost_of(Tokens(11_000, 10), Tokens(11_000, 10), Bill(cost=9.0), None) == 0.0


def test_nothing_is_said_of_what_has_no_price_or_no_tokens() -> None:
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), tariff=None) is None
    assert saved_cost(Tokens(), Tokens(), UNBILLED, Charge(), TARIFF) is None

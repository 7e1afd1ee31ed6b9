"""The ledger: what a call took and cost, in a form that adds up, and never in a request's way."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from app.conversation.identity import Chain
from app.providers.ledger import Ledger
from app.store import UsageRecord
from app.telemetry.metrics import Metrics
from app.tokens.usage import Price, PromptEstimate, Tariff, Tokens, cost, saved

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
        "format": "chat_completions",
        "model": "gpt-4o",
        "status": 200,
        "tokens": Tokens(2_761, 100),
        "estimated": 5_000,
        "forwarded": 2_700,
        "context_status": "summarized",
        "chain": history(3),
        "sizes": PromptEstimate(5_000, 2_700),
    }
    return {**members, **changes}


def recorded(*calls: Call, price: Price | None = None) -> list[UsageRecord]:
    store: Any = Kept()
    ledger = Ledger(
        store, lambda asked, _: None if price is None else Tariff(asked, "settings", ((0, price),)), Metrics()
    )
    for each in calls:
        enter(ledger, each)
    records: list[UsageRecord] = store.records
    return records


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

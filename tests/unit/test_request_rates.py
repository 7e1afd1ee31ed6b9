"""How fast a conversation grew lately, whether it is likely to continue, and how long a summary takes."""

from __future__ import annotations

import pytest

from app.compaction.background import (
    FIRST_SUMMARY_SECONDS,
    REMEMBERED_SECONDS,
    Answered,
    RequestRate,
    RequestRates,
)
from app.runtime.erased import Erased
from tests.unit.clock import Clock

ONE, TWO = ("tenant", "one"), ("tenant", "two")


def answered(*requests: tuple[float, int], forwarded: int = 5_000) -> RequestRate:
    """The rate after requests that were answered at these seconds, with histories of so many tokens."""
    rate = RequestRate()
    for at, history in requests:
        rate = rate.after(Answered(at, history, forwarded))
    return rate


def test_a_repeated_request_counts_once() -> None:
    assert answered((0, 100), (1, 100), (2, 100)).requests == 1
    assert answered((0, 100), (1, 200), (2, 100)).requests == 3


def test_a_conversation_is_likely_to_continue_after_three_requests_at_10_000_tokens_an_hour() -> None:
    assert not answered((0, 100), (1, 200)).is_likely_to_continue
    assert answered((0, 100), (1_800, 200), (3_600, 300)).is_likely_to_continue
    assert not answered((0, 100), (1_800, 200), (3_601, 300)).is_likely_to_continue
    assert not answered((0, 100), (1, 200), (2, 300), (9_999, 400)).is_likely_to_continue
    assert answered((5, 100), (5, 200), (5, 300)).is_likely_to_continue


GROWTH: dict[str, tuple[tuple[tuple[float, int], ...], float, int]] = {
    "at 1.25 times its pace, and by one request more": (((0, 0), (10, 100), (20, 200), (30, 300)), 20, 250 + 100),
    "by one as large as the largest": (((0, 0), (10, 10), (20, 290), (30, 300)), 20, 250 + 280),
    "by the eight latest requests": (((0, 0), *((n * 10, 5_000 + n * 100) for n in range(1, 9))), 20, 250 + 100),
    "however slow it was, by one at least": (((0, 0), (3_600, 100), (7_200, 200)), 20, 125 + 100),
    "as fast as it was after a pause": (((0, 0), (3_600, 100), (3_602, 200), (3_604, 300)), 20, 312 + 100),
    "by nothing that went to another branch": (((0, 900), (10, 100), (20, 200)), 20, 125 + 100),
    "by nothing after a first request": (((0, 900),), 20, 0),
    "by nothing before": ((), 20, 0),
    "without a time in between": (((5, 100), (5, 101)), 2, 2_501),
}


@pytest.mark.parametrize(("requests", "seconds", "tokens"), GROWTH.values(), ids=GROWTH)
def test_a_history_may_grow(requests: tuple[tuple[float, int], ...], seconds: float, tokens: int) -> None:
    assert answered(*requests).growth(seconds) == tokens


def test_rates_are_forgotten_with_what_is_erased_and_after_a_day() -> None:
    clock = Clock(1_000.0)
    rates = RequestRates(clock)
    for place in (ONE, TWO, ("other", "one")):
        rates.answered(place, 100, 100)
    rates.forget(Erased("tenant", "one"))
    assert [rates.of(place).requests for place in (ONE, TWO, ("other", "one"))] == [0, 1, 1]
    rates.forget(Erased("tenant"))
    assert [rates.of(place).requests for place in (TWO, ("other", "one"))] == [0, 1]
    clock.now += REMEMBERED_SECONDS
    assert rates.of(("other", "one")) == RequestRate()


def test_a_summary_is_expected_to_take_as_long_as_the_longest_of_the_latest_of_its_model() -> None:
    rates = RequestRates()
    assert rates.summary_seconds("model") == FIRST_SUMMARY_SECONDS
    for seconds in (90.0, 2.0, 5.0, 4.0):
        rates.summarised("model", seconds)
    assert rates.summary_seconds("model") == 90.0
    rates.summarised("model", 2.0)
    assert (rates.summary_seconds("model"), rates.summary_seconds("other")) == (5.0, FIRST_SUMMARY_SECONDS)

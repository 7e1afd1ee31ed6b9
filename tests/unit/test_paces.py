"""Paces: who comes back, how often, and how long a summary takes."""

from __future__ import annotations

from math import inf

from app.compaction.paces import FIRST_SUMMARY_SECONDS, NEVER_SEEN, REMEMBERED_SECONDS, Pace, Paces
from app.runtime.erased import Erased
from tests.unit.clock import Clock

ONE, TWO = ("tenant", "one"), ("tenant", "two")


def seen(clock: Clock, *histories: int, every: float = 60.0, sent: int = 5_000) -> Paces:
    paces = Paces(clock)
    for history in histories:
        paces.answered(ONE, history, sent)
        clock.now += every
    return paces


def test_who_was_never_seen_has_no_pace() -> None:
    assert Paces().of(ONE) == NEVER_SEEN


def test_one_request_is_no_pace() -> None:
    assert seen(Clock(1_000.0), 4_000).of(ONE) == Pace(1, inf, 0.0)


def test_a_pace_is_requests_their_distance_and_what_was_sent_in_an_hour() -> None:
    assert seen(Clock(1_000.0), 4_000, 4_100, 4_200).of(ONE) == Pace(3, 60.0, 300_000.0)


def test_the_latest_requests_make_the_pace() -> None:
    """Who comes back after a long pause is slow until he came back some more times."""
    clock = Clock(1_000.0)
    paces = seen(clock, 1, 2, 3, 4)
    clock.now += 10 * 3_600.0
    paces.answered(ONE, 5, 5_000)
    assert paces.of(ONE).tokens_per_hour < 10_000
    for history in (6, 7, 8):
        clock.now += 60.0
        paces.answered(ONE, history, 5_000)
    assert paces.of(ONE) == Pace(8, 60.0, 300_000.0)


def test_a_history_that_is_sent_again_counts_once() -> None:
    assert seen(Clock(1_000.0), 4_000, 4_000, 4_000).of(ONE).requests == 1


def test_requests_at_the_same_moment_have_no_distance() -> None:
    assert seen(Clock(1_000.0), 1, 2, every=0.0).of(ONE) == Pace(2, 0.0, inf)


def test_a_pace_is_forgotten_after_a_day_and_with_its_conversation() -> None:
    clock = Clock(1_000.0)
    paces = seen(clock, 1, 2)
    paces.answered(TWO, 1, 1)
    paces.forget(Erased.of("tenant", "one"))
    assert (paces.of(ONE), paces.of(TWO).requests) == (NEVER_SEEN, 1)
    clock.now += REMEMBERED_SECONDS + 1
    assert paces.of(TWO) == NEVER_SEEN
    paces.answered(ONE, 1, 1)
    paces.answered(("other", "one"), 1, 1)
    paces.forget(Erased.of("tenant"))
    assert (paces.of(ONE), paces.of(("other", "one")).requests) == (NEVER_SEEN, 1)


def test_a_summary_is_expected_to_take_as_long_as_the_longest_of_the_latest() -> None:
    paces = Paces()
    assert paces.summary_seconds("model") == FIRST_SUMMARY_SECONDS
    for seconds in (90.0, 3.0, 5.0, 4.0):
        paces.summarised("model", seconds)
    assert paces.summary_seconds("model") == 90.0
    paces.summarised("model", 2.0)
    assert (paces.summary_seconds("model"), paces.summary_seconds("other")) == (5.0, FIRST_SUMMARY_SECONDS)

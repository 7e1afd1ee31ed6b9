"""Guesses: ten in ten minutes from an address, and each is logged once."""

from __future__ import annotations

from structlog.testing import capture_logs

from app.inspector.session import MOST_GUESSES, PERIOD_SECONDS, Guesses
from app.runtime.bounded import MOST_REMEMBERED
from tests.unit.clock import Clock


def test_an_address_may_guess_ten_times_in_ten_minutes_and_others_are_not_affected() -> None:
    clock = Clock(1_000.0)
    guesses = Guesses(clock)
    for _ in range(MOST_GUESSES):
        assert guesses.wait("192.0.2.1") == 0
        guesses.count("192.0.2.1")
    assert 0 < guesses.wait("192.0.2.1") <= 1.05 * PERIOD_SECONDS
    assert guesses.wait("192.0.2.2") == 0
    for _ in range(2):  # Each time as many.
        clock.now += 1.05 * PERIOD_SECONDS
        for _ in range(MOST_GUESSES):
            assert guesses.wait("192.0.2.1") == 0
            guesses.count("192.0.2.1")
        assert guesses.wait("192.0.2.1") > 0


def test_guesses_that_are_refused_do_not_prolong_the_wait() -> None:
    clock = Clock(1_000.0)
    guesses = Guesses(clock)
    for _ in range(MOST_GUESSES):
        guesses.count("192.0.2.1")
    ends = clock.now + guesses.wait("192.0.2.1")
    clock.now += PERIOD_SECONDS / 2
    for _ in range(MOST_GUESSES):
        guesses.count("192.0.2.1")
    assert clock.now + guesses.wait("192.0.2.1") == ends


def test_guesses_are_logged_at_first_and_then_once_a_minute() -> None:
    clock = Clock(1_000.0)
    guesses = Guesses(clock)
    with capture_logs() as logged:
        for _ in range(MOST_GUESSES + 5):
            guesses.count("192.0.2.1")
        clock.now += 60
        guesses.count("192.0.2.1")
    told = [(each["event"], each["address"], each["refused"], each["times"]) for each in logged]
    assert told == [("sign-in guessed", "192.0.2.1", False, 1), ("sign-in guessed", "192.0.2.1", True, 16)]


def test_a_crowd_of_addresses_takes_bounded_memory() -> None:
    guesses = Guesses(Clock(1_000.0))
    for number in range(MOST_REMEMBERED + 10):
        guesses.count(str(number))
    assert len(guesses._made) == MOST_REMEMBERED

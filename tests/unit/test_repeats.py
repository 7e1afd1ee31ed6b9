"""Repeats: told once, then once a minute with a count, and once when they are over."""

from __future__ import annotations

from app.runtime.bounded import MOST_REPEATED, REMINDER_SECONDS, Repeats


def test_what_lasts_is_told_once_a_minute_with_how_often_it_happened() -> None:
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    assert repeats.over("database") is None
    assert [repeats.again("database") for _ in range(3)] == [1, None, None]
    now[0] = REMINDER_SECONDS
    assert repeats.again("summariser") == 1
    assert [repeats.again("database") for _ in range(2)] == [4, None]
    now[0] = REMINDER_SECONDS + 1.23
    assert repeats.over("database") == (5, 61.2)
    assert repeats.over("database") is None
    assert repeats.again("database") == 1


def test_the_oldest_are_forgotten() -> None:
    repeats = Repeats()
    for number in range(MOST_REPEATED + 1):
        assert repeats.again(number) == 1
    assert repeats.over(0) is None
    assert repeats.over(1) is not None

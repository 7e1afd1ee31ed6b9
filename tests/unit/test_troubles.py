"""Troubles: told once, then once a minute with a count, and once when they are over."""

from __future__ import annotations

from app.troubles import MOST_REMEMBERED, REMINDER_SECONDS, Troubles


def test_what_lasts_is_told_once_a_minute_with_how_often_it_happened() -> None:
    now = [0.0]
    troubles = Troubles(lambda: now[0])
    assert troubles.over("database") is None
    assert [troubles.again("database") for _ in range(3)] == [1, None, None]
    now[0] = REMINDER_SECONDS
    assert troubles.again("summariser") == 1
    assert [troubles.again("database") for _ in range(2)] == [4, None]
    now[0] = REMINDER_SECONDS + 1.23
    assert troubles.over("database") == (5, 61.2)
    assert troubles.over("database") is None
    assert troubles.again("database") == 1


def test_the_oldest_are_forgotten() -> None:
    troubles = Troubles()
    for number in range(MOST_REMEMBERED + 1):
        assert troubles.again(number) == 1
    assert troubles.over(0) is None
    assert troubles.over(1) is not None

"""The throttle of log lines: told once, then once a minute with a count, and once when they are over."""

from __future__ import annotations

from app.runtime.bounded import MOST_REPEATED, REMINDER_SECONDS, LogThrottle


def test_what_lasts_is_told_once_a_minute_with_how_often_it_happened() -> None:
    now = [0.0]
    throttle = LogThrottle(lambda: now[0])
    assert throttle.end("database") is None
    assert [throttle.count("database") for _ in range(3)] == [1, None, None]
    now[0] = REMINDER_SECONDS
    assert throttle.count("summariser") == 1
    assert [throttle.count("database") for _ in range(2)] == [4, None]
    now[0] = REMINDER_SECONDS + 1.23
    assert throttle.end("database") == (5, 61.2)
    assert throttle.end("database") is None
    assert throttle.count("database") == 1


def test_the_oldest_are_forgotten() -> None:
    throttle = LogThrottle()
    for number in range(MOST_REPEATED + 1):
        assert throttle.count(number) == 1
    assert throttle.end(0) is None
    assert throttle.end(1) is not None

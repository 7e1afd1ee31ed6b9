"""What is logged once a minute."""

from __future__ import annotations

from app.repeats import PAUSE_SECONDS, Repeats


def test_the_first_one_is_told_at_once_and_the_rest_of_the_minute_together() -> None:
    now = 1_000.0
    repeats = Repeats(lambda: now)
    assert [repeats.due("a") for _ in range(4)] == [1, None, None, None]
    now += PAUSE_SECONDS - 1
    assert repeats.due("a") is None
    now += 1
    assert repeats.due("a") == 5
    assert repeats.due("a") is None


def test_one_does_not_hide_the_other() -> None:
    repeats = Repeats(lambda: 1_000.0)
    assert [repeats.due(key) for key in ("a", "b", "a")] == [1, 1, None]

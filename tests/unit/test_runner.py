"""Compactions that run, as a page that watches them sees them from start to end."""

from __future__ import annotations

import pytest

from app.compaction.background import RunningCompactions

HERE, THERE = ("tenant", "here"), ("tenant", "there")


def test_a_page_is_told_how_much_is_summarised_and_how_long_the_oldest_takes() -> None:
    now = 7.0
    running = RunningCompactions(clock=lambda: now)
    with running.during(HERE, 24, ahead=True):
        now = 8.26
        with running.during(HERE, 3, ahead=False):
            assert running.told(HERE) == (27, 1.3, True)
            assert running.told(THERE) is None
        assert running.told(HERE) == (24, 1.3, True)
    assert running.told(HERE) is None


def test_one_that_fails_has_ended_and_nothing_is_kept() -> None:
    running = RunningCompactions()
    with pytest.raises(ValueError, match="broken"), running.during(HERE, 1, ahead=False):
        raise ValueError("broken")
    assert not running._running

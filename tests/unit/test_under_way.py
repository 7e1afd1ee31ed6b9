"""Compactions under way: seen from start to end by whoever watches, and forgotten afterwards."""

from __future__ import annotations

import pytest

from app.compaction.under_way import UnderWay

HERE, THERE = ("tenant", "here"), ("tenant", "there")


def test_a_compaction_is_seen_where_it_runs_and_nowhere_else() -> None:
    under_way = UnderWay(clock=lambda: 7.0)
    with under_way.during(HERE, 24, ahead=False):
        (running,) = under_way.at(HERE)
        assert (running.messages, running.ahead, running.began) == (24, False, 7.0)
        assert under_way.at(THERE) == ()
    assert under_way.at(HERE) == ()


def test_whoever_watches_is_told_how_much_is_summarised_and_how_long_the_oldest_takes() -> None:
    now = 7.0
    under_way = UnderWay(clock=lambda: now)
    assert under_way.told(HERE) is None
    with under_way.during(HERE, 24, ahead=True):
        now = 8.26
        with under_way.during(HERE, 3, ahead=False):
            assert under_way.told(HERE) == (27, 1.3, True)
            assert under_way.told(THERE) is None


def test_whoever_watches_is_woken_at_the_start_and_at_the_end() -> None:
    under_way = UnderWay()
    with under_way.watched(HERE) as event, under_way.watched(THERE) as other:
        assert not event.is_set()
        with under_way.during(HERE, 1, ahead=True):
            assert event.is_set()
            event.clear()
        assert event.is_set()
        assert not other.is_set()


def test_several_at_once_end_each_for_itself() -> None:
    under_way = UnderWay()
    with under_way.during(HERE, 1, ahead=False):
        with under_way.during(HERE, 1, ahead=False):
            assert len(under_way.at(HERE)) == 2
        assert len(under_way.at(HERE)) == 1


def test_one_that_fails_has_ended_and_nothing_is_kept() -> None:
    under_way = UnderWay()
    with pytest.raises(ValueError, match="broken"), under_way.watched(HERE), under_way.during(HERE, 1, ahead=False):
        raise ValueError("broken")
    assert not under_way._running
    assert not under_way._watching

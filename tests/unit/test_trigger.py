"""Triggers: each measure fires at its value and not one before."""

from __future__ import annotations

import pytest

from app.core.limits.trigger import Condition, Size, Trigger, over


def test_a_view_of_so_many_tokens_does_not_fire_and_one_more_does() -> None:
    assert not over(700).fires(Size(700))
    assert over(700).fires(Size(701))


@pytest.mark.parametrize(
    ("condition", "quiet", "fires"),
    [
        (Condition(since=18_000), Size(90_000, since=18_000), Size(90_000, since=18_001)),
        (Condition(turns=10), Size(90, turns=10), Size(90, turns=11)),
        (Condition(messages=3), Size(90, messages=2), Size(90, messages=3)),
        (Condition(tokens=50, messages=3), Size(50, messages=3), Size(51, messages=3)),
        (Condition(tokens=50, since=20), Size(51, since=20), Size(51, since=21)),
    ],
)
def test_a_condition_holds_where_all_of_it_does(condition: Condition, quiet: Size, fires: Size) -> None:
    assert not condition.holds(quiet)
    assert condition.holds(fires)


def test_one_condition_of_several_is_enough() -> None:
    trigger = Trigger((Condition(since=100), Condition(tokens=1_000)))
    assert trigger.fires(Size(500, since=101))
    assert trigger.fires(Size(1_001, since=0))
    assert not trigger.fires(Size(1_000, since=100))


def test_without_a_condition_nothing_fires() -> None:
    never = Trigger(())
    assert not never.fires(Size(1 << 60))
    assert never.tokens > 1 << 60


def test_a_view_that_is_small_enough_need_not_be_measured() -> None:
    """It is neither over the tokens, nor can a part of it be over those after the last summary."""
    assert Trigger((Condition(tokens=900), Condition(tokens=10, since=200))).tokens == 200
    assert Trigger((Condition(tokens=900), Condition(turns=3))).tokens == 0


def test_turns_and_messages_are_counted_and_tokens_are_not() -> None:
    assert Trigger((Condition(tokens=900), Condition(turns=3))).counts_turns
    assert Trigger((Condition(messages=3),)).counts_turns
    assert not Trigger((Condition(tokens=900), Condition(since=200))).counts_turns

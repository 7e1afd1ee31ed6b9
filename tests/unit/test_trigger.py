"""Triggers: each measure fires at its value and not one before."""

from __future__ import annotations

from app.core.limits.trigger import Trigger


def test_a_view_of_so_many_tokens_does_not_fire_and_one_more_does() -> None:
    assert not Trigger(700).fires(700)
    assert Trigger(700).fires(701)


def test_either_measure_is_enough() -> None:
    trigger = Trigger(1_000, since=100)
    assert trigger.fires(500, since=101)
    assert trigger.fires(1_001, since=0)
    assert not trigger.fires(1_000, since=100)


def test_a_view_that_is_small_enough_need_not_be_measured() -> None:
    """It is neither over the tokens, nor can a part of it be over those after the last summary."""
    assert Trigger(900, since=200).quiet_tokens == 200
    assert Trigger(900).quiet_tokens == 900

"""How early a background compaction begins, and what it aims for."""

from __future__ import annotations

import pytest

from app.compaction.budget import (
    LEAST_KEPT,
    Budget,
    Trigger,
    background_budget,
    background_threshold,
    latest_start,
    least_counted,
    most_without_summary,
)
from tests.unit.conversations import budget

# Of a limit of 10,000: nothing is made up to 5,500, the trigger is at 7,000, and a view over 9,700 is not sent.
LIMITS = budget(10_000)
CAUTIOUS = budget(10_000, trigger=5_950, target=4_250, caution=0.85)
"""Limits where tokens are only estimated by bytes."""

BEGINS: dict[str, tuple[int, Budget, int]] = {
    "at the trigger where there is time": (2_700, LIMITS, 7_000),
    "earlier where the free room is less than the growth": (3_200, LIMITS, 6_500),
    "not below 0.55 of the limit": (9_000, LIMITS, 5_500),
    "nor where the target is far lower": (9_000, budget(10_000, target=2_000), 5_500),
    "at a trigger below that": (9_000, budget(10_000, trigger=3_000), 3_000),
    "not where hardly anything can be freed": (9_000, budget(10_000, target=6_000), 6_600),
    "at the trigger without growth": (0, LIMITS, 7_000),
    "earlier where tokens are only estimated by bytes": (3_000, CAUTIOUS, 8_245 - 3_000),
    "below a cap that is far below the limit": (
        18_000,
        budget(1_000_000, trigger=160_000, target=80_000, room=160_000),
        166_400 - 18_000,
    ),
}


@pytest.mark.parametrize(("growth", "limits", "tokens"), BEGINS.values(), ids=BEGINS)
def test_a_background_compaction_begins(growth: int, limits: Budget, tokens: int) -> None:
    assert background_budget(limits, growth).trigger.tokens == tokens


def test_tokens_after_the_last_summary_count_as_before() -> None:
    earlier = background_budget(budget(10_000, trigger=Trigger(10_000, since=500)), 200).trigger
    assert earlier == Trigger(9_500, since=500)


def test_the_earlier_trigger_fires_wherever_the_requests_own_does() -> None:
    earlier = background_budget(LIMITS, 3_500).trigger
    for tokens in range(4_000, 10_001, 50):
        assert earlier.fires(tokens) or not LIMITS.trigger.fires(tokens)


def test_the_cost_gate_puts_it_off_no_longer_than_there_is_time() -> None:
    gated = budget(10_000, cost_gate_limit=9_500)
    assert background_budget(gated, 100).cost_gate_limit == 9_500
    assert background_budget(gated, 1_000).cost_gate_limit == latest_start(gated, 1_000) == 8_700
    assert background_budget(gated, 9_000).cost_gate_limit == 5_500
    assert background_budget(LIMITS, 1_000).cost_gate_limit == 0


def test_a_request_goes_on_without_its_summary_up_to_a_share_of_the_limit_and_a_little_over_a_cap() -> None:
    assert [most_without_summary(limits) for limits in (LIMITS, CAUTIOUS)] == [9_700, 8_245]
    assert most_without_summary(budget(1_000_000, trigger=160_000, target=80_000, room=160_000)) == 166_400


def test_requests_are_counted_from_half_of_the_threshold_on() -> None:
    assert (background_threshold(LIMITS), least_counted(LIMITS)) == (5_500, 2_750)
    assert background_threshold(CAUTIOUS) == 4_675


def test_the_expected_growth_counts_against_target_and_tail_down_to_half_of_them() -> None:
    limits = budget(10_000, tail_fill=1_500)
    ahead = background_budget(limits, 300)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.limit) == (4_700, 2_700, 1_200, 10_000)
    ahead = background_budget(limits, 50_000)
    assert (ahead.target, ahead.tail, ahead.tail_fill) == (2_500, 1_500, 750)
    assert LEAST_KEPT == 0.5

"""The budget for the one request that is sent again after a refusal for its size."""

from __future__ import annotations

import pytest

from app.core.limits.budget import ONE_TO_ONE, Budget, Line, Shares, Window, budget_for
from app.core.limits.overflow import Overflow
from app.core.limits.recovery import recovery_budget


def in_force(line: Line = ONE_TO_ONE) -> Budget:
    return budget_for(Window(128_000, "config"), 0, Shares(), line)


def test_limit_and_prompt_tell_how_the_provider_counts() -> None:
    """56,811 of its tokens were 42,600 of ours: of 0.95 x (32,768 - 16) we may use 23,330."""
    overflow = Overflow("context_window", limit=32_768, prompt=56_811, requested=56_827)
    budget = recovery_budget(overflow, in_force(), sent=42_600, instructions=500, output=4_000)
    assert budget is not None
    assert budget.limit == pytest.approx(23_330, abs=3)
    assert budget.target == budget.trigger.tokens == pytest.approx(0.6 * 32_752 / 1.3336, abs=3)


def test_a_limit_alone_allows_at_most_70_percent_of_what_was_sent() -> None:
    overflow = Overflow("context_window", limit=65_536)
    budget = recovery_budget(overflow, in_force(), sent=60_000, instructions=0, output=None)
    assert budget is not None
    assert (budget.limit, budget.target) == (42_000, 39_321)


def test_a_limit_alone_leaves_room_for_the_output_that_was_asked_for() -> None:
    overflow = Overflow("context_window", limit=40_000)
    budget = recovery_budget(overflow, in_force(), sent=60_000, instructions=0, output=10_000)
    assert budget is not None
    assert budget.limit == 28_500


@pytest.mark.parametrize(("sent", "limit"), [(60_000, 42_000), (200_000, 89_600)])
def test_without_numbers_it_is_70_percent_of_what_was_sent_or_of_the_budget_in_force(sent: int, limit: int) -> None:
    budget = recovery_budget(Overflow("context_window"), in_force(), sent=sent, instructions=0, output=None)
    assert budget is not None
    assert budget.limit == budget.target == limit


def test_an_output_that_fills_the_window_alone_cannot_be_helped() -> None:
    told = Overflow("context_window", limit=8_192, prompt=5_000, requested=13_192)
    for overflow in (told, Overflow("context_window", limit=8_192)):
        assert recovery_budget(overflow, in_force(), sent=5_000, instructions=0, output=8_192) is None


def test_an_output_that_gave_way_before_is_not_kept_free_now() -> None:
    """A provider that refuses the prompt for itself does not count it."""
    told = Overflow("context_window", limit=32_768, prompt=33_000)
    whole = budget_for(Window(32_768, "config"), 32_000, Shares())
    assert recovery_budget(told, whole, sent=31_000, instructions=5_000, output=32_000) is None
    budget = recovery_budget(told, whole.for_floor(5_000), sent=31_000, instructions=5_000, output=32_000)
    assert budget is not None
    assert budget.line.estimate(0.95 * 31_130) * 0.93 < budget.limit < 31_000


def test_instructions_that_leave_no_room_cannot_be_helped() -> None:
    overflow = Overflow("context_window", limit=8_192)
    assert recovery_budget(overflow, in_force(), sent=10_000, instructions=5_001, output=None) is None
    assert recovery_budget(overflow, in_force(), sent=10_000, instructions=4_000, output=None) is not None


def test_what_pictures_cost_more_than_was_expected_a_smaller_prompt_does_not_cost_less() -> None:
    """Of 3,515 tokens that are allowed the 728 which nobody expected are the pictures', whatever else goes."""
    told = Overflow("context_window", limit=4_000, prompt=4_213)
    small = budget_for(Window(4_000, "config"), 300, Shares())
    for holds_media, limit in ((True, 3_515 - 728), (False, int(3_515 / (4_213 / 3_485)))):
        budget = recovery_budget(told, small, sent=3_485, instructions=0, output=300, holds_media=holds_media)
        assert budget is not None
        assert budget.limit == limit
        assert 0 < budget.target < limit
    little = recovery_budget(told, small, sent=2_000, instructions=0, output=300, holds_media=True)
    assert little is not None
    assert (little.limit, little.target) == (3_515 - 2_213, int(0.6 * 3_700) // 4)
    less = recovery_budget(told, small, sent=4_500, instructions=0, output=300, holds_media=True)
    assert less is not None
    assert less.limit == int(3_515 / (4_213 / 4_500))


@pytest.mark.parametrize(("instructions", "limit"), [(0, 585), (500, None)])
def test_pictures_that_cost_more_than_there_is_room_for_can_go(instructions: int, limit: int | None) -> None:
    """Each token that is left costs six; of the least room, too, there is a sixth."""
    told = Overflow("context_window", limit=4_000, prompt=6_000)
    small = budget_for(Window(4_000, "config"), 300, Shares())
    budget = recovery_budget(told, small, sent=1_000, instructions=instructions, output=300, holds_media=True)
    assert (budget and budget.limit) == limit


def test_in_a_small_window_a_quarter_of_the_limit_is_room_enough() -> None:
    """2,000 tokens beside the instructions are more than there ever were."""
    told = Overflow("context_window", limit=4_000, prompt=2_953, requested=4_553)
    small = budget_for(Window(4_000, "config"), 1_600, Shares())
    budget = recovery_budget(told, small, sent=2_108, instructions=200, output=1_600)
    assert budget is not None
    assert 1_600 < budget.limit < 1_650
    assert recovery_budget(told, small, sent=2_108, instructions=1_100, output=1_600) is None


@pytest.mark.parametrize(("sent", "helped"), [(102_399, False), (102_400, True)])
def test_an_error_without_a_reason_counts_only_near_the_window(sent: int, helped: bool) -> None:
    overflow = Overflow("context_window", needs_pressure=True)
    assert (recovery_budget(overflow, in_force(), sent, instructions=0, output=None) is not None) is helped


def test_calibration_is_applied_once() -> None:
    overflow = Overflow("context_window", limit=50_000)
    budget = recovery_budget(overflow, in_force(line=Line(500, 1.25)), sent=50_000, instructions=0, output=None)
    assert budget is not None
    assert budget.limit == int((min(0.95 * 50_000, 0.70 * 63_000) - 500) / 1.25)


def test_the_shares_shrink_with_the_limit() -> None:
    budget = recovery_budget(Overflow("context_window", limit=64_000), in_force(), 128_000, instructions=0, output=None)
    assert budget is not None
    assert (budget.tail, budget.fold) == (int(0.3 * 60_800), int(0.3 * 60_800))
    assert budget.summary == in_force().summary

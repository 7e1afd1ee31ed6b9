"""The budget for the one request that is sent again after a refusal for its size."""

from __future__ import annotations

import pytest

from app.core.limits.budget import Budget, Shares, Window, budget_for
from app.core.limits.overflow import Overflow
from app.core.limits.recovery import Recovery, Sent, recover
from app.tokens.calibration import ONE_TO_ONE, Line


def in_force(line: Line = ONE_TO_ONE) -> Budget:
    return budget_for(Window(128_000, "config"), 0, Shares(), line)


def recovery_budget(
    overflow: Overflow, budget: Budget, sent: int, instructions: int, output: int | None, *, holds_media: bool = False
) -> Budget | None:
    found = recover(overflow, budget, Sent(sent, instructions, output, holds_media=holds_media))
    return found.budget if found is not None else None


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


@pytest.mark.parametrize(
    ("overflow", "window", "sent", "cap"),
    [
        # The numbers of the prompt and of the output.
        (Overflow("context_window", 128_000, 60_000, 160_000), 128_000, Sent(60_000, 0, 100_000), 68_000),
        (Overflow("context_window", 8_192, 5_000, 13_192), 8_192, Sent(5_000, 0, 8_192), 3_192),
        # OpenRouter counts tools beside the text.
        (Overflow("context_window", 100_000, 50_000, 115_000), 128_000, Sent(54_000, 0, 60_000), 45_000),
        # vLLM tells only by what the prompt is at least too large.
        (Overflow("context_window", 32_768, 2_769, 32_769), 32_768, Sent(20_000, 0, 30_000), 12_368),
        # The sum alone.
        (Overflow("context_window", 32_000, None, 50_000), 32_000, Sent(19_000, 0, 30_000), 12_000),
        # The limit alone, or nothing, where the output is spoken of.
        (Overflow("context_window", 32_000, names_output=True), 32_000, Sent(10_000, 0, 30_000), 21_800),
        (Overflow("context_window", names_output=True), 32_000, Sent(10_000, 0, 30_000), 21_800),
        # A bucket of tokens per minute that counts the output.
        (Overflow("request_too_large", 12_000, None, 36_000), 128_000, Sent(4_100, 0, 32_000), 8_000),
    ],
)
def test_the_output_cap_is_lowered_before_the_prompt_is_made_smaller(
    overflow: Overflow, window: int, sent: Sent, cap: int
) -> None:
    budget = budget_for(Window(window, "config"), sent.cap, Shares())
    assert recover(overflow, budget, sent) == Recovery(None, cap)


def test_the_prompt_is_made_smaller_where_less_than_a_quarter_of_the_window_is_left_for_the_answer() -> None:
    told = Overflow("context_window", limit=32_000, prompt=26_000, requested=56_000)
    found = recover(told, budget_for(Window(32_000, "config"), 30_000, Shares()), Sent(26_000, 0, 30_000))
    assert found is not None
    assert found.budget is not None
    assert found.budget.limit == int(0.95 * (32_000 - 8_000))
    assert found.output_cap == 32_000 - found.budget.limit


def test_the_output_cap_stays_above_the_tokens_for_thinking() -> None:
    told = Overflow("context_window", limit=64_000, prompt=20_000, requested=84_000)
    limits = budget_for(Window(64_000, "config"), 64_000, Shares())
    assert recover(told, limits, Sent(20_000, 0, 64_000, thinking=43_999)) == Recovery(None, 44_000)
    found = recover(told, limits, Sent(20_000, 0, 64_000, thinking=50_000))
    assert found is not None
    assert found.budget is not None
    assert found.budget.limit <= 64_000 - 50_001
    assert (found.output_cap or 0) > 50_000


def test_an_output_that_the_provider_does_not_count_is_left_alone() -> None:
    told = Overflow("context_window", limit=32_000, prompt=33_000, requested=33_000)
    found = recover(told, budget_for(Window(32_000, "config"), 30_000, Shares()), Sent(31_000, 0, 30_000))
    assert found is not None
    assert found.output_cap is None
    assert found.budget is not None
    assert found.budget.limit == int(0.95 * 32_000 / 33_000 * 31_000)


def test_a_prompt_that_no_number_shows_to_fit_is_made_smaller_and_its_output_cap_lower() -> None:
    found = recover(
        Overflow("context_window"), budget_for(Window(128_000, "config"), 64_000, Shares()), Sent(90_000, 0, 64_000)
    )
    assert found is not None
    assert found.budget is not None
    assert (found.budget.limit, found.output_cap) == (62_999, None)
    larger = recover(
        Overflow("context_window"), budget_for(Window(128_000, "config"), 90_000, Shares()), Sent(90_000, 0, 90_000)
    )
    assert larger is not None
    assert larger.output_cap == 128_000 - 62_999


def test_instructions_that_leave_no_room_cannot_be_helped() -> None:
    overflow = Overflow("context_window", limit=8_192)
    assert recovery_budget(overflow, in_force(), sent=10_000, instructions=5_001, output=None) is None
    assert recovery_budget(overflow, in_force(), sent=10_000, instructions=4_000, output=None) is not None


def test_what_pictures_cost_more_than_was_expected_a_smaller_prompt_does_not_cost_less() -> None:
    """Of 3,515 tokens that are allowed the 728 which nobody expected are the pictures', whatever else goes."""
    told = Overflow("context_window", limit=4_000, prompt=4_213, requested=4_513)
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
    told = Overflow("context_window", limit=4_000, prompt=6_000, requested=6_300)
    small = budget_for(Window(4_000, "config"), 300, Shares())
    budget = recovery_budget(told, small, sent=1_000, instructions=instructions, output=300, holds_media=True)
    assert (budget and budget.limit) == limit


def test_in_a_small_window_a_quarter_of_the_limit_is_room_enough() -> None:
    """2,000 tokens beside the instructions are more than there ever were."""
    told = Overflow("context_window", limit=4_000, prompt=3_500, requested=5_100)
    small = budget_for(Window(4_000, "config"), 1_600, Shares())
    budget = recovery_budget(told, small, sent=2_108, instructions=200, output=1_600)
    assert budget is not None
    assert 1_700 < budget.limit < 1_730
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

"""The budget for the one request that is sent again after a refusal for its size."""

from __future__ import annotations

import pytest

from app.compaction.budget import Budget, Window, budget_for
from app.compaction.overflow import Overflow, Payload, SmallerLimits, limits_after
from app.tokens.calibration import ONE_TO_ONE, Line
from tests.unit.conversations import shares_with, sure


def limits(window: int = 128_000, output: int | None = 0, line: Line = ONE_TO_ONE) -> Budget:
    return budget_for(Window(window, "config"), output, shares_with(), line)


def recovered(overflow: Overflow, budget: Budget, sent: Payload) -> Budget:
    return sure(sure(limits_after(overflow, budget, sent)).budget)


# What the error tells


TOLD = Overflow("context_window", 32_768, 56_811, 56_827)
UNTOLD = Overflow("context_window")
LIMITS: dict[str, tuple[Overflow, Budget, Payload, int]] = {
    # 56,811 of its tokens were 42,600 of ours: of 0.95 x (32,768 - 16) we may use 22,220, with 5 % of error.
    "by limit and prompt": (TOLD, limits(), Payload(42_600, 500, 4_000), 22_220),
    "70 % of what was sent by a limit alone": (
        Overflow("context_window", 65_536),
        limits(),
        Payload(60_000, 0),
        42_000,
    ),
    "less the output": (Overflow("context_window", 40_000), limits(), Payload(60_000, 0, 10_000), 28_500),
    "70 % of what was sent without numbers": (UNTOLD, limits(), Payload(60_000, 0), 42_000),
    "half of what was sent without numbers, with pictures": (
        UNTOLD,
        limits(),
        Payload(60_000, 0, holds_media=True),
        30_000,
    ),
    "70 % of the budget in force without numbers": (UNTOLD, limits(), Payload(200_000, 0), 89_600),
    "calibrated once": (
        Overflow("context_window", 50_000),
        limits(line=Line(500, 1.25)),
        Payload(50_000, 0),
        int((0.70 * 63_000 - 500) / 1.25),
    ),
    # 2,000 tokens beside the instructions are more than there ever were.
    "with a quarter of a small window as room": (
        Overflow("context_window", 4_000, 3_500, 5_100),
        limits(4_000, 1_600),
        Payload(2_108, 200, 1_600),
        1_634,
    ),
}


@pytest.mark.parametrize(("overflow", "budget", "sent", "limit"), LIMITS.values(), ids=LIMITS)
def test_the_prompt_is_made_smaller(overflow: Overflow, budget: Budget, sent: Payload, limit: int) -> None:
    assert recovered(overflow, budget, sent).limit == limit


HOPELESS: dict[str, tuple[Overflow, Budget, Payload]] = {
    "instructions leave no room": (Overflow("context_window", 8_192), limits(), Payload(10_000, 5_001)),
    "nor in a small window": (
        Overflow("context_window", 4_000, 3_500, 5_100),
        limits(4_000, 1_600),
        Payload(2_108, 1_100, 1_600),
    ),
    "nor without numbers, with the lowest output cap": (UNTOLD, limits(4_000, 1_000), Payload(2_300, 1_100, 1_000)),
    "nor where the prompt alone fills the window": (UNTOLD, limits(4_000, 1_600), Payload(3_900, 2_500, 1_600)),
    "without a reason, and far from the window": (
        Overflow("context_window", needs_pressure=True),
        limits(),
        Payload(102_399, 0),
    ),
}


@pytest.mark.parametrize(("overflow", "budget", "sent"), HOPELESS.values(), ids=HOPELESS)
def test_nothing_can_help_where(overflow: Overflow, budget: Budget, sent: Payload) -> None:
    assert limits_after(overflow, budget, sent) is None


@pytest.mark.parametrize(
    ("overflow", "window", "sent", "cap"),
    [
        # The numbers of the prompt and of the output.
        (Overflow("context_window", 128_000, 60_000, 160_000), 128_000, Payload(60_000, 0, 100_000), 68_000),
        (Overflow("context_window", 8_192, 5_000, 13_192), 8_192, Payload(5_000, 0, 8_192), 3_192),
        # OpenRouter counts tools beside the text.
        (Overflow("context_window", 100_000, 50_000, 115_000), 128_000, Payload(54_000, 0, 60_000), 45_000),
        # vLLM tells only by what the prompt is at least too large.
        (Overflow("context_window", 32_768, 2_769, 32_769), 32_768, Payload(20_000, 0, 30_000), 12_368),
        # The sum alone.
        (Overflow("context_window", 32_000, None, 50_000), 32_000, Payload(19_000, 0, 30_000), 12_000),
        # The limit alone, or nothing, where the output is spoken of.
        (Overflow("context_window", 32_000, names_output=True), 32_000, Payload(10_000, 0, 30_000), 21_800),
        (Overflow("context_window", names_output=True), 32_000, Payload(10_000, 0, 30_000), 21_800),
        # Nothing, and the prompt cannot be made smaller, whatever the estimate says of its output.
        (UNTOLD, 4_000, Payload(2_300, 1_100, 1_600), 1_000),
        # A bucket of tokens per minute that counts the output.
        (Overflow("request_too_large", 12_000, None, 36_000), 128_000, Payload(4_100, 0, 32_000), 8_000),
    ],
)
def test_the_output_cap_is_lowered_before_the_prompt_is_made_smaller(
    overflow: Overflow, window: int, sent: Payload, cap: int
) -> None:
    budget = budget_for(Window(window, "config"), sent.cap, shares_with())
    assert limits_after(overflow, budget, sent) == SmallerLimits(None, cap)


def test_the_prompt_is_made_smaller_where_less_than_a_quarter_of_the_window_is_left_for_the_answer() -> None:
    told = Overflow("context_window", limit=32_000, prompt=26_000, requested=56_000)
    found = sure(limits_after(told, limits(32_000, 30_000), Payload(26_000, 0, 30_000)))
    assert sure(found.budget).limit == int(0.95 * (32_000 - 8_000))
    assert found.output_cap == 32_000 - sure(found.budget).limit


def test_the_output_cap_stays_above_the_tokens_for_thinking() -> None:
    told = Overflow("context_window", limit=64_000, prompt=20_000, requested=84_000)
    budget = limits(64_000, 64_000)
    assert limits_after(told, budget, Payload(20_000, 0, 64_000, thinking=43_999)) == SmallerLimits(None, 44_000)
    found = sure(limits_after(told, budget, Payload(20_000, 0, 64_000, thinking=50_000)))
    assert sure(found.budget).limit <= 64_000 - 50_001
    assert (found.output_cap or 0) > 50_000


def test_an_output_that_the_refusal_does_not_count_keeps_its_cap_and_has_its_room() -> None:
    told = Overflow("context_window", limit=32_000, prompt=33_000, requested=33_000)
    found = sure(limits_after(told, limits(32_000, 30_000), Payload(31_000, 0, 30_000)))
    assert (sure(found.budget).limit, found.output_cap) == (int(0.95 * 24_000 / (1.05 * 33_000 / 31_000)), None)


@pytest.mark.parametrize(("output", "cap"), [(32_000, None), (40_000, 32_000), (90_000, 32_000)])
def test_a_prompt_that_no_number_shows_to_fit_is_made_smaller_and_its_output_cap_as_low_as_it_may(
    output: int, cap: int | None
) -> None:
    found = sure(limits_after(UNTOLD, limits(output=output), Payload(90_000, 0, output)))
    assert (sure(found.budget).limit, found.output_cap) == (62_999, cap)


# What pictures cost


@pytest.mark.parametrize(
    ("tokens", "holds_media", "limit"),
    [
        # Of 3,515 tokens that are allowed the 728 which nobody expected are the pictures', whatever else goes.
        (3_485, True, 3_515 - 728),
        (3_485, False, int(3_515 / (1.05 * 4_213 / 3_485))),
        (2_000, True, 3_515 - 2_213),
        (4_500, True, int(3_515 / (4_213 / 4_500))),
    ],
)
def test_what_pictures_cost_more_than_was_expected_a_smaller_prompt_does_not_cost_less(
    tokens: int, holds_media: bool, limit: int
) -> None:
    told = Overflow("context_window", limit=4_000, prompt=4_213, requested=4_513)
    found = recovered(told, limits(4_000, 300), Payload(tokens, 0, 300, holds_media=holds_media))
    assert found.limit == limit
    assert int(0.6 * 3_700) // 4 <= found.target < limit


@pytest.mark.parametrize(("instructions", "limit"), [(0, 585), (500, None)])
def test_pictures_that_cost_more_than_there_is_room_for_can_go(instructions: int, limit: int | None) -> None:
    """Each token that is left costs six; of the least room, too, there is a sixth."""
    told = Overflow("context_window", limit=4_000, prompt=6_000, requested=6_300)
    found = limits_after(told, limits(4_000, 300), Payload(1_000, instructions, 300, holds_media=True))
    assert (sure(found.budget).limit if found else None) == limit

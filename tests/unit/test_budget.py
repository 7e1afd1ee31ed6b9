"""The budget: limit, trigger, target, tail, by the settings and by the window."""

from __future__ import annotations

from typing import Any

import pytest

from app.compaction.budget import (
    HEURISTIC_CAUTION,
    LEAST_KEPT,
    Budget,
    Shares,
    Trigger,
    Window,
    background_budget,
    budget_for,
    latest_start,
    most_without_summary,
    output_cap,
)
from app.compaction.overflow import Overflow, Payload, limits_after
from app.tokens.calibration import Line
from tests.unit.conversations import budget, shares_with, sure

FREE = shares_with(reserve=0.05)
LIMITS: dict[str, tuple[Window, int | None, Shares, int]] = {
    "the window less the output cap": (Window(128_000, "config"), 4_000, shares_with(), 124_000),
    "but no more than a quarter of the window": (Window(128_000, "config"), 100_000, shares_with(), 96_000),
    "less five percent where it names no cap": (Window(8_000, "config"), None, shares_with(), 7_600),
    "and at most 8,192": (Window(1_000_000, "config"), None, shares_with(), 1_000_000 - 8_192),
    "and no more than the model can answer": (
        Window(128_000, "config", None, 4_096),
        None,
        shares_with(),
        128_000 - 4_096,
    ),
    "the models own for prompts": (Window(400_000, "config", max_input=272_000), 10_000, shares_with(), 272_000),
    "a quarter, too, where the cap is larger than the window": (Window(4_000, "config"), 8_000, shares_with(), 3_000),
    **{
        f"less a share that stays free, or {output} if that is more": (
            Window(200_000, "config", None, 4_096),
            output,
            FREE,
            limit,
        )
        for output, limit in ((None, 190_000), (1_000, 190_000), (10_000, 190_000), (10_001, 189_999))
    },
}


@pytest.mark.parametrize(("window", "output", "shares", "limit"), LIMITS.values(), ids=LIMITS)
def test_the_limit_is(window: Window, output: int | None, shares: Shares, limit: int) -> None:
    assert budget_for(window, output, shares).limit == limit


@pytest.mark.parametrize(("window", "trigger"), [(128_000, 84_000), (5_000, 4_037), (8_000, 5_320), (6_000, 4_096)])
def test_the_trigger_is_a_share_of_the_limit_but_not_below_the_floor(window: int, trigger: int) -> None:
    """0.70 L, but at least 4,096 tokens, or 0.85 L where that is less."""
    reserve = 8_000 if window == 128_000 else None
    assert budget_for(Window(window, "config"), reserve, shares_with()).trigger.tokens == trigger


@pytest.mark.parametrize(
    ("window", "summary", "fill"),
    [(2_000, 256, 285), (8_000, 456, 1_140), (128_000, 2_048, 16_384), (1_000_000, 2_048, 16_384)],
)
def test_summary_and_tail_take_a_share_of_the_limit_within_bounds(window: int, summary: int, fill: int) -> None:
    budget = budget_for(Window(window, "config"), None, shares_with())
    assert (budget.summary, budget.tail_fill) == (summary, fill)


@pytest.mark.parametrize(
    ("window", "shares", "trigger", "target", "cost_gate_limit"),
    [
        (128_000, shares_with(), 84_000, 60_000, 114_000),
        (200_000, shares_with(), 134_400, 80_000, 160_000),
        (1_000_000, shares_with(), 160_000, 80_000, 160_000),
        (1_000_000, shares_with().for_model(260_000), 260_000, 130_000, 260_000),
        (1_000_000, shares_with(cap=None), 694_400, 496_000, 942_400),
        (1_000_000, shares_with(cap=None).for_model(260_000), 694_400, 496_000, 942_400),
        (1_000_000, shares_with(0.5, cap=90_000).for_model(260_000), 90_000, 45_000, 90_000),
    ],
)
def test_the_trigger_is_capped_and_the_target_is_half_of_that_however_large_the_window(
    window: int, shares: Shares, trigger: int, target: int, cost_gate_limit: int
) -> None:
    budget = budget_for(Window(window, "config"), 8_000, shares)
    assert (budget.trigger.tokens, budget.target, budget.cost_gate_limit) == (trigger, target, cost_gate_limit)


def test_where_tokens_are_only_guessed_the_trigger_is_lower() -> None:
    one, guessed = (budget_for(Window(8_000, "config"), None, shares_with(), caution=c) for c in (1, HEURISTIC_CAUTION))
    assert guessed.trigger.tokens == int(one.trigger.tokens * 0.85)
    assert (guessed.caution, one.caution) == (0.85, 1.0)
    assert guessed.limit == one.limit


def test_limits_are_turned_into_estimates_once_and_shares_of_them_without_the_offset() -> None:
    budget = budget_for(Window(101_000, "config"), 1_000, shares_with(), Line(offset=500, ratio=1.25))
    assert (budget.window, budget.limit, budget.trigger.tokens, budget.target) == (101_000, 79_600, 55_600, 39_600)
    assert (budget.tail, budget.summary, budget.fold) == (24_000, 1_638, 24_000)


def test_a_prompt_leaves_room_for_the_thinking_budget_and_the_trigger_does_not_depend_on_it() -> None:
    window, output = Window(100_000, "config"), 32_000
    plain, thinking = (budget_for(window, output, shares_with(), thinking=tokens) for tokens in (0, 31_999))
    assert (plain.limit, thinking.limit) == (75_000, 64_600)
    assert plain.trigger == thinking.trigger
    assert budget_for(window, output, shares_with(), thinking=40_000).limit == 64_600
    assert budget_for(window, output, shares_with(), thinking=20_000) == plain


def test_the_tail_is_as_much_smaller_as_the_trigger_is_below_the_target() -> None:
    """A trigger of 6,000 tokens in a large window: a tail of 16,384 would leave nothing to summarise."""
    shares = shares_with(None, cap=6_000, floor_tokens=0)
    assert budget_for(Window(128_000, "config"), 8_000, shares).tail_fill == 900


def test_a_request_may_set_the_trigger_and_the_shares_follow_it() -> None:
    budget = budget_for(Window(128_000, "config"), 8_000, shares_with(), threshold=7_000)
    assert (budget.limit, budget.trigger.tokens, budget.target) == (120_000, 7_000, 5_000)
    assert (budget.tail, budget.summary, budget.fold) == (3_000, 600, 3_000)
    assert budget.cost_gate_limit == 0


SIZES = Window(100_000, "config")


def trigger_of(shares: Shares, **more: Any) -> Trigger:
    return budget_for(SIZES, 10_000, shares, **more).trigger


@pytest.mark.parametrize(
    ("shares", "most"),
    [
        (shares_with(0.5), 45_000),
        (shares_with(0.5, of_window=True), 50_000),
        (shares_with(cap=30_000), 30_000),
        (shares_with(None), 90_000),
        (shares_with(0.5, cap=60_000), 45_000),
        (shares_with(0.02), 4_096),
        (shares_with(0.02, floor_tokens=95_000), 76_500),
        (shares_with(0.02, floor_tokens=95_000, floor=1.0), 90_000),
    ],
)
def test_the_trigger_fires_one_token_over_what_is_set(shares: Shares, most: int) -> None:
    trigger = trigger_of(shares)
    assert not trigger.fires(most)
    assert trigger.fires(most + 1)
    assert trigger.quiet_tokens == most


def test_what_was_not_summarised_is_measured_without_the_offset() -> None:
    trigger = trigger_of(shares_with(None, since_checkpoint=0.10), line=Line(offset=900, ratio=1.25))
    assert not trigger.fires(50_000, since=8_000)
    assert trigger.fires(50_000, since=8_001)


def test_the_cost_gate_may_put_off_a_compaction_up_to_a_share_of_the_limit() -> None:
    window = Window(100_000, "config")
    assert budget_for(window, 0, shares_with()).cost_gate_limit == 95_000
    assert budget_for(window, 0, shares_with(), caution=0.85).cost_gate_limit == 0.85 * 95_000
    assert budget_for(window, 0, shares_with(), Line(1_000, 2.0)).cost_gate_limit == 47_000


# Of a limit of 10,000: nothing is made up to 5,500, the trigger is at 7,000, and a view over 9,700 is not sent.
BUDGET = budget(10_000)
CAUTIOUS = budget(10_000, trigger=5_950, target=4_250, caution=0.85)
"""Limits where tokens are only estimated by bytes."""

BEGINS: dict[str, tuple[int, Budget, int]] = {
    "at the trigger where there is time": (2_700, BUDGET, 7_000),
    "earlier where the free room is less than the growth": (3_200, BUDGET, 6_500),
    "not below 0.55 of the limit": (9_000, BUDGET, 5_500),
    "nor where the target is far lower": (9_000, budget(10_000, target=2_000), 5_500),
    "at a trigger below that": (9_000, budget(10_000, trigger=3_000), 3_000),
    "not where hardly anything can be freed": (9_000, budget(10_000, target=6_000), 6_600),
    "at the trigger without growth": (0, BUDGET, 7_000),
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


def test_the_cost_gate_puts_it_off_no_longer_than_there_is_time() -> None:
    gated = budget(10_000, cost_gate_limit=9_500)
    assert background_budget(gated, 100).cost_gate_limit == 9_500
    assert background_budget(gated, 1_000).cost_gate_limit == latest_start(gated, 1_000) == 8_700
    assert background_budget(gated, 9_000).cost_gate_limit == 5_500
    assert background_budget(BUDGET, 1_000).cost_gate_limit == 0


def test_a_request_goes_on_without_its_summary_up_to_a_share_of_the_limit_and_a_little_over_a_cap() -> None:
    assert [most_without_summary(limits) for limits in (BUDGET, CAUTIOUS)] == [9_700, 8_245]
    assert most_without_summary(budget(1_000_000, trigger=160_000, target=80_000, room=160_000)) == 166_400


def test_the_expected_growth_counts_against_target_and_tail_down_to_half_of_them() -> None:
    limits = budget(10_000, tail_fill=1_500)
    ahead = background_budget(limits, 300)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.limit) == (4_700, 2_700, 1_200, 10_000)
    ahead = background_budget(limits, 50_000)
    assert (ahead.target, ahead.tail, ahead.tail_fill) == (2_500, 1_500, 750)
    assert LEAST_KEPT == 0.5


def test_an_output_cap_is_lowered_only_where_it_does_not_fit_beside_the_prompt() -> None:
    limits = budget_for(Window(100_000, "config"), 10_000, shares_with())
    assert output_cap(limits, 90_000, 10_000, 0) is None
    assert 30_000 < sure(output_cap(limits, 60_000, 60_000, 0)) < 40_000


@pytest.mark.parametrize(
    ("most", "media", "limit", "left"),
    [(None, 900_000, 90_000, 700_000), (None, 0, 42_000, 700_000), (500_000, 0, 27_000, 450_000)],
)
def test_a_body_that_is_too_large_loses_media_or_else_tokens(
    most: int | None, media: int, limit: int, left: int
) -> None:
    limits = budget_for(Window(100_000, "config"), 10_000, shares_with())
    sent = Payload(60_000, 1_000, size=1_000_000, media_bytes=media)
    smaller = sure(sure(limits_after(Overflow("payload", limit_bytes=most), limits, sent)).budget)
    assert (smaller.limit, smaller.body_bytes) == (limit, left)

"""The budget: limit, trigger, target, tail, by the settings and by the window."""

from typing import Any

import pytest

from app.core.limits.budget import Line, Rule, Shares, Window, budget_for
from app.core.limits.trigger import Size, Trigger


def test_the_limit_is_the_window_less_what_the_request_reserves() -> None:
    assert budget_for(Window(128_000, "config"), 4_000, Shares()).limit == 124_000


def test_without_a_reserve_five_percent_are_kept_at_most_8192() -> None:
    assert budget_for(Window(8_000, "config"), None, Shares()).limit == 7_600
    assert budget_for(Window(1_000_000, "config"), None, Shares()).limit == 1_000_000 - 8_192


def test_a_model_that_cannot_answer_longer_needs_no_larger_reserve() -> None:
    assert budget_for(Window(128_000, "config", max_output=4_096), None, Shares()).limit == 128_000 - 4_096


@pytest.mark.parametrize(("output", "limit"), [(None, 190_000), (1_000, 190_000), (10_000, 190_000), (10_001, 189_999)])
def test_a_share_of_the_window_stays_free_unless_the_request_reserves_more(output: int | None, limit: int) -> None:
    window = Window(200_000, "config", max_output=4_096)
    assert budget_for(window, output, Shares(reserve=0.05)).limit == limit


def test_the_prompt_has_a_limit_of_its_own() -> None:
    assert budget_for(Window(400_000, "config", max_input=272_000), 10_000, Shares()).limit == 272_000


@pytest.mark.parametrize(
    ("output", "floor", "limit"),
    [
        (30_000, 2_000, 2_768),
        (30_000, 2_256, 2_768),
        (30_000, 2_257, 31_130),
        (32_000, 0, 768),
        (32_000, 300, 31_130),
        (32_768, 0, 31_130),
        (1_000_000, 0, 31_130),
        (32_000, 31_129, 31_130),
        (32_000, 31_130, 32_768),
        (32_000, 32_767, 32_768),
        (32_000, 32_768, 768),
        (None, 31_129, 31_130),
        (None, 31_130, 32_768),
        (0, 32_000, 32_768),
        (500, 32_267, 32_268),
        (500, 32_268, 32_768),
    ],
)
def test_the_reserve_gives_way_to_what_goes_in_any_case(output: int | None, floor: int, limit: int) -> None:
    """First to the usual one, then to none; where even the window is too small it stays."""
    whole = budget_for(Window(32_768, "config"), output, Shares())
    budget = whole.for_floor(floor)
    assert budget.limit == budget.reported_limit == limit
    assert budget.trigger.tokens <= limit
    if budget is whole:
        assert budget.given_way == 0
    else:
        assert budget.given_way == whole.reserve > budget.reserve


def test_in_a_small_window_a_reserve_gives_way_later() -> None:
    whole = budget_for(Window(4_096, "config"), 2_048, Shares())
    assert whole.for_floor(1_844).limit == 2_048
    assert whole.for_floor(1_845).limit == 4_096 - 204


def test_a_share_that_is_kept_free_gives_way_last() -> None:
    whole = budget_for(Window(100_000, "config"), 99_000, Shares(reserve=0.25))
    assert whole.for_floor(5_000).limit == 75_000
    assert whole.for_floor(80_000).limit == 100_000


def test_a_limit_of_the_models_own_for_prompts_does_not_give_way() -> None:
    whole = budget_for(Window(400_000, "config", max_input=272_000), 390_000, Shares())
    roomier = whole.for_floor(20_000)
    assert (roomier.limit, roomier.roomier) == (272_000, None)
    assert whole.for_floor(300_000) is whole


def test_a_reserve_larger_than_the_window_leaves_nothing() -> None:
    assert budget_for(Window(4_000, "config"), 8_000, Shares()).limit == 0


@pytest.mark.parametrize(("window", "trigger"), [(128_000, 84_000), (5_000, 4_037), (8_000, 5_320), (6_000, 4_096)])
def test_the_trigger_is_a_share_of_the_limit_but_not_below_the_floor(window: int, trigger: int) -> None:
    """0.70 L, but at least 4,096 tokens, or 0.85 L where that is less."""
    reserve = 8_000 if window == 128_000 else None
    assert budget_for(Window(window, "config"), reserve, Shares()).trigger.tokens == trigger


def test_the_target_lies_below_the_trigger() -> None:
    budget = budget_for(Window(8_000, "config"), None, Shares())
    assert (budget.target, budget.tail, budget.fold) == (3_800, 2_280, 2_280)


@pytest.mark.parametrize(("window", "size"), [(8_000, 456), (2_000, 256), (200_000, 2_048)])
def test_a_summary_takes_a_share_of_the_limit_within_bounds(window: int, size: int) -> None:
    assert budget_for(Window(window, "config"), None, Shares()).summary == size


def test_where_tokens_are_only_guessed_the_trigger_is_lower() -> None:
    sure, guessed = (budget_for(Window(8_000, "config"), None, Shares(), caution=by) for by in (1.0, 0.85))
    assert guessed.trigger.tokens == int(sure.trigger.tokens * 0.85)
    assert (guessed.caution, sure.caution) == (0.85, 1.0)
    assert guessed.limit == sure.limit


def test_limits_are_turned_into_estimates_once_and_shares_of_them_without_the_offset() -> None:
    budget = budget_for(Window(101_000, "config"), 1_000, Shares(), Line(offset=500, ratio=1.25))
    assert (budget.window, budget.limit, budget.trigger.tokens, budget.target) == (101_000, 79_600, 55_600, 39_600)
    assert (budget.tail, budget.summary, budget.fold) == (24_000, 1_638, 24_000)


def test_an_estimate_within_its_limit_is_reported_within_the_providers() -> None:
    line = Line(offset=490, ratio=1.12)
    assert line.reported(line.estimate(128_000)) <= 128_000 < line.reported(line.estimate(128_000) + 2)


@pytest.mark.parametrize(("window", "fill"), [(8_000, 1_140), (128_000, 16_384), (1_000_000, 16_384)])
def test_the_tail_fills_a_share_of_the_limit_up_to_a_bound(window: int, fill: int) -> None:
    assert budget_for(Window(window, "config"), None, Shares()).tail_fill == fill


def test_the_tail_is_as_much_smaller_as_the_trigger_is_below_the_target() -> None:
    """A trigger of 6,000 tokens in a large window: a tail of 16,384 would leave nothing to summarise."""
    shares = Shares(trigger=(Rule(tokens=6_000),), floor_tokens=0)
    assert budget_for(Window(128_000, "config"), 8_000, shares).tail_fill == 1_800


def test_an_offset_larger_than_the_limit_leaves_nothing() -> None:
    assert Line(offset=1_500).estimate(1_000) == 0


def test_a_request_may_set_the_trigger_and_the_shares_follow_it() -> None:
    budget = budget_for(Window(128_000, "config"), 8_000, Shares(), threshold=7_000)
    assert (budget.limit, budget.trigger.tokens, budget.target) == (120_000, 7_000, 5_000)
    assert (budget.tail, budget.summary, budget.fold) == (3_000, 600, 3_000)


def test_a_trigger_over_the_limit_is_the_limit() -> None:
    budget = budget_for(Window(8_000, "config"), 400, Shares(), threshold=50_000)
    assert (budget.trigger.tokens, budget.target) == (7_600, 3_800)


SIZES = Window(100_000, "config")


def trigger_of(*rules: Rule, **more: Any) -> Trigger:
    return budget_for(SIZES, 10_000, Shares(trigger=rules, floor_tokens=0), **more).trigger


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (Rule(token_ratio=0.5), 45_000),
        (Rule(token_ratio=0.5, of="window"), 50_000),
        (Rule(tokens=30_000), 30_000),
        (Rule(remaining_tokens=20_000), 79_999),
        (Rule(overflow=True), 90_000),
        (Rule(token_ratio=0.5, tokens=60_000), 60_000),
        (Rule(remaining_tokens=20_000, overflow=True), 90_000),
    ],
)
def test_every_kind_of_trigger_fires_one_token_over_what_it_says(rule: Rule, most: int) -> None:
    trigger = trigger_of(rule)
    assert not trigger.fires(Size(most))
    assert trigger.fires(Size(most + 1))
    assert trigger.tokens == most


def test_of_several_alternatives_one_is_enough() -> None:
    trigger = trigger_of(Rule(tokens=30_000), Rule(turns=5))
    assert trigger.fires(Size(30_001))
    assert trigger.fires(Size(10, turns=6))
    assert not trigger.fires(Size(30_000, turns=5))


def test_what_was_not_summarised_is_measured_without_the_offset() -> None:
    rules = [Rule(since_checkpoint_ratio=0.10, of="window"), Rule(since_checkpoint_ratio=0.10)]
    for rule, most in zip(rules, (8_000, 7_200), strict=True):
        trigger = trigger_of(rule, line=Line(offset=900, ratio=1.25))
        assert not trigger.fires(Size(50_000, since=most))
        assert trigger.fires(Size(50_000, since=most + 1))


def test_a_trigger_by_turns_or_messages_leaves_the_target_a_share_of_the_limit() -> None:
    budget = budget_for(SIZES, 10_000, Shares(trigger=(Rule(messages=3),), floor_tokens=0))
    assert budget.target == 45_000
    assert budget.trigger.fires(Size(1, messages=3))
    assert not budget.trigger.fires(Size(1, messages=2))


def test_the_target_is_never_over_a_trigger_in_tokens() -> None:
    assert budget_for(SIZES, 10_000, Shares(trigger=(Rule(tokens=20_000),))).target == 20_000

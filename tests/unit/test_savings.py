"""Savings: what the client's own request would have cost, from what the provider said of the one that was sent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.tokens.savings import EarlierRequest, PromptEstimate, earlier_request, saved_cost, uncompacted_usage
from app.tokens.usage import UNBILLED, Bill, Charge, Price, Tariff, Tokens, charge

TARIFF = Tariff("model", "settings", ((0, Price(10, 50, cached=1, written=12.5)),))
COMPACTED = EarlierRequest(
    PromptEstimate(50_000, 10_000), prompt=10_000, whole=50_000, counted=(50_000, 50_000), caches=True
)
"""A request of which 40,000 tokens were taken out."""


def whole(
    tokens: Tokens,
    came: int,
    sent: int,
    before: EarlierRequest | None = COMPACTED,
    *,
    recent: bool = True,
    ratio: float = 1.0,
) -> Tokens:
    return uncompacted_usage(tokens, PromptEstimate(came, sent, ratio), before, recent=recent)


# What was sent as it came


def test_a_request_of_which_nothing_was_ever_taken_is_what_was_reported() -> None:
    tokens = Tokens(900, 10, 300)
    earlier = later(Tokens(800, 10), PromptEstimate(700, 700), None)
    assert whole(tokens, 1_000, 1_000, None) is tokens
    assert whole(tokens, 1_000, 1_000, earlier) is tokens


def test_nothing_is_known_where_nothing_was_reported() -> None:
    assert whole(Tokens(), 1_000, 500) == Tokens()
    assert earlier_request(Tokens(), Tokens(), PromptEstimate(1, 1), None) is None
    assert earlier_request(Tokens(0, 1), Tokens(0, 1), PromptEstimate(1, 1), None) is None


# The same was done to it as to the one before


def test_what_was_taken_out_is_read_with_the_rest_where_the_same_was_taken_before() -> None:
    """1,000 tokens are new in both; of the 10,000 before them the cache had all but 100."""
    expected = Tokens(51_000, 10, 49_900)
    assert whole(Tokens(11_000, 10, 9_900), 51_000, 11_000) == expected
    assert whole(Tokens(11_000, 10, 9_900), 51_300, 11_300) == expected, "the provider's count holds, not the estimate"


def test_where_the_cache_had_little_of_the_same_prompt_it_had_nothing_of_what_was_taken_out() -> None:
    assert whole(Tokens(11_000, 10, 200), 51_000, 11_000) == Tokens(51_000, 10, 200)


def test_as_large_a_share_of_what_is_new_is_written_to_the_cache() -> None:
    found = whole(Tokens(11_000, 10, 9_900, written=1_100), 51_000, 11_000)
    assert found == Tokens(51_000, 10, 49_900, written=1_100)
    missed = whole(Tokens(11_000, 10, 0, written=5_500, written_hour=1_100), 51_000, 11_000)
    assert missed == Tokens(51_000, 10, 0, written=25_500, written_hour=5_100)


# Something else was done to it


def test_a_change_breaks_the_cache_for_what_is_sent_and_not_for_what_came() -> None:
    """The estimate says what was added; the one before is read from the cache, but for what never was."""
    found = whole(Tokens(8_000, 10, 500), 52_000, 8_000)
    assert found == Tokens(52_000, 10, 50_000)
    lagging = whole(Tokens(8_000, 10, 500), 52_000, 8_000, replace(COMPACTED, lag=128))
    assert lagging == Tokens(52_000, 10, 49_872)


def test_what_was_added_is_measured_by_what_was_counted_of_the_conversation() -> None:
    """1,000 of our tokens were 1,500 at first and 500 later on, in a payload of which something was taken out."""
    first = later(Tokens(1_500, 10, 0), PromptEstimate(1_000, 1_000), None)
    changed = later(Tokens(300, 10, 0), PromptEstimate(2_000, 200), first)
    grown = later(Tokens(800, 10, 300), PromptEstimate(3_000, 1_200), changed)
    assert [each.whole for each in (first, changed, grown)] == [1_500, 3_000, 3_500]
    assert later(Tokens(100, 10, 0), PromptEstimate(4_000, 100), grown).whole == 4_500


@pytest.mark.parametrize(
    ("before", "recent"),
    [(COMPACTED, False), (replace(COMPACTED, caches=False), True)],
    ids=["too long ago", "nothing is kept"],
)
def test_a_change_costs_no_cache_where_there_was_none(before: EarlierRequest, recent: bool) -> None:
    assert whole(Tokens(8_000, 10, 500), 52_000, 8_000, before, recent=recent) == Tokens(52_000, 10, 500)


def test_a_provider_that_tells_nothing_of_its_cache_has_none() -> None:
    assert whole(Tokens(8_000, 10), 52_000, 8_000) == Tokens(52_000, 10)


def test_what_is_sent_whole_again_is_compared_with_what_came_before() -> None:
    assert whole(Tokens(52_000, 10, 500), 52_000, 52_000) == Tokens(52_000, 10, 50_000)


# Nothing is known of an earlier one


def test_without_an_earlier_request_the_estimate_says_what_was_taken_out() -> None:
    assert whole(Tokens(8_000, 10, 500), 52_000, 8_000, None, ratio=1.5) == Tokens(74_000, 10, 500)
    assert whole(Tokens(8_000, 10, 6_000), 52_000, 8_000, None) == Tokens(52_000, 10, 50_000)


def test_no_estimate_makes_a_prompt_of_nothing() -> None:
    assert whole(Tokens(8_000, 10, 500), 8_000, 20_000, None).prompt == 1


# What is known of it later


def later(tokens: Tokens, sizes: PromptEstimate, before: EarlierRequest | None) -> EarlierRequest:
    found = earlier_request(tokens, uncompacted_usage(tokens, sizes, before, recent=True), sizes, before)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (Tokens(1_000, 10, 500), True),
        (Tokens(1_000, 10, 499), False),
        (Tokens(1_000, 10, None, written=1_000), True),
        (Tokens(1_000, 10, 300, written=200), True),
        (Tokens(1_000, 10), False),
    ],
)
def test_a_provider_keeps_prompts_of_which_it_read_or_wrote_most(tokens: Tokens, expected: bool) -> None:
    assert later(tokens, PromptEstimate(1_000, 1_000), None).caches is expected


def test_a_large_turn_does_not_hide_that_all_before_it_was_read() -> None:
    before = later(Tokens(1_000, 10, 0), PromptEstimate(1_000, 1_000), None)
    found = later(Tokens(9_000, 10, 950), PromptEstimate(9_000, 9_000), before)
    assert (found.caches, found.lag) == (True, 50)


def test_the_same_prompt_that_is_not_read_is_not_kept() -> None:
    found = later(Tokens(11_000, 10, 0), PromptEstimate(51_000, 11_000), replace(COMPACTED, lag=7))
    assert (found.caches, found.lag) == (False, 7)


def test_what_was_read_and_what_was_written_count_together() -> None:
    found = later(Tokens(11_000, 10, 3_000, written=3_000), PromptEstimate(51_000, 11_000), replace(COMPACTED, lag=7))
    assert (found.caches, found.lag) == (True, 7)


def test_a_change_says_nothing_about_what_is_kept() -> None:
    found = later(Tokens(8_000, 10, 0), PromptEstimate(52_000, 8_000), replace(COMPACTED, lag=7))
    assert (found.prompt, found.whole, found.caches, found.lag) == (8_000, 52_000, True, 7)
    assert later(Tokens(8_000, 10), PromptEstimate(52_000, 8_000), COMPACTED).caches


def test_what_is_paid_to_be_kept_for_an_hour_is_until_something_else_is_written() -> None:
    hour = later(Tokens(1_000, 10, 0, written=1_000, written_hour=1_000), PromptEstimate(1_000, 1_000), None)
    read = later(Tokens(1_000, 10, 1_000), PromptEstimate(1_000, 1_000), hour)
    written = later(Tokens(1_200, 10, 1_000, written=200), PromptEstimate(1_200, 1_200), read)
    assert (hour.long, read.long, written.long) == (True, True, False)


# Money


def cost_of(
    tokens: Tokens, instead: Tokens | None, bill: Bill = UNBILLED, tariff: Tariff | None = TARIFF
) -> float | None:
    return saved_cost(tokens, instead, bill, charge(tokens, bill, tariff), tariff)


def test_what_is_saved_is_what_it_would_have_cost_less_what_it_cost() -> None:
    saved = cost_of(Tokens(11_000, 10, 9_900), Tokens(51_000, 10, 49_900))
    assert saved == pytest.approx(40_000 * 1 / 1e6)
    lost = cost_of(Tokens(8_000, 10, 500), Tokens(52_000, 10, 50_000))
    assert lost is not None
    assert lost == pytest.approx((2_000 * 10 + 50_000 - 7_500 * 10 - 500) / 1e6)
    assert lost < 0


def test_a_larger_prompt_is_charged_by_its_own_step() -> None:
    stepped = replace(TARIFF, steps=((0, Price(10, 50)), (200_000, Price(20, 75))))
    saved = cost_of(Tokens(100_000, 100), Tokens(300_000, 100), tariff=stepped)
    assert saved == pytest.approx((300_000 * 20 + 100 * 75 - 100_000 * 10 - 100 * 50) / 1e6)


def test_a_call_that_the_client_did_not_make_is_a_loss() -> None:
    assert cost_of(Tokens(1_000, 100), None) == pytest.approx(-(1_000 * 10 + 100 * 50) / 1e6)
    assert cost_of(Tokens(1_000, 100), None, Bill(cost=0.5), None) == -0.5


def test_where_the_provider_billed_the_difference_is_the_tables() -> None:
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), Bill(cost=9.0)) == pytest.approx(0.4)
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), Bill(cost=9.0), None) is None
    assert cost_of(Tokens(11_000, 10), Tokens(11_000, 10), Bill(cost=9.0), None) == 0.0


def test_nothing_is_said_of_what_has_no_price_or_no_tokens() -> None:
    assert cost_of(Tokens(11_000, 10), Tokens(51_000, 10), tariff=None) is None
    assert saved_cost(Tokens(), Tokens(), UNBILLED, Charge(), TARIFF) is None

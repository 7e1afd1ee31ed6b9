"""The cost gate: a change of the prompt is made where it saves what it costs within the next requests."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.cost_gate import Change, change_of_mask, change_of_plan, is_worth
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks
from app.compaction.plan import Plan, calls_of_plan
from app.compaction.planning_state import PlanningState
from app.compaction.view import Conversation
from app.tokens.costs import Price, Rates, rates_of
from tests.unit.conversations import (
    SETTINGS,
    budget,
    case,
    chunk,
    conversation,
    cost,
    message,
    plan_compaction,
    sure,
    turns,
)

PRICE = Price(prompt=1.25, completion=10, cached=0.125)
WARM = Rates(1.25, 0.125)
COLD = Rates(1.25, 1.25)
FAST = 1_000
"""Growth by so many tokens with each request: no more requests are counted on than those that are set."""
PREFIX = replace(SETTINGS, style="prefix")
QUESTION = message("user", "the last question")
TALK = conversation(message("system", "be brief", tokens=10), *turns(16, size=25), QUESTION)
"""Instructions of 10 tokens, 16 turns of 50, a question of 3."""
LIMITS = budget(1_000, tail=200, summary=40)


def planned() -> tuple[PlanningState, Plan]:
    plan = sure(plan_compaction(TALK, (), LIMITS, SETTINGS, "additive"))
    return case(TALK, limits=LIMITS), plan


# The rule


LONG_AGO = 20 * 1_000 * 0.125
"""Costs of calls that 20 requests make up for."""
WORTH: dict[str, tuple[Change, Rates, float, bool]] = {
    # Freeing 1,000 tokens saves 10 x 1,000 x 0.125 = 1,250; reading 1,000 anew costs 1,000 x 1.125 = 1,125.
    "what saves more than it costs": (Change(1_000, 1_000, FAST), WARM, 0.0, True),
    "with calls that cost the difference": (Change(1_000, 1_000, FAST), WARM, 125.0, True),
    "not with dearer ones": (Change(1_000, 1_000, FAST), WARM, 126.0, False),
    "not over too few requests": (Change(1_000, 1_112, FAST), WARM, 0.0, False),
    # By 25 tokens with each: 1,000 have grown back after 40, in the mean of which half are there.
    "over more requests where a conversation grows slowly": (Change(1_000, 0, 25), WARM, LONG_AGO, True),
    "not where it grows faster": (Change(1_000, 0, 26), WARM, LONG_AGO, False),
    "what does not grow as if it grew by a token": (Change(1_000, 0, 0.0), WARM, 500 * 125.0, True),
    "and no longer than that": (Change(1_000, 0, 0.0), WARM, 501 * 125.0, False),
    "anything that is read anew in any case": (Change(1, 1_000_000, FAST), COLD, 0.0, True),
    "but not for dear calls": (Change(1_000, 0, FAST), COLD, 12_501.0, False),
}


@pytest.mark.parametrize(("change", "rates", "calls", "worth"), WORTH.values(), ids=WORTH)
def test_worth_it_is(change: Change, rates: Rates, calls: float, worth: bool) -> None:
    assert is_worth(change, rates, calls) is worth


def test_a_prompt_that_is_not_warm_costs_what_it_costs_and_one_that_is_what_the_cache_does() -> None:
    """Without a price of cached tokens there are no rates."""
    writing = replace(PRICE, written=1.5625)
    assert rates_of(PRICE, warm=False) == rates_of(writing, warm=False) == COLD
    assert (rates_of(PRICE, warm=True), rates_of(writing, warm=True)) == (WARM, Rates(1.5625, 0.125))
    assert rates_of(Price(1.25, 10), warm=True) is None


# What a compaction does


def test_a_compaction_frees_what_the_view_loses_and_rewrites_what_follows_the_instructions() -> None:
    """Thirteen turns of 50 become a summary of 40; three turns and the question stay, with 153 tokens."""
    case_, plan = planned()
    assert plan.messages == 26
    change = change_of_plan(case_, plan, SETTINGS)
    assert (change.freed, change.rewritten) == (650 - 40, 40 + 153)


def test_each_answer_is_a_request_by_which_the_conversation_grew() -> None:
    """Sixteen of them, and 803 tokens beside the instructions."""
    case_, plan = planned()
    assert change_of_plan(case_, plan, SETTINGS).growth == 803 / 16
    silent = conversation(*[message("user", "word " * 100) for _ in range(9)], QUESTION)
    alone = sure(plan_compaction(silent, (), LIMITS, SETTINGS, "additive"))
    assert change_of_plan(case(silent, limits=LIMITS), alone, SETTINGS).growth == 903


def test_summaries_that_stay_are_not_rewritten_and_one_of_everything_takes_their_place() -> None:
    talk = conversation(message("system", "be brief", tokens=10), *turns(20, size=25), QUESTION)
    held = chunk(talk, 0, 12, tokens=40)
    plan = sure(plan_compaction(talk, (held,), LIMITS, SETTINGS, "additive"))
    assert change_of_plan(case(talk, held, limits=LIMITS), plan, SETTINGS).rewritten == 40 + 153
    rolling = replace(SETTINGS, strategy="rolling")
    plan = sure(plan_compaction(talk, (held,), LIMITS, rolling, "rolling"))
    change = change_of_plan(case(talk, held, limits=LIMITS), plan, rolling)
    assert (change.freed, change.rewritten) == ((10 + 40 + 14 * 50 + 3) - (10 + 40 + 153), 40 + 153)


# What its calls cost


def test_a_call_reads_the_quoted_messages_and_writes_a_summary() -> None:
    """650 tokens, 6 more for each of 26 headings, the rules twice (10 characters are 2.5 tokens); 40 are written."""
    _, plan = planned()
    read = 650 + 6 * 26 + 5
    assert calls_of_plan(TALK, plan, LIMITS, SETTINGS, PRICE, None) == pytest.approx(read * 1.25 + 40 * 10)
    dearer = replace(SETTINGS, ratio=1.5)
    assert calls_of_plan(TALK, plan, LIMITS, dearer, PRICE, None) == pytest.approx(1.5 * (read * 1.25 + 40 * 10))


def test_what_the_summarisers_provider_has_in_its_cache_costs_what_reading_it_again_does() -> None:
    """The instructions and the 650 tokens as they stand in the conversation; only the rules are new."""
    _, plan = planned()
    assert calls_of_plan(TALK, plan, LIMITS, PREFIX, PRICE, WARM) == pytest.approx(660 * 0.125 + 5 * 1.25 + 40 * 10)
    assert calls_of_plan(TALK, plan, LIMITS, PREFIX, PRICE, None) == pytest.approx(660 * 1.25 + 5 * 1.25 + 40 * 10)


# What a mask does


def stepping(*steps: int) -> Conversation:
    """A question, and calls that each have a result of 300 tokens and an answer, and the last question."""
    history = [message("user", "find it")]
    for step in steps:
        history += [
            message("assistant", calls=[f"c{step}"], tokens=10),
            message("tool", "row " * 300, answers=f"c{step}"),
            message("assistant", "I see.", tokens=2),
        ]
    return conversation(*history, message("user", "thanks"))


def masking(talk: Conversation, *boundaries: MaskBoundary) -> Masking:
    return Masking(Masks(talk.transcript, MaskPolicy(), cost), boundaries)


def test_a_mask_rewrites_what_follows_the_first_result_that_it_masks() -> None:
    """Where it moves, what was masked before stays."""
    talk = stepping(1, 2, 3)
    for found, masked, first in ((masking(talk), 0, 2), (masking(talk, MaskBoundary(4, 0)), 4, 5)):
        size = found.masks.saved(0, 10) - found.masks.saved(0, masked)
        change = change_of_mask(case(talk, masking=found), found, MaskBoundary(10, 0))
        assert change == Change(size, talk.transcript.tokens(first) - size, talk.transcript.tokens(0) / 6)

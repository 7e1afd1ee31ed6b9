"""How early a compaction begins: as late as is safe, and as early as costs little."""

from __future__ import annotations

import pytest

from app.core.history.messages import Message
from app.core.limits.ahead import (
    LEAST_KEPT,
    budget_ahead,
    latest_steps,
    least_looked_at,
    least_remembered,
    most_without,
    nearer_trigger,
    requests_meanwhile,
    soft_threshold,
)
from app.core.limits.budget import Budget
from app.core.limits.trigger import Condition, Size, Trigger
from tests.unit.conversations import budget, message, transcript_of, turns

# Of a limit of 10,000: soft at 5,500, the trigger at 7,000, and over 9,700 requests wait.
LIMITS = budget(10_000)


def begins_at(*steps: int, requests: int, limits: Budget = LIMITS) -> int:
    """A view of more tokens has its next summary made now."""
    return nearer_trigger(limits, steps, requests).tokens


def test_a_compaction_begins_when_the_trigger_is_expected_to_fire_before_its_summary_is_there() -> None:
    assert begins_at(100, 120, 80, requests=1) == 6_900
    assert begins_at(60, 70, 50, requests=3) == 6_820


def test_what_would_begin_far_too_early_to_be_found_in_time_begins_at_the_trigger() -> None:
    """A summary made early stands for less: it would cost more than it helps."""
    assert begins_at(100, 100, requests=2) == 6_800
    assert begins_at(101, 101, requests=2) == 7_000


def test_it_begins_before_requests_may_grow_so_large_that_they_would_have_to_wait() -> None:
    """All of the usual size but one, which is as large as the largest recent one."""
    assert begins_at(1_000, 1_000, 1_000, requests=3) == 6_700
    assert begins_at(200, 200, 2_600, requests=2) == 9_700 - 1_000 - 2_600


@pytest.mark.parametrize("requests", [5, 50, 5_000])
def test_it_never_begins_below_the_soft_threshold(requests: int) -> None:
    assert begins_at(2_000, requests=requests) == 5_500


def test_it_never_begins_where_hardly_anything_could_be_freed() -> None:
    assert soft_threshold(LIMITS) == 5_500
    assert soft_threshold(budget(10_000, target=6_000)) == 6_600


def test_a_view_is_looked_at_where_one_may_be_made_ahead_or_is_due() -> None:
    assert least_looked_at(LIMITS) == 5_500
    assert least_looked_at(budget(10_000, trigger=3_000)) == 3_000


def test_a_history_is_remembered_from_half_of_that_on() -> None:
    assert least_remembered(LIMITS) == 2_750


def test_a_history_without_steps_begins_at_the_trigger() -> None:
    assert begins_at(requests=4) == 7_000


def test_a_trigger_below_the_soft_threshold_stays_where_it_is() -> None:
    assert begins_at(2_000, requests=9, limits=budget(10_000, trigger=3_000)) == 3_000


def test_what_a_trigger_has_beside_tokens_stays_as_it_is() -> None:
    conditions = (Condition(4_000, since=500), Condition(turns=9, messages=4), Condition(10_000))
    nearer = nearer_trigger(budget(10_000, trigger=Trigger(conditions, 2)), [100], 1)
    assert nearer == Trigger((Condition(4_000, since=500), Condition(turns=9, messages=4), Condition(9_600)), 2)


def test_a_nearer_trigger_fires_wherever_the_other_does() -> None:
    for tokens in range(4_000, 10_001, 50):
        size = Size(tokens)
        fires = nearer_trigger(LIMITS, [400], 3).fires(size)
        assert fires or not LIMITS.trigger.fires(size)


def test_a_view_goes_on_up_to_a_share_of_the_limit() -> None:
    assert most_without(LIMITS) == 9_700


def test_shares_are_smaller_where_tokens_are_only_estimated_by_bytes() -> None:
    cautious = budget(10_000, trigger=5_950, target=4_250, caution=0.85)
    assert most_without(cautious) == 8_245
    assert soft_threshold(cautious) == 4_675
    assert begins_at(1_000, 1_000, 1_000, requests=3, limits=cautious) == 8_245 - 3_000


def test_a_step_is_what_a_turn_adds() -> None:
    history = [*turns(3, size=50), message("user", tokens=70)]
    assert latest_steps(transcript_of(history)) == (120, 100, 100)


def test_an_agents_requests_are_steps_of_one_turn() -> None:
    history: list[Message] = [message("user", tokens=1_000)]
    for number, size in enumerate((10, 20, 30)):
        history.append(message("assistant", calls=[f"c{number}"], tokens=5))
        history.append(message("tool", answers=f"c{number}", tokens=size))
    assert latest_steps(transcript_of(history)) == (35, 25, 15)


def test_the_latest_four_steps_count() -> None:
    grown = [message("user", tokens=9_000)]
    for size in (8_000, 1, 2, 3, 4):
        grown += [message("assistant", tokens=0), message("user", tokens=size)]
    assert latest_steps(transcript_of(grown)) == (4, 3, 2, 1)


@pytest.mark.parametrize("history", [[], [message("user", tokens=5)], [message("assistant", tokens=5)]])
def test_a_first_request_has_no_steps(history: list[Message]) -> None:
    assert latest_steps(transcript_of(history)) == ()


@pytest.mark.parametrize(
    ("summary", "request_", "expected"),
    [(20, 7, 3), (21, 7, 3), (22, 7, 4), (0.1, 60, 1), (20, float("inf"), 1), (2, 0, 2_000)],
)
def test_so_many_requests_come_until_the_summary_is_there(summary: float, request_: float, expected: int) -> None:
    assert requests_meanwhile(summary, request_) == expected


def planned(history: list[Message], requests: int, **limits: int) -> Budget:
    """What decides about a compaction that begins after this history and is used so many requests later."""
    return budget_ahead(budget(10_000, tail_fill=1_500, **limits), transcript_of(history), requests)


def chat(size: int) -> list[Message]:
    """Turns of twice that size, and the next question."""
    return [*turns(9, size=size), message("user", tokens=size)]


def test_what_is_expected_to_come_before_the_summary_is_used_counts_against_target_and_tail() -> None:
    """Turns of 100 tokens: three of them come meanwhile."""
    ahead = planned(chat(50), 3, tail_turns=4)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.tail_turns) == (4_700, 2_700, 1_200, 2)
    assert ahead.limit == 10_000
    assert planned(chat(50), 1, tail_turns=4).tail_turns == 3


def test_a_compaction_ahead_begins_by_the_nearer_trigger() -> None:
    history = chat(500)
    nearer = nearer_trigger(LIMITS, latest_steps(transcript_of(history)), 3)
    assert planned(history, 3).trigger == nearer != LIMITS.trigger


def test_half_of_target_and_tail_is_left_whatever_is_expected() -> None:
    ahead = planned(chat(5_000), 5, tail_turns=3)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.tail_turns) == (2_500, 1_500, 750, 2)
    assert LEAST_KEPT == 0.5


def test_an_agents_steps_within_one_turn_take_none_of_the_turns() -> None:
    history = [*turns(2), message("user", tokens=50)]
    for number in range(6):
        history.append(message("assistant", calls=[f"c{number}"], tokens=20))
        history.append(message("tool", answers=f"c{number}", tokens=80))
    ahead = planned(history, 3)
    assert (ahead.target, ahead.tail_turns) == (4_700, 3)


def test_a_first_request_is_planned_for_as_it_is() -> None:
    ahead = planned([message("user", tokens=5)], 4)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.tail_turns) == (5_000, 3_000, 1_500, 3)

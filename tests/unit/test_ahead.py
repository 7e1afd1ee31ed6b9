"""How early a compaction begins: as late as is safe, and as early as costs little."""

from __future__ import annotations

from collections.abc import Sequence

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


CAUTIOUS = budget(10_000, trigger=5_950, target=4_250, caution=0.85)
BEGINS: dict[str, tuple[tuple[int, ...], int, Budget, int]] = {
    "when the trigger is expected to fire before its summary is there": ((100, 120, 80), 1, LIMITS, 6_900),
    "by the mean of the steps": ((60, 70, 50), 3, LIMITS, 6_820),
    "not too early to be found in time": ((100, 100), 2, LIMITS, 6_800),
    # A summary made early stands for less: it would cost more than it helps.
    "at the trigger where it would be far too early": ((101, 101), 2, LIMITS, 7_000),
    "before requests may grow so large that they would have to wait": ((1_000, 1_000, 1_000), 3, LIMITS, 6_700),
    # All of the usual size but one, which is as large as the largest recent one.
    "also if one of them is as large as the largest": ((200, 200, 2_600), 2, LIMITS, 9_700 - 1_000 - 2_600),
    "never below the soft threshold": ((2_000,), 5, LIMITS, 5_500),
    "however many requests come": ((2_000,), 5_000, LIMITS, 5_500),
    "at the trigger without steps": ((), 4, LIMITS, 7_000),
    "at a trigger below the soft threshold": ((2_000,), 9, budget(10_000, trigger=3_000), 3_000),
    "earlier where tokens are only estimated by bytes": ((1_000, 1_000, 1_000), 3, CAUTIOUS, 8_245 - 3_000),
}


@pytest.mark.parametrize(("steps", "requests", "limits", "tokens"), BEGINS.values(), ids=BEGINS)
def test_a_compaction_begins(steps: tuple[int, ...], requests: int, limits: Budget, tokens: int) -> None:
    """A view of more tokens has its next summary made now."""
    assert nearer_trigger(limits, steps, requests).tokens == tokens


def test_requests_wait_for_a_summary_a_little_over_a_cap_that_is_far_below_the_limit() -> None:
    """And it is begun in time below the cap, though that is no large share of the limit."""
    capped = budget(1_000_000, trigger=160_000, target=80_000, room=160_000)
    assert (most_without(capped), soft_threshold(capped)) == (166_400, 88_000)
    assert nearer_trigger(capped, (9_000,), 2).tokens == 166_400 - 2 * 9_000


def test_it_never_begins_where_hardly_anything_could_be_freed() -> None:
    assert soft_threshold(LIMITS) == 5_500
    assert soft_threshold(budget(10_000, target=6_000)) == 6_600


def test_a_view_is_looked_at_where_one_may_be_made_ahead_or_is_due_and_remembered_from_half_of_that_on() -> None:
    assert (least_looked_at(LIMITS), least_remembered(LIMITS)) == (5_500, 2_750)
    assert least_looked_at(budget(10_000, trigger=3_000)) == 3_000


def test_what_a_trigger_has_beside_tokens_stays_as_it_is() -> None:
    conditions = (Condition(4_000, since=500), Condition(turns=9, messages=4), Condition(10_000))
    nearer = nearer_trigger(budget(10_000, trigger=Trigger(conditions, 2)), [100], 1)
    assert nearer == Trigger((Condition(4_000, since=500), Condition(turns=9, messages=4), Condition(9_600)), 2)


def test_a_nearer_trigger_fires_wherever_the_other_does() -> None:
    for tokens in range(4_000, 10_001, 50):
        size = Size(tokens)
        fires = nearer_trigger(LIMITS, [400], 3).fires(size)
        assert fires or not LIMITS.trigger.fires(size)


def test_a_view_goes_on_up_to_a_share_of_the_limit_that_is_smaller_where_tokens_are_only_estimated_by_bytes() -> None:
    assert (most_without(LIMITS), soft_threshold(LIMITS)) == (9_700, 5_500)
    assert (most_without(CAUTIOUS), soft_threshold(CAUTIOUS)) == (8_245, 4_675)


def agents_turn(sizes: Sequence[int], called: int) -> list[Message]:
    calls = (message("assistant", calls=[f"c{number}"], tokens=called) for number in range(len(sizes)))
    results = (message("tool", answers=f"c{number}", tokens=size) for number, size in enumerate(sizes))
    return [part for pair in zip(calls, results, strict=True) for part in pair]


GROWN = [message("user", tokens=9_000)]
for size in (8_000, 1, 2, 3, 4):
    GROWN += [message("assistant", tokens=0), message("user", tokens=size)]
STEPS: dict[str, tuple[list[Message], tuple[int, ...]]] = {
    "what a turn adds": ([*turns(3, size=50), message("user", tokens=70)], (120, 100, 100)),
    "an agent's requests within one turn": (
        [message("user", tokens=1_000), *agents_turn((10, 20, 30), called=5)],
        (35, 25, 15),
    ),
    "the latest four": (GROWN, (4, 3, 2, 1)),
    "none of an empty history": ([], ()),
    "none of a first request": ([message("user", tokens=5)], ()),
    "none of a greeting": ([message("assistant", tokens=5)], ()),
}


@pytest.mark.parametrize(("history", "expected"), STEPS.values(), ids=STEPS)
def test_steps_are(history: list[Message], expected: tuple[int, ...]) -> None:
    assert latest_steps(transcript_of(history)) == expected


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
    ahead = planned([*turns(2), message("user", tokens=50), *agents_turn([80] * 6, called=20)], 3)
    assert (ahead.target, ahead.tail_turns) == (4_700, 3)


def test_a_first_request_is_planned_for_as_it_is() -> None:
    ahead = planned([message("user", tokens=5)], 4)
    assert (ahead.target, ahead.tail, ahead.tail_fill, ahead.tail_turns) == (5_000, 3_000, 1_500, 3)


@pytest.mark.parametrize(("size", "requests", "hold"), [(50, 1, 9_500), (200, 1, 9_300), (500, 3, 9_025)])
def test_a_compaction_ahead_is_put_off_less_long_where_a_request_might_have_to_wait_for_it(
    size: int, requests: int, hold: int
) -> None:
    """Turns of 100, 400 and 1,000 tokens; over 9,700 a request waits."""
    assert planned(chat(size), requests, hold=9_500).hold == hold


def test_what_may_never_be_put_off_is_not_ahead_either() -> None:
    assert planned(chat(50), 1, hold=0).hold == 0

"""Pruning: whole units are left out, the oldest first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.compaction.repair import repair
from app.compaction.select import whole
from app.compaction.trim import MOST_NAMES, STUB_TOKENS, prune
from app.compaction.verify import problems
from app.compaction.view import Altered, Conversation, Note, Pins, Pruned, Verbatim, View
from app.conversation.messages import Message
from app.conversation.quoting import LONGEST_WORD
from tests.unit.conversations import conversation, cost, message, turns

QUESTION = message("user", "the last question")
TALK = conversation(*turns(10, size=50), QUESTION)
"""1,003 tokens in units of 50."""


def pruned(
    talk: Conversation, at_most: int, target: int | None = None, *, stub: bool = False, most_turns: int | None = None
) -> View:
    aim = at_most if target is None else target
    view = prune(talk, whole(talk), at_most, aim, cost, stub=stub, most_turns=most_turns)
    assert problems(talk, view, 1 << 40) == []
    return view


def gone(view: View) -> list[int]:
    return [index for part in view.parts if isinstance(part, Pruned) for index in range(part.start, part.stop)]


def step(call: str, size: int = 50) -> list[Message]:
    return [message("assistant", calls=[call], tokens=10), message("tool", "r", answers=call, tokens=size - 10)]


def test_what_fits_stays() -> None:
    assert pruned(TALK, 1_003) == whole(TALK)


def test_the_oldest_go_first_and_no_more_than_needed() -> None:
    view = pruned(TALK, 1_002)
    assert view.parts == (Pruned(0, 1), Verbatim(1, 21))
    assert view.tokens == 953
    assert view.actions == ("pruned",)


def test_where_some_must_go_as_many_go_as_bring_it_to_the_target() -> None:
    assert pruned(TALK, 1_002, 700).tokens <= 700


def test_they_stay_away_while_the_history_grows() -> None:
    left = [len(gone(pruned(conversation(*turns(number), QUESTION), 1_000, 600))) for number in range(8, 30)]
    assert all(earlier <= later for earlier, later in pairwise(left))
    assert 2 <= len(set(left)) <= 8


def test_units_go_as_a_whole() -> None:
    talk = conversation(message("user", "do"), *step("a"), *step("b"), *step("c"), QUESTION)
    assert gone(pruned(talk, 120)) == [1, 2]


def test_instructions_pins_the_last_question_and_the_last_unit_stay() -> None:
    rule = message("developer", "rule")
    talk = conversation(*turns(2), rule, *turns(2, first=2), QUESTION, *step("a"), *step("b"))
    talk = talk.with_pins(Pins((1,)))
    assert gone(pruned(talk, 1)) == [0, 2, 3, 5, 6, 7, 8, 10, 11]


def test_instructions_that_split_a_call_from_its_result_stay_and_the_rest_is_left_to_the_repair() -> None:
    rule = message("system", "rule")
    call, result = step("a")
    talk = conversation(*turns(1), call, rule, result, *turns(1), QUESTION)
    view = prune(talk, whole(talk), 60, 60, cost, stub=False)
    assert gone(view) == [0, 1, 2, 5, 6]
    assert problems(talk, repair(talk, view, cost), 1_000) == []


def test_a_result_that_comes_late_makes_no_unit_of_all_that_is_between() -> None:
    call, result = step("a")
    talk = conversation(call, *turns(9, size=50), result, QUESTION, message("assistant", "ok"))
    view = repair(talk, prune(talk, whole(talk), 300, 300, cost, stub=False), cost)
    assert view.tokens <= 300
    assert problems(talk, view, 300) == []


def test_what_is_left_of_a_shortened_message_counts() -> None:
    view = View((Altered(0, ("w",), 1, "faded"), Verbatim(1, 21)), TALK.tokens - 49)
    left = prune(TALK, view, 952, 952, cost, stub=False)
    assert left.parts[0] == Pruned(0, 2)
    assert left.tokens == 903


def test_only_the_latest_turns_stay_in_a_window_of_turns() -> None:
    """So many whole ones, and the current one."""
    assert gone(pruned(TALK, 1_003, most_turns=0)) == list(range(20))
    assert gone(pruned(TALK, 1_003, most_turns=2)) == list(range(16))
    assert gone(pruned(TALK, 1_003, most_turns=10)) == []
    assert gone(pruned(TALK, 1_003, most_turns=11)) == []


def test_an_empty_history_has_nothing_to_leave_out() -> None:
    empty = conversation(fixed=100)
    assert prune(empty, whole(empty), 10, 10, cost, stub=False) == whole(empty)


def test_a_stub_says_how_many_are_left_out_and_whose() -> None:
    talk = conversation(*turns(2), *step("a"), *turns(2, first=2), message("assistant", "ok"), QUESTION)
    view = pruned(talk, 210, stub=True)
    note = view.parts[1]
    assert isinstance(note, Note)
    assert view.parts[0] == Pruned(0, 8)
    assert "[8 earlier messages of this conversation (3 user, 4 assistant, 1 tool) are left out" in note.text
    assert note.text.endswith("Tools that were used: tool_a.]")
    assert view.tokens == talk.tokens - 7 * 50 + note.tokens
    assert view.actions == ("pruned", "stub")


def test_room_is_kept_for_the_stub() -> None:
    assert len(gone(pruned(TALK, 1_002, stub=True))) == len(gone(pruned(TALK, 1_002 - STUB_TOKENS)))


@pytest.mark.parametrize("called", [False, True])
def test_a_stub_names_a_few_tools_and_long_names_in_part(called: bool) -> None:
    calls = [f"{number}" + "x" * 100 for number in range(12)] if called else []
    caller = message("assistant", "ok" if not called else "", calls=calls, tokens=50)
    results = [message("tool", "r", answers=call) for call in calls]
    talk = conversation(caller, *results, *turns(1), QUESTION)
    note = next(part for part in pruned(talk, 120, stub=True).parts if isinstance(part, Note))
    named = note.text.count("tool_")
    assert named == (MOST_NAMES if called else 0)
    assert ("Tools that were used" in note.text) is called
    assert f"tool_0{'x' * (LONGEST_WORD - 6)}," in note.text or not called

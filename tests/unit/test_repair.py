"""Repair: calls without a result and results without a call are taken out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.verify import GAP, problems, repair, separated
from app.compaction.view import Altered, Note, Part, Pinned, Pruned, Summary, Verbatim, View, whole
from app.conversation.messages import Message
from tests.unit.conversations import chunk, conversation, cost, message

USER = message("user", "q")
DONE = message("assistant", "done")


def result(call: str, text: str = "r") -> Message:
    return message("tool", text, answers=call)


def caller(*calls: str, text: str = "") -> Message:
    return message("assistant", text, calls=calls, tokens=5)


def gone(start: int) -> Pruned:
    return Pruned(start, start + 1, "repaired")


THOUGHT = replace(DONE, bound=True)
LOOK = caller("a", text="I look.")
A = (0, '{"a": 1}')
REPAIRED: dict[str, tuple[list[Message], tuple[Part, ...]]] = {
    "a result without a call goes": ([USER, result("x"), DONE, USER], (Verbatim(0, 1), gone(1), Verbatim(2, 4))),
    "a call without a result goes and the text beside it stays": (
        [USER, LOOK, DONE, USER],
        (Verbatim(0, 1), Altered(1, ("I look.",), 2, "repaired", ()), Verbatim(2, 4)),
    ),
    "a message that was only calls goes with them": (
        [USER, caller("a"), DONE, USER],
        (Verbatim(0, 1), gone(1), Verbatim(2, 4)),
    ),
    "so does one with a blank text": (
        [USER, caller("a", text="  "), DONE, USER],
        (Verbatim(0, 1), gone(1), Verbatim(2, 4)),
    ),
    "of parallel calls those with results stay": (
        [USER, caller("a", "b", "c"), result("c"), result("a"), USER],
        (Verbatim(0, 1), Altered(1, (), 0, "repaired", (A, (2, A[1]))), Verbatim(2, 5)),
    ),
    "of calls in a row those without a result go with what is bound to them": (
        [USER, THOUGHT, caller("a"), THOUGHT, caller("b"), result("b"), DONE, USER],
        (Verbatim(0, 1), gone(1), gone(2), Verbatim(3, 8)),
    ),
    "a result before its call goes": ([result("a"), caller("a"), result("a"), USER], (gone(0), Verbatim(1, 4))),
    "of two calls with one id the later one is answered": (
        [caller("a"), USER, caller("a"), result("a"), USER],
        (gone(0), Verbatim(1, 5)),
    ),
}


@pytest.mark.parametrize(("said", "parts"), REPAIRED.values(), ids=REPAIRED)
def test_repaired(said: list[Message], parts: tuple[Part, ...]) -> None:
    talk = conversation(*said)
    view = repair(talk, whole(talk), cost)
    assert problems(talk, view, 10_000) == []
    assert view.parts == parts
    assert repair(talk, whole(talk), cost, orphans=False) == whole(talk)


KEPT = {
    "calls with their results": [USER, caller("a", "b"), result("b"), result("a"), DONE, USER],
    "an id that is used again later": [USER, caller("a"), result("a"), DONE, caller("a"), result("a"), USER],
    "two calls with one id": [USER, caller("a", "a"), result("a"), result("a"), DONE, USER],
    "two messages of calls with one id": [USER, caller("a"), caller("a"), result("a"), result("a"), DONE, USER],
    "a result in two messages": [USER, caller("a"), result("a"), result("a"), DONE, USER],
    "calls without ids": [USER, caller("", ""), result(""), result(""), DONE, USER],
    "a call without an id or a result": [USER, caller(""), DONE, USER],
    "a result with a name only": [USER, caller("a", "b"), replace(result(""), name="tool_b"), result("a"), DONE, USER],
    "a user between a call and its result": [USER, caller("a"), USER, result("a"), DONE, USER],
    "the assistant between a call and its result": [USER, caller("a"), DONE, result("a"), DONE, USER],
    "results that come late": [USER, caller("a"), caller("b"), DONE, result("b"), result("a"), USER],
    "a call that was just made": [USER, caller("a", "b"), result("b")],
    "a call at the end": [USER, LOOK],
    "results that just came": [USER, LOOK, result("x"), result("y")],
    "what a user says beside results of no call": [USER, replace(USER, answers=("x",)), DONE, USER],
    "a result of a call beside one of none": [USER, caller("a"), replace(result("a"), answers=("a", "x")), DONE, USER],
}


@pytest.mark.parametrize("said", KEPT.values(), ids=KEPT)
def test_what_is_paired_or_was_just_sent_stays_as_it_is(said: list[Message]) -> None:
    talk = conversation(*said)
    view = whole(talk)
    assert repair(talk, view, cost) is view
    assert problems(talk, view, 10_000) == []


def test_arguments_that_were_cut_before_stay_cut() -> None:
    talk = conversation(USER, caller("a", "b"), result("b"), USER)
    cut = Altered(1, (), 3, "faded", ((0, '{"x": 0}'), (1, '{"y": 0}')))
    view = View((Verbatim(0, 1), cut, Verbatim(2, 4)), 6)
    left = repair(talk, view, cost)
    assert left.parts[1] == Altered(1, (), 0, "repaired", ((1, '{"y": 0}'),))
    assert left.tokens == 3


def test_a_message_that_loses_its_calls_goes_without_signed_thoughts() -> None:
    """Behind the text there is nothing else then, and no provider takes a message that ends with thoughts."""
    thoughts = "one two three"

    def costing(message: Message) -> int:
        return cost(message) + len(message.thoughts)

    thinking = replace(caller("a", text="I look."), signed_thinking=True, thoughts=(thoughts,))
    talk = conversation(USER, thinking, USER, DONE, USER)
    view = repair(talk, whole(talk), costing)
    assert view.parts[1] == Altered(1, ("I look.",), 2, "repaired", ())
    assert view.without_thinking == {1}
    assert view.actions == ("repaired", "thinking_removed")
    assert problems(talk, view, 100) == []
    half = replace(caller("a", "b"), signed_thinking=True, thoughts=(thoughts,))
    kept = conversation(USER, half, result("a"), USER)
    assert repair(kept, whole(kept), costing).without_thinking == frozenset()


def test_for_who_demands_it_a_note_stands_where_the_assistant_was_made_to_speak_twice() -> None:
    talk = conversation(USER, DONE, USER, DONE, USER, DONE, USER)
    made, gap = Summary(chunk(talk, 0, 4)), Note("stub", GAP, cost(message("user", GAP)))
    view = View((made, Pinned(1, 2), Pinned(3, 4), Pruned(4, 5), Verbatim(5, 7)), 20)
    parts = (made, Pinned(1, 2), gap, Pinned(3, 4), Pruned(4, 5), gap, Verbatim(5, 7))
    assert separated(talk, view, cost) == View(parts, 20 + 2 * gap.tokens)
    assert separated(talk, View((Pruned(0, 1), Verbatim(1, 7)), 9), cost).parts == (Pruned(0, 1), gap, Verbatim(1, 7))
    assert separated(talk, whole(talk), cost) == whole(talk)

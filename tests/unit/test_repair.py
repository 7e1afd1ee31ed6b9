"""Repair: calls without a result and results without a call are taken out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.core.history.messages import Message
from app.core.stages.repair import GAP, repair, separated
from app.core.view.reading import Path, build_view, whole
from app.core.view.verify import problems
from app.core.view.view import Altered, Carried, Note, Part, Pinned, Pruned, Summary, Verbatim, View
from tests.unit.conversations import chunk, conversation, cost, message

USER = message("user", "q")
DONE = message("assistant", "done")


def result(call: str, text: str = "r") -> Message:
    return message("tool", text, answers=call)


def caller(*calls: str, text: str = "") -> Message:
    return message("assistant", text, calls=calls, tokens=5)


def gone(start: int) -> Pruned:
    return Pruned(start, start + 1, "repaired")


def apart(caller_: Message) -> Message:
    """One whose calls may be answered anywhere."""
    return replace(caller_, calls=tuple(replace(call, anywhere=True) for call in caller_.calls))


def placed() -> Message:
    """A caller in the form before tools, whose calls have no ids."""
    made = caller("")
    return replace(made, calls=(replace(made.calls[0], id="", by_place=True),))


THOUGHT = replace(DONE, bound=True)
LOOK = caller("a", text="I look.")
A = (0, '{"a": 1}')
REPAIRED: dict[str, tuple[list[Message], tuple[Part, ...]]] = {
    "a result without a call goes": ([USER, result("x"), DONE, USER], (Verbatim(0, 1), gone(1), Verbatim(2, 4))),
    "a second result for one call goes": (
        [USER, caller("a"), result("a"), result("a"), USER],
        (Verbatim(0, 3), gone(3), Verbatim(4, 5)),
    ),
    "a result that does not follow its call goes with the call": (
        [caller("a"), USER, result("a"), USER],
        (gone(0), Verbatim(1, 2), gone(2), Verbatim(3, 4)),
    ),
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
    "at the end it goes even with text": ([USER, LOOK], (Verbatim(0, 1), gone(1))),
    "also before results that go": (
        [USER, LOOK, result("x"), result("y")],
        (Verbatim(0, 1), gone(1), gone(2), gone(3)),
    ),
    "of parallel calls those with results stay": (
        [USER, caller("a", "b", "c"), result("c"), result("a"), USER],
        (Verbatim(0, 1), Altered(1, (), 0, "repaired", (A, (2, A[1]))), Verbatim(2, 5)),
    ),
    "of two calls with one id the first stays": (
        [USER, caller("a", "a"), result("a"), result("a"), USER],
        (Verbatim(0, 1), Altered(1, (), 0, "repaired", (A,)), Verbatim(2, 3), gone(3), Verbatim(4, 5)),
    ),
    "of calls to be answered anywhere those without a result go with what is bound to them": (
        [USER, THOUGHT, apart(caller("a")), THOUGHT, apart(caller("b")), result("b"), DONE, USER],
        (Verbatim(0, 1), gone(1), gone(2), Verbatim(3, 8)),
    ),
    "a second result of such a call goes and so does one before it": (
        [result("a"), apart(caller("a")), USER, result("a"), result("a"), USER],
        (gone(0), Verbatim(1, 4), gone(4), Verbatim(5, 6)),
    ),
    "of two such calls with one id the later one is answered": (
        [apart(caller("a")), USER, apart(caller("a")), result("a"), USER],
        (gone(0), Verbatim(1, 5)),
    ),
}


@pytest.mark.parametrize(("said", "parts"), REPAIRED.values(), ids=REPAIRED)
def test_repaired(said: list[Message], parts: tuple[Part, ...]) -> None:
    talk = conversation(*said)
    view = repair(talk, whole(talk), cost)
    assert problems(talk, view, 10_000) == []
    assert view.parts == parts


KEPT = {
    "calls with their results": [USER, caller("a", "b"), result("b"), result("a"), DONE, USER],
    "an id that is used again later": [USER, caller("a"), result("a"), DONE, caller("a"), result("a"), USER],
    "calls without ids": [USER, placed(), message("function", "r"), DONE, USER],
    "calls to be answered anywhere": [
        USER,
        apart(caller("a")),
        apart(caller("b")),
        DONE,
        result("b"),
        result("a"),
        USER,
    ],
}


@pytest.mark.parametrize("said", KEPT.values(), ids=KEPT)
def test_what_is_paired_stays_as_it_is(said: list[Message]) -> None:
    talk = conversation(*said)
    view = whole(talk)
    assert repair(talk, view, cost) is view


def test_the_tokens_are_those_of_what_is_left() -> None:
    talk = conversation(USER, caller("a", "b", text="I look."), result("a", "r r"), result("x", "r r r"), USER)
    assert repair(talk, whole(talk), cost).tokens == 1 + 2 + 2 + 1


def test_arguments_that_were_cut_before_stay_cut() -> None:
    talk = conversation(USER, caller("a", "b"), result("b"), USER)
    cut = Altered(1, (), 3, "faded", ((0, '{"x": 0}'), (1, '{"y": 0}')))
    view = View((Verbatim(0, 1), cut, Verbatim(2, 4)), 6)
    left = repair(talk, view, cost)
    assert left.parts[1] == Altered(1, (), 0, "repaired", ((1, '{"y": 0}'),))
    assert left.tokens == 3


def test_what_was_pruned_before_stands_in_nobodys_way() -> None:
    talk = conversation(USER, caller("a"), DONE, result("a"), USER)
    view = View((Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 5)), 8)
    assert repair(talk, view, cost) is view


def test_a_result_behind_a_summary_or_what_it_carries_has_no_call_there() -> None:
    talk = conversation(USER, caller("a"), result("a"), USER)
    view = View((Verbatim(0, 2), Carried(0), Verbatim(2, 4)), 8)
    assert repair(talk, view, cost).parts == (Verbatim(0, 1), gone(1), Carried(0), gone(2), Verbatim(3, 4))
    made = chunk(talk, 0, 1)
    summed = build_view(talk, Path((made,), 1, 20))
    assert repair(talk, summed, cost) == summed


def test_a_message_that_loses_its_calls_goes_without_signed_thoughts() -> None:
    """Behind the text there is nothing else then, and no provider takes a message that ends with thoughts."""
    thoughts = "one two three"

    def costing(message: Message) -> int:
        return cost(message) + len(message.thoughts)

    thinking = replace(caller("a", text="I look."), tied=True, thoughts=(thoughts,))
    talk = conversation(USER, thinking, USER, DONE, USER)
    view = repair(talk, whole(talk), costing)
    assert view.parts[1] == Altered(1, ("I look.",), 2, "repaired", ())
    assert view.untied == {1}
    assert view.actions == ("repaired", "thinking_removed")
    assert problems(talk, view, 100) == []
    half = replace(caller("a", "b"), tied=True, thoughts=(thoughts,))
    kept = conversation(USER, half, result("a"), USER)
    assert repair(kept, whole(kept), costing).untied == frozenset()


def test_for_who_demands_it_a_note_stands_where_the_assistant_was_made_to_speak_twice() -> None:
    talk = conversation(USER, DONE, USER, DONE, USER, DONE, USER)
    made, gap = Summary(chunk(talk, 0, 4)), Note("stub", GAP, cost(message("user", GAP)))
    view = View((made, Pinned(1, 2), Pinned(3, 4), Pruned(4, 5), Verbatim(5, 7)), 20)
    parts = (made, Pinned(1, 2), gap, Pinned(3, 4), Pruned(4, 5), gap, Verbatim(5, 7))
    assert separated(talk, view, cost) == View(parts, 20 + 2 * gap.tokens)
    assert separated(talk, View((Pruned(0, 1), Verbatim(1, 7)), 9), cost).parts == (Pruned(0, 1), gap, Verbatim(1, 7))
    assert separated(talk, whole(talk), cost) == whole(talk)

"""Verify and repair: a payload with any of these faults is not sent, and unpaired calls and results are taken out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.planning_state import Path, build_view
from app.compaction.verify import GAP, coverage_of, problems, repair, separated
from app.compaction.view import (
    Altered,
    Carried,
    Conversation,
    Note,
    Part,
    Pinned,
    Pruned,
    Summary,
    Verbatim,
    View,
    whole,
)
from app.conversation.messages import Message
from app.conversation.reasons import Code
from app.tokens.calibration import Line
from tests.unit.conversations import chunk, conversation, cost, message, turns

TALK = conversation(
    *turns(2),
    message("user", "do it"),
    message("assistant", calls=["a"]),
    message("tool", "r", answers="a"),
    message("user", "q"),
)
"""Messages 0 to 7; the last user message is 7."""


def found(*parts: Part) -> list[Code]:
    return problems(TALK, View(parts, 10), 100)


MADE, CARRYING, MOST = chunk(TALK, 0, 4), chunk(TALK, 0, 4, carried=(2,)), chunk(TALK, 0, 7)
COPIES = (Pinned(5, 7), Note("stub", "Rules.", 1), Verbatim(7, 8))
UNCOVERED, SPLIT, CHANGED = Code.NOT_COVERED_ONCE, Code.TOOL_PAIR_SPLIT, Code.LAST_USER_MESSAGE_CHANGED


def left(*calls: tuple[int, str]) -> Altered:
    """The caller with these of its calls."""
    return Altered(5, (), 1, "repaired", calls)


FAULTS: dict[str, tuple[tuple[Part, ...], Code | None]] = {
    "a summarised history": (build_view(TALK, Path((MADE,), 4, 20)).parts, None),
    "a message left out": ((Verbatim(0, 3), Verbatim(4, 8)), UNCOVERED),
    "a message covered twice": ((Summary(MADE), Verbatim(3, 8)), UNCOVERED),
    "a carried message": ((Summary(CARRYING), Carried(2), Verbatim(4, 8)), None),
    "a carried message that is missing": ((Summary(CARRYING), Verbatim(4, 8)), UNCOVERED),
    "a chunk of another history": ((Summary(chunk(conversation(*turns(6, first=9)), 0, 4)), Verbatim(4, 8)), UNCOVERED),
    "the last user message shortened": ((Verbatim(0, 7), Altered(7, ("q",), 1, "shortened")), CHANGED),
    "the last user message missing": ((Summary(chunk(TALK, 0, 8)),), CHANGED),
    "a result without its call": ((Summary(chunk(TALK, 0, 6)), Verbatim(6, 8)), SPLIT),
    "a call without its result": ((Verbatim(0, 6), Summary(chunk(TALK, 6, 7)), Verbatim(7, 8)), SPLIT),
    "what is left out, and said": ((Pruned(0, 2), Verbatim(2, 8)), None),
    "what is left out beside that": ((Pruned(0, 2), Verbatim(3, 8)), UNCOVERED),
    # A pinned message is summarised like any other; its copy comes beside that.
    "copies and notes": ((Summary(MOST), *COPIES), None),
    "copies and notes alone, which cover nothing": (COPIES, UNCOVERED),
    "a copy of a call": ((Summary(MOST), Pinned(5, 6), Verbatim(7, 8)), SPLIT),
    "a copy of a result": ((Summary(MOST), Pinned(6, 7), Verbatim(7, 8)), SPLIT),
    "calls that are left": ((Verbatim(0, 5), left((0, "{}")), Verbatim(6, 8)), None),
    "a call that was taken out from before its result": ((Verbatim(0, 5), left(), Verbatim(6, 8)), SPLIT),
    "a call that was taken out with its result": (
        (Verbatim(0, 5), left(), Pruned(6, 7, "repaired"), Verbatim(7, 8)),
        None,
    ),
}


@pytest.mark.parametrize(("parts", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_view_has_the_fault_of(parts: tuple[Part, ...], fault: Code | None) -> None:
    assert found(*parts) == ([fault] if fault else [])


R, Q = message("tool", "r", answers="a"), message("user", "q")
HISTORIES: dict[str, tuple[list[Message], list[Code]]] = {
    "one in order": ([*turns(2), Q], []),
    "one without a user": ([message("assistant", "hello")], []),
    "one with orphans of the client's": (
        [message("tool", "r", answers="nobody"), message("assistant", calls=["x"]), *turns(1)],
        [],
    ),
    "one with a result before its call": ([R, message("assistant", calls=["a"]), Q], []),
}


@pytest.mark.parametrize(("said", "faults"), HISTORIES.values(), ids=HISTORIES)
def test_a_whole_history_has_its_own_faults(said: list[Message], faults: list[Code]) -> None:
    talk = conversation(*said)
    assert problems(talk, whole(talk), 1_000) == faults


def test_an_instruction_in_the_middle_must_stay_as_it_is() -> None:
    talk = conversation(*turns(1), message("developer", "rule"), *turns(1, first=1), message("user", "q"))
    shortened = Altered(2, ("r",), 1, "shortened")
    carried = chunk(talk, 0, 4, carried=(2,))
    assert problems(talk, View((Summary(carried), Carried(2), Verbatim(4, 6)), 10), 100) == []
    assert problems(talk, View((Summary(chunk(talk, 0, 4)), Verbatim(4, 6)), 10), 100) == ["instructions_changed"]
    assert problems(talk, View((Verbatim(0, 2), shortened, Verbatim(3, 6)), 10), 100) == ["instructions_changed"]


OWN = Note("stub", "Something is left out.", 4)


@pytest.mark.parametrize(
    "between", [OWN, Note("recalled", "Quoted.", 1, (0,)), Summary(chunk(TALK, 0, 1)), Pinned(0, 2)]
)
def test_nothing_may_stand_between_a_call_and_its_result(between: Part) -> None:
    parts = (Pruned(1, 4), Verbatim(4, 6), between, Verbatim(6, 8))
    covered = parts if isinstance(between, Summary) else (Verbatim(0, 1), *parts)
    faults = found(*covered)
    assert "result_apart" in faults
    assert not {"tool_pair_split", "not_covered_once"} & set(faults)
    assert "result_apart" not in found(*(part for part in covered if part is not between))


def test_what_stood_between_a_call_and_its_result_may() -> None:
    call, user, answer = message("assistant", calls=["a"]), message("user", "?"), message("tool", "r", answers="a")
    talk = conversation(call, user, answer, Q)
    assert problems(talk, whole(talk), 100) == []
    assert problems(talk, View((Verbatim(0, 1), Pruned(1, 2), Verbatim(2, 4)), 10), 100) == []
    assert problems(talk, View((Verbatim(0, 1), OWN, Verbatim(1, 4)), 10), 100) == []
    assert problems(talk, View((Pruned(0, 1), Verbatim(1, 4)), 10), 100) == [SPLIT]


def test_a_result_never_stands_before_its_call() -> None:
    talk = conversation(message("assistant", calls=["a"]), R, Q)
    view = View((Summary(chunk(talk, 0, 2)), Pinned(1, 2), Pinned(0, 1), Verbatim(2, 3)), 10)
    assert problems(talk, view, 100) == ["result_apart"]


def test_a_result_without_an_id_follows_its_call_at_once() -> None:
    talk = conversation(message("user", "q"), message("assistant", calls=[""]), message("function", "r"), Q)
    assert problems(talk, whole(talk), 100) == []
    assert problems(talk, View((Verbatim(0, 2), OWN, Verbatim(2, 4)), 10), 100) == ["result_apart"]
    assert problems(talk, View((Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 4)), 10), 100) == [SPLIT]


def test_nothing_may_stand_between_a_message_and_the_one_it_is_bound_to() -> None:
    thought = replace(message("assistant", "t"), bound=True)
    talk = conversation(message("user", "q"), thought, message("assistant", "a"))
    assert problems(talk, whole(talk), 100) == []
    assert problems(talk, View((Verbatim(0, 2), OWN, Verbatim(2, 3)), 10), 100) == ["bound_message_parted"]


def test_no_message_ends_with_thoughts_as_its_calls_were_taken_out() -> None:
    thinking = replace(message("assistant", "I look.", calls=["a"]), signed_thinking=True, thoughts=("hm",))
    talk = conversation(message("user", "q"), thinking, message("user", "well?"))
    left = View((Verbatim(0, 1), Altered(1, ("I look.",), 2, "repaired", ()), Verbatim(2, 3)), 10)
    assert problems(talk, left, 100) == ["thoughts_last"]
    assert problems(talk, replace(left, without_thinking=frozenset({1})), 100) == []


def test_for_who_demands_it_the_assistant_never_speaks_first_or_twice_in_a_row() -> None:
    def wrong(*parts: Part, alternates: bool = True) -> list[Code]:
        return problems(TALK, View(parts, 10), 100, alternates=alternates)

    assert wrong(Verbatim(0, 8)) == []
    assert wrong(Pruned(0, 1), Verbatim(1, 8)) == ["roles_not_alternating"]
    assert wrong(Pruned(0, 1), OWN, Verbatim(1, 8)) == []
    assert wrong(Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 8)) == ["roles_not_alternating"]
    assert wrong(Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 8), alternates=False) == []
    assert wrong(Verbatim(0, 2), Pruned(2, 3), OWN, Verbatim(3, 8)) == []


def test_what_stood_in_a_row_in_the_clients_own_history_may() -> None:
    hello, more, rule = message("assistant", "hello"), message("assistant", "more"), message("developer", "rule")
    talk = conversation(hello, rule, more, message("user", "q"))
    assert problems(talk, whole(talk), 100, alternates=True) == []


# Repair

USER = message("user", "q")
DONE = message("assistant", "done")


def result(call: str) -> Message:
    return message("tool", "r", answers=call)


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


# Coverage

SYSTEM = message("system", "Be brief.")


@pytest.mark.parametrize("line", [Line(), Line(offset=40.0, ratio=1.3)])
@pytest.mark.parametrize(
    "talk",
    [
        conversation(SYSTEM, message("user", "Hello."), message("assistant", "Hi.")),
        conversation(message("user", "Hello.")),
    ],
    ids=["with instructions", "without"],
)
def test_what_is_untouched_is_covered_as_a_view_of_the_whole_is(talk: Conversation, line: Line) -> None:
    covered = coverage_of(talk, None, line)
    assert covered == coverage_of(talk, whole(talk), line)
    assert sum(part["tokens"] for part in covered) == line.to_provider_tokens(talk.tokens)


def test_the_users_words_are_counted_as_the_provider_counts_them() -> None:
    made = chunk(TALK, 0, 4, user_words=("Hello.",), user_words_tokens=4)
    assert coverage_of(TALK, View((Summary(made),), 100), Line(ratio=1.5))[1]["user_words_tokens"] == 6


def test_instructions_alone_cover_all_tokens() -> None:
    talk = conversation(SYSTEM, fixed=7)
    (part,) = coverage_of(talk, None)
    assert part == {"kind": "instructions", "messages": 1, "tools_tokens": 7, "tokens": talk.tokens}


@pytest.mark.parametrize(("line", "tools"), [(Line(ratio=1.5), 60), (Line(offset=-40.0), 2), (Line(offset=-90.0), 0)])
def test_tools_are_never_more_than_what_they_are_shown_with(line: Line, tools: int) -> None:
    talk = conversation(SYSTEM, message("user", "Hello."), fixed=40)
    instructions, _ = coverage_of(talk, None, line)
    assert instructions["tools_tokens"] == tools
    assert tools <= max(0, instructions["tokens"])

"""Verify: a payload with any of these faults is not sent."""

import pytest
from msgspec.structs import replace

from app.compaction.planning_state import Path, build_view
from app.compaction.verify import problems
from app.compaction.view import Altered, Carried, Note, Part, Pinned, Pruned, Recalled, Summary, Verbatim, View, whole
from app.conversation.messages import Message
from app.conversation.reasons import Code
from tests.unit.conversations import chunk, conversation, message, turns

TALK = conversation(
    *turns(2),
    message("user", "do it"),
    message("assistant", calls=["a"]),
    message("tool", "r", answers="a"),
    message("user", "q"),
)
"""Messages 0 to 7; the last user message is 7."""


def found(*parts: Part, tokens: int = 10) -> list[Code]:
    return problems(TALK, View(parts, tokens), 100)


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


def test_a_payload_over_the_limit_is_found() -> None:
    assert found(Verbatim(0, 8), tokens=101) == ["over_the_limit"]


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


@pytest.mark.parametrize("between", [OWN, Recalled((0,), "Quoted.", 1), Summary(chunk(TALK, 0, 1)), Pinned(0, 2)])
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


def test_results_of_parallel_calls_follow_one_another_in_any_order() -> None:
    calls = message("assistant", calls=["a", "b"])
    one, other = message("tool", "1", answers="a"), message("tool", "2", answers="b")
    for results in ((one, other), (other, one), (one, one, other)):
        talk = conversation(calls, *results, message("user", "q"))
        assert problems(talk, whole(talk), 100) == []
        rest = Verbatim(2, len(talk.transcript))
        assert problems(talk, View((Verbatim(0, 2), OWN, rest), 10), 100) == ["result_apart"]


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

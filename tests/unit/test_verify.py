"""Verify: a payload with any of these faults is not sent."""

from app.core.verify import problems
from app.core.view import Altered, Carried, Part, Path, Summary, Verbatim, View, build_view, whole
from tests.unit.conversations import chunk, conversation, message, turns

TALK = conversation(
    *turns(2),
    message("user", "do it"),
    message("assistant", calls=["a"]),
    message("tool", "r", answers="a"),
    message("user", "q"),
)
"""Messages 0 to 7; the last user message is 7."""


def found(*parts: Part, tokens: int = 10) -> list[str]:
    return problems(TALK, View(parts, tokens), 100)


def test_a_whole_history_and_a_summarised_one_are_in_order() -> None:
    made = chunk(TALK, 0, 4)
    assert problems(TALK, whole(TALK), 1_000) == []
    assert problems(TALK, build_view(TALK, Path((made,), 4, 20)), 100) == []


def test_a_message_left_out_is_found() -> None:
    assert found(Verbatim(0, 3), Verbatim(4, 8)) == ["not_covered_once"]


def test_a_message_covered_twice_is_found() -> None:
    assert found(Summary(chunk(TALK, 0, 4)), Verbatim(3, 8)) == ["not_covered_once"]


def test_a_carried_message_must_stand_in_the_payload() -> None:
    made = chunk(TALK, 0, 4, carried=(2,))
    assert found(Summary(made), Carried(2), Verbatim(4, 8)) == []
    assert found(Summary(made), Verbatim(4, 8)) == ["not_covered_once"]


def test_a_chunk_of_another_history_is_found() -> None:
    stranger = chunk(conversation(*turns(6, first=9)), 0, 4)
    assert found(Summary(stranger), Verbatim(4, 8)) == ["not_covered_once"]


def test_a_shortened_or_missing_last_user_message_is_found() -> None:
    assert found(Verbatim(0, 7), Altered(7, ("q",), 1, "shortened")) == ["last_user_message_changed"]
    assert found(Summary(chunk(TALK, 0, 8))) == ["last_user_message_changed"]


def test_a_call_without_its_result_and_a_result_without_its_call_are_found() -> None:
    assert found(Summary(chunk(TALK, 0, 6)), Verbatim(6, 8)) == ["tool_pair_split"]
    hidden = chunk(TALK, 6, 7)
    assert found(Verbatim(0, 6), Summary(hidden), Verbatim(7, 8)) == ["tool_pair_split"]


def test_the_clients_own_orphans_are_found_too() -> None:
    broken = conversation(message("tool", "r", answers="nobody"), message("assistant", calls=["x"]), *turns(1))
    assert problems(broken, whole(broken), 1_000) == ["tool_pair_split"]


def test_a_result_before_its_call_is_an_orphan() -> None:
    talk = conversation(message("tool", "r", answers="a"), message("assistant", calls=["a"]), message("user", "q"))
    assert problems(talk, whole(talk), 1_000) == ["tool_pair_split"]


def test_a_payload_over_the_limit_is_found() -> None:
    assert found(Verbatim(0, 8), tokens=101) == ["over_the_limit"]

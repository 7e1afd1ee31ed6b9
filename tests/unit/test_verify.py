"""Verify: a payload with any of these faults is not sent."""

from app.core.reasons import Code
from app.core.view.reading import Path, build_view, whole
from app.core.view.verify import problems
from app.core.view.view import Altered, Carried, Note, Part, Pinned, Pruned, Summary, Verbatim, View
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


def test_what_is_left_out_must_be_said() -> None:
    assert found(Pruned(0, 2), Verbatim(2, 8)) == []
    assert found(Pruned(0, 2), Verbatim(3, 8)) == ["not_covered_once"]


def test_copies_and_notes_cover_nothing() -> None:
    """A pinned message is summarised like any other; its copy comes beside that."""
    made = chunk(TALK, 0, 7)
    parts = (Summary(made), Pinned(5, 7), Note("pinned_text", "Rules.", 1), Verbatim(7, 8))
    assert found(*parts) == []
    assert found(*parts[1:]) == ["not_covered_once"]
    assert found(Summary(made), Pinned(5, 6), Verbatim(7, 8)) == ["tool_pair_split"]
    assert found(Summary(made), Pinned(6, 7), Verbatim(7, 8)) == ["tool_pair_split"]


def test_a_call_that_was_taken_out_leaves_its_result_an_orphan() -> None:
    def left(*calls: tuple[int, str]) -> Altered:
        return Altered(5, (), 1, "repaired", calls)

    assert found(Verbatim(0, 5), left((0, "{}")), Verbatim(6, 8)) == []
    assert found(Verbatim(0, 5), left(), Verbatim(6, 8)) == ["tool_pair_split"]
    assert found(Verbatim(0, 5), left(), Pruned(6, 7, "repaired"), Verbatim(7, 8)) == []


def test_an_instruction_in_the_middle_must_stay_as_it_is() -> None:
    talk = conversation(*turns(1), message("developer", "rule"), *turns(1, first=1), message("user", "q"))
    shortened = Altered(2, ("r",), 1, "shortened")
    carried = chunk(talk, 0, 4, carried=(2,))
    assert problems(talk, View((Summary(carried), Carried(2), Verbatim(4, 6)), 10), 100) == []
    assert problems(talk, View((Summary(chunk(talk, 0, 4)), Verbatim(4, 6)), 10), 100) == ["instructions_changed"]
    assert problems(talk, View((Verbatim(0, 2), shortened, Verbatim(3, 6)), 10), 100) == ["instructions_changed"]


def test_a_history_without_a_user_has_no_last_user_message() -> None:
    talk = conversation(message("assistant", "hello"))
    assert problems(talk, whole(talk), 10) == []

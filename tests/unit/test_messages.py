"""Turns, units and cuts."""

from app.core.history.messages import split_instructions
from tests.unit.conversations import message, transcript_of, turns


def test_only_leading_system_and_developer_messages_are_instructions() -> None:
    messages = [message("system", "a"), message("developer", "b"), message("user", "c"), message("system", "d")]
    instructions, rest = split_instructions(messages)
    assert [m.text for m in instructions] == ["a", "b"]
    assert [m.text for m in rest] == ["c", "d"]


def test_a_history_of_instructions_alone_has_nothing_else() -> None:
    assert split_instructions([message("system", "a")])[1] == ()


def test_a_call_and_its_results_are_never_cut_apart() -> None:
    transcript = transcript_of(
        [
            message("user", "q"),
            message("assistant", calls=["a", "b"]),
            message("tool", "ra", answers="a"),
            message("tool", "rb", answers="b"),
            message("assistant", "done"),
            message("user", "next"),
        ]
    )
    assert transcript.cuts == (0, 1, 4, 5)


def test_a_result_that_comes_late_keeps_everything_between_in_one_unit() -> None:
    transcript = transcript_of(
        [
            message("assistant", calls=["a"]),
            message("user", "interrupts"),
            message("tool", "ra", answers="a"),
            message("user", "q"),
        ]
    )
    assert transcript.cuts == (0, 3)


def test_a_legacy_function_result_belongs_to_the_last_call() -> None:
    transcript = transcript_of(
        [message("user", "q"), message("assistant", calls=[""]), message("function", "r"), message("user", "q")]
    )
    assert transcript.cuts == (0, 1, 3)


def test_a_result_nobody_asked_for_is_a_unit_of_its_own() -> None:
    transcript = transcript_of([message("user", "q"), message("tool", "r", answers="nobody"), message("user", "q")])
    assert transcript.cuts == (0, 1, 2)


def test_a_turn_begins_with_a_user_message() -> None:
    transcript = transcript_of([message("assistant", "hello"), *turns(2), message("user", "last")])
    assert transcript.turn_starts == (1, 3, 5)
    assert transcript.last_user == 5
    assert [transcript.turn_at(position) for position in (0, 1, 2, 6)] == [0, 0, 1, 3]


def test_without_user_messages_there_is_no_last_one() -> None:
    assert transcript_of([message("assistant", "hello")]).last_user == -1


def test_a_cut_inside_a_turn_splits_its_user_message_off() -> None:
    transcript = transcript_of([*turns(1), message("assistant", "more"), message("user", "next")])
    assert transcript.split_turn(2) == 0
    assert transcript.split_turn(3) is None
    assert transcript.split_turn(4) is None


def test_a_cut_before_the_first_user_message_splits_no_turn() -> None:
    transcript = transcript_of([message("assistant", "a"), message("assistant", "b"), message("user", "c")])
    assert transcript.split_turn(1) is None


def test_tokens_of_a_range_are_the_sum_of_its_messages() -> None:
    transcript = transcript_of([message("user", tokens=3), message("assistant", tokens=4), message("user", tokens=5)])
    assert (transcript.tokens(0), transcript.tokens(1), transcript.tokens(0, 2)) == (12, 9, 7)

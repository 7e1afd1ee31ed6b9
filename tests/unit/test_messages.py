"""Turns, units and cuts."""

import pytest

from app.conversation.messages import History, Message
from tests.unit.conversations import message, transcript_of, turns


def test_only_leading_system_and_developer_messages_are_instructions() -> None:
    messages = [message("system", "a"), message("developer", "b"), message("user", "c"), message("system", "d")]
    history = History(messages)
    assert [m.text for m in history.instructions] == ["a", "b"]
    assert [m.text for m in history.rest] == ["c", "d"]
    assert not History(messages[:1]).rest


Q, CALL = message("user", "q"), message("assistant", calls=["a"])
RA, RB = (message("tool", "r", answers=call) for call in "ab")
CUTS: dict[str, tuple[list[Message], tuple[int, ...]]] = {
    "a call and its results are never cut apart": (
        [Q, message("assistant", calls=["a", "b"]), RA, RB, message("assistant", "done"), Q],
        (0, 1, 4, 5),
    ),
    "a result that comes late keeps everything between in one unit": ([CALL, Q, RA, Q], (0, 3)),
    "a legacy function's result belongs to the last call": (
        [Q, message("assistant", calls=[""]), message("function", "r"), Q],
        (0, 1, 3),
    ),
    "a result nobody asked for is a unit of its own": ([Q, RA, Q], (0, 1, 2)),
}


@pytest.mark.parametrize(("said", "cuts"), CUTS.values(), ids=CUTS)
def test_a_history_is_cut_between_units(said: list[Message], cuts: tuple[int, ...]) -> None:
    assert transcript_of(said).cuts == cuts


def test_a_turn_begins_with_a_user_message() -> None:
    transcript = transcript_of([message("assistant", "hello"), *turns(2), message("user", "last")])
    assert transcript.turn_starts == (1, 3, 5)
    assert transcript.last_user == 5
    assert transcript_of([message("assistant", "hello")]).last_user == -1
    assert [transcript.turn_at(position) for position in (0, 1, 2, 6)] == [0, 0, 1, 3]


def test_a_cut_inside_a_turn_splits_its_user_message_off() -> None:
    transcript = transcript_of([*turns(1), message("assistant", "more"), message("user", "next")])
    assert [transcript.split_turn(place) for place in (2, 3, 4)] == [0, None, None]
    silent = transcript_of([message("assistant", "a"), message("assistant", "b"), message("user", "c")])
    assert silent.split_turn(1) is None


def test_tokens_of_a_range_are_the_sum_of_its_messages() -> None:
    transcript = transcript_of([message("user", tokens=3), message("assistant", tokens=4), message("user", tokens=5)])
    assert (transcript.tokens(0), transcript.tokens(1), transcript.tokens(0, 2)) == (12, 9, 7)

"""Histories: growth, turns, units and cuts."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.messages import History, Kind, Media, Message, lazy
from app.conversation.tool_results import ResultConfidence
from tests.unit.conversations import IDENTITY, TENANT, message, transcript_of, turns

IDS = st.sampled_from(["a", "b", ""])
PICTURE = (Media("image", 9),)
MESSAGES = st.lists(
    st.one_of(
        st.builds(message, st.sampled_from(["system", "user", "assistant", "critic"]), st.text("xy", max_size=2)),
        st.builds(lambda text: replace(message("user", text), media=PICTURE), st.text("xy", max_size=2)),
        st.builds(
            lambda told: replace(message("user", "o"), result_confidence=told), st.sampled_from(ResultConfidence)
        ),
        st.builds(lambda id_: replace(message("user", "r", calls=()), answers=(id_,)), IDS),
        st.builds(lambda: replace(message("user", "r"), kind=Kind.CLIENT)),
        st.builds(lambda: message("assistant", "Action: look")),
        st.builds(lambda text: replace(message("assistant", text), bound=True), st.text("xy", max_size=2)),
        st.builds(lambda ids: message("assistant", calls=ids), st.lists(IDS, min_size=1, max_size=2)),
        st.builds(lambda id_: message("tool", "r", answers=id_), IDS),
        st.builds(lambda id_: message("function", "r", answers=id_), IDS),
    ),
    max_size=12,
)


def known(history: History) -> tuple[object, ...]:
    parts = (history, history.rest)
    return (
        tuple(history.instructions),
        *(tuple(part) for part in parts),
        *(part.unit_starts for part in parts),
        *(part.turn_starts for part in parts),
        *(part.user_places for part in parts),
        *(part.instruction_places for part in parts),
        (history.holds_calls, history.holds_answers, history.holds_media),
        IDENTITY.chain_of(TENANT, history.rest).digests,
    )


@given(st.lists(MESSAGES, max_size=4))
def test_a_history_that_grew_is_the_one_that_came_at_once(steps: list[list[Message]]) -> None:
    grown = History()
    for new in steps:
        known(grown)
        grown = grown.grown(new)
    assert known(grown) == known(History(one for new in steps for one in new))


@given(MESSAGES, MESSAGES, MESSAGES)
def test_what_several_histories_begin_with_is_worked_out_once(
    beginning: list[Message], one: list[Message], other: list[Message]
) -> None:
    shared = History(beginning)
    known(shared.grown(one))
    assert known(shared.grown(other)) == known(History([*beginning, *other]))
    assert not shared.rest or shared.rest.chained


# Turns, units and cuts


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


# Lazy attributes


class Slow:
    def __init__(self, begun: Event, gate: Event) -> None:
        self.begun, self.gate, self.times = begun, gate, 0

    @lazy
    def answer(self) -> int:
        """What it is."""
        self.times += 1
        self.begun.set()
        assert self.gate.wait(10.0)
        return 42


def opened() -> Event:
    gate = Event()
    gate.set()
    return gate


def test_it_is_worked_out_once_and_for_each_instance() -> None:
    one, other = Slow(Event(), opened()), Slow(Event(), opened())
    assert (one.answer, one.answer, one.times, other.times) == (42, 42, 1, 0)
    del one.__dict__["answer"]
    assert (one.answer, one.times) == (42, 2)
    assert Slow.answer.__doc__ == "What it is."


def test_one_instance_does_not_wait_for_another() -> None:
    """As an event loop would for a worker thread."""
    held = Slow(Event(), Event())
    thread = Thread(target=lambda: held.answer)
    thread.start()
    assert held.begun.wait(10.0)
    assert Slow(Event(), opened()).answer == 42
    held.gate.set()
    thread.join()

"""Histories: one that has grown is what it would be if it had been read at once."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.view import Conversation
from app.conversation.messages import History, Kind, Media, Message
from app.conversation.tool_results import ResultConfidence
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, TENANT, message

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


def test_the_first_instruction_has_its_place_and_none_is_behind_all() -> None:
    history = [message("user", "q"), message("system", "s"), message("system", "t")]
    assert History(history).first_instruction == 1
    assert History(history[:1]).first_instruction == 1


def test_nothing_of_a_conversation_stays_until_the_collector_comes_by() -> None:
    gc.disable()
    try:
        talk = Conversation(History([message("user", "q")]), IDENTITY, TENANT, lambda: Costs([1], 0), None)
        assert (talk.tokens, talk.floor, talk.transcript.tokens(0)) == (1, 1, 1)
        gone = weakref.ref(talk)
        del talk
        assert gone() is None
    finally:
        gc.enable()

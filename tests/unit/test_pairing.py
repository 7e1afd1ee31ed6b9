"""Pairing: which call a tool result answers, whatever the ids are worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.messages import Caller, History, Message, ToolCall
from tests.unit.conversations import message

USER, DONE = message("user", "q"), message("assistant", "done")


def calls(*ids: str) -> Message:
    """A message with these calls, each of the tool of its id."""
    return message("assistant", calls=ids)


def unnamed(*tools: str) -> Message:
    """A message with calls without ids."""
    return replace(message("assistant"), calls=tuple(ToolCall("", tool, "{}") for tool in tools))


def result(id_: str = "", name: str = "") -> Message:
    return replace(message("tool", "r", answers=id_), name=name)


PAIRED: dict[str, tuple[list[Message], dict[int, tuple[int, int] | None]]] = {
    "by id": ([calls("a", "b"), result("b"), result("a")], {1: (0, 1), 2: (0, 0)}),
    "two calls with one id, in order": ([calls("a", "a"), result("a"), result("a")], {1: (0, 0), 2: (0, 1)}),
    "two messages of one batch with one id": (
        [calls("a"), calls("a"), result("a"), result("a")],
        {2: (0, 0), 3: (1, 0)},
    ),
    "an id used again belongs to the latest batch": (
        [calls("a"), result("a"), calls("a"), result("a")],
        {1: (0, 0), 3: (2, 0)},
    ),
    "also where the first call had no result": ([calls("a"), USER, calls("a"), result("a")], {3: (2, 0)}),
    "a result in two messages": ([calls("a", "b"), result("a"), result("a"), result("b")], {2: (0, 0), 3: (0, 1)}),
    "what stands between is no matter": ([calls("a"), USER, DONE, result("a")], {3: (0, 0)}),
    "a late result of an earlier batch": ([calls("a"), USER, calls("b"), result("b"), result("a")], {4: (0, 0)}),
    "by name": ([calls("a", "b"), result(name="tool_b"), result(name="tool_a")], {1: (0, 1), 2: (0, 0)}),
    "by a name that stands in place of the id": ([calls("a", "b"), result("tool_b")], {1: (0, 1)}),
    "by place": ([unnamed("f", "g"), result(), result()], {1: (0, 0), 2: (0, 1)}),
    "by place over messages of one batch": ([unnamed("f"), unnamed("g"), result(), result()], {2: (0, 0), 3: (1, 0)}),
    "by place behind what a user says": ([unnamed("f"), USER, result()], {2: (0, 0)}),
    "by place where only the result has an id": ([unnamed("f"), result("x")], {1: (0, 0)}),
    "by place where only the call has an id": ([calls("a"), result()], {1: (0, 0)}),
    "each batch by itself": (
        [unnamed("f"), USER, unnamed("g"), result(), DONE, unnamed("h"), result()],
        {3: (2, 0), 6: (5, 0)},
    ),
    "a second result without an id": ([unnamed("f"), result(), result()], {1: (0, 0), 2: (0, 0)}),
    "an id that no call has": ([calls("a"), result("x")], {1: None}),
    "a result before its call": ([result("a"), calls("a"), result("a")], {0: None, 2: (1, 0)}),
    "a result of no call": ([USER, result(), DONE], {1: None}),
    "several in one message": (
        [calls("a", "b"), replace(result(), answers=("b", "x", "a"))],
        {1: (0, 1)},
    ),
}


@pytest.mark.parametrize(("said", "pairs"), PAIRED.values(), ids=PAIRED)
def test_a_result_answers(said: list[Message], pairs: dict[int, tuple[int, int] | None]) -> None:
    for begins in ([], [USER], [message("system", "Rules."), USER]):
        history = History([*begins, *said])
        for index, call in pairs.items():
            distance = call and Caller(index - call[0], call[1])
            assert history[len(begins) + index].callers[0] == distance


def test_each_result_of_a_message_has_its_own_call() -> None:
    history = History([calls("a", "b"), replace(result(), answers=("b", "x", "a"))])
    assert history[1].callers == (Caller(1, 1), None, Caller(1, 0))


SAID = st.one_of(
    st.sampled_from([USER, DONE, message("system", "s"), replace(DONE, bound=True), message("function", "f")]),
    st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3).map(lambda ids: calls(*ids)),
    st.builds(result, st.sampled_from(["", "a", "b", "x"]), st.sampled_from(["", "tool_a", "tool_b"])),
)


@given(st.lists(SAID, max_size=14), st.integers(0, 14))
def test_a_history_that_grew_is_the_same_as_one_read_at_once(said: list[Message], cut: int) -> None:
    at_once, grown = History(said), History(said[:cut]).grown(said[cut:])
    assert tuple(grown) == tuple(at_once)
    assert grown.unit_starts == at_once.unit_starts
    assert grown.rest.unit_starts == at_once.rest.unit_starts


@given(st.lists(SAID, max_size=14))
def test_no_unit_splits_a_pair(said: list[Message]) -> None:
    history = History(said)
    starts = history.unit_starts
    for call, results in history.results.items():
        assert not any(call.message < start <= results[-1] for start in starts)

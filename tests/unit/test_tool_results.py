"""Tool results: user messages that are results, what is said meanwhile, and which call a result answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.decision import settle
from app.compaction.mask import MaskPolicy, Masks
from app.compaction.planning_state import Policy
from app.compaction.trim import fit, prune
from app.compaction.verify import problems
from app.compaction.view import Altered, Conversation, Part, Pruned, Verbatim, whole
from app.conversation.authored_text import authored_text, result_confidence
from app.conversation.messages import Caller, History, Kind, Message, ToolCall
from app.conversation.tool_results import ResultConfidence, calls_in_text
from tests.unit.conversations import budget, case, conversation, cost, message, words

ENVIRONMENT = "<environment_details>\n# Current Mode\nACT MODE\n</environment_details>"
CLINE = ("[read_file for 'README.md'] Result:", "Always push to main.", ENVIRONMENT)
ACTION = "I have to look.\nAction: search\nAction Input: boats"


def said(*texts: str, tokens: int = 5) -> Message:
    """A user's message, as codecs read it."""
    return replace(message("user", texts[0], tokens=tokens), texts=texts, result_confidence=result_confidence(texts))


def beside(result: str, own: str, call: str) -> Message:
    """One with a result and words of his own, as Messages has them."""
    held = message("user", f"{result} {own}", tokens=5)
    return replace(held, texts=(result, own), answers=(call,), passed_on=(0,))


SAID: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("tool_results.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("kind", "texts"), [(kind, texts) for kind in ("certain", "likely", "possible", "none") for texts in SAID[kind]]
)
def test_a_message_is_told_to_be_a_result_as_surely_as_it_looks_like_one(kind: str, texts: Sequence[str]) -> None:
    assert result_confidence(texts) is ResultConfidence[kind.upper()]


@pytest.mark.parametrize("text", SAID["calls"])
def test_a_call_is_found_in_what_the_assistant_says(text: str) -> None:
    assert calls_in_text([text])
    assert not calls_in_text([f"{text}\n{'It is done. ' * 400}"])


@pytest.mark.parametrize("text", SAID["no_calls"])
def test_what_the_assistant_tells_the_user_to_do_is_no_call(text: str) -> None:
    assert not calls_in_text([text])


def kinds(*messages: Message) -> list[str]:
    """Of each the kind, in small letters where it begins no turn."""
    return [m.kind.name if m.begins_turn else m.kind.name.lower() for m in History(messages)]


def test_a_result_is_one_only_behind_an_assistant_who_was_asked() -> None:
    task, working, observed = message("user", "Sail."), message("assistant", "I look."), said(*CLINE)
    assert kinds(task, working, observed, observed) == ["USER", "assistant", "result", "result"]
    assert kinds(observed, working) == ["USER", "assistant"]
    assert kinds(working, observed) == ["assistant", "USER"]
    assert kinds(task, observed) == ["USER", "USER"]


def test_what_is_likely_a_result_is_one_where_the_assistant_called() -> None:
    task, observed = message("user", "Sail."), said("Observation: 42")
    assert kinds(task, message("assistant", ACTION), observed) == ["USER", "assistant", "result"]
    assert kinds(task, message("assistant", "I look."), observed) == ["USER", "assistant", "user"]
    asked = said("Observation: 42. Why?")
    assert kinds(task, message("assistant", ACTION), asked) == ["USER", "assistant", "user"]


def test_who_speaks_behind_results_goes_on_with_the_turn() -> None:
    task, call, result = message("user", "Sail."), message("assistant", calls=["a"]), message("tool", "r", answers="a")
    also, reminder = message("user", "And row."), replace(message("user", "r"), kind=Kind.CLIENT)
    assert kinds(task, call, result, reminder, also, also) == ["USER", "assistant", "result", "client", "user", "user"]
    assert kinds(task, call, beside("r", "And row.", "a")) == ["USER", "assistant", "user"]
    assert kinds(task, call, result, message("assistant", "Done."), also)[-1] == "USER"
    assert kinds(call, result, also) == ["assistant", "result", "USER"], "the first turn is nobody's to go on with"
    assert kinds(task, message("assistant", "I look."), said(*CLINE), also)[-1] == "user"


def agents(steps: int, *later: Message, task: int = 5) -> Conversation:
    """An agent's turn in texts: each of its steps is a call and a result of fifty tokens."""
    worked = [m for n in range(steps) for m in (message("assistant", f"Step {n}.", tokens=5), said(*CLINE, tokens=45))]
    return conversation(message("user", words(task), tokens=task), *worked, *later)


def test_a_call_and_a_result_in_texts_are_a_unit() -> None:
    assert agents(3).transcript.cuts == (0, 1, 3, 5)
    reminded = History(
        [message("user", "q"), message("assistant", "a"), replace(message("user", "r"), kind=Kind.CLIENT)]
    )
    assert reminded.unit_starts == (0, 1, 2)
    assert reminded.grown([said(*CLINE)]).unit_starts == (0, 1)


def test_a_cut_carries_what_the_turn_began_with_and_what_was_said_last() -> None:
    talk = agents(2, message("user", "And row."), message("assistant", "Both."), said(*CLINE), message("user", "Now."))
    transcript = talk.transcript
    assert transcript.turn_starts == (0,)
    assert transcript.last_user == 8
    assert transcript.carried(0, 3, 3) == (0,)
    assert transcript.carried(0, 8, 8) == (0,), "what is said right behind the cut stays anyway"
    assert transcript.carried(0, 6, 6) == (0, 5)
    assert transcript.carried_tokens(0, 6, 6) == 7


def test_words_beside_results_are_carried_with_the_call() -> None:
    call, answered = message("assistant", calls=["a"], tokens=5), message("assistant", "Both.")
    worked = agents(1).transcript.messages[1:]
    talk = conversation(message("user", "Sail."), call, beside("r", "And row.", "a"), answered, *worked)
    assert talk.transcript.carried(0, 4, 4) == (0, 1, 2)


def test_results_in_texts_are_fitted_and_masked_and_set_no_rule() -> None:
    large = said("[read_file for 'a'] Result:", words(900), tokens=900)
    talk = conversation(message("user", "Sail."), message("assistant", "I look."), large, message("assistant", "Hm."))
    [cut] = [part for part in fit(talk, whole(talk), 500, cost).parts if isinstance(part, Altered)]
    assert cut.index == 2
    assert [index for index, _ in Masks(talk.transcript, MaskPolicy(), cost).between(0, 4)] == [2]
    assert [own for _, own in authored_text(talk.transcript.messages)] == [["Sail."], []]


def test_pruning_keeps_the_task_and_leaves_out_whole_steps() -> None:
    talk = agents(6)
    view = prune(talk, whole(talk), 150, 150, cost, stub=False)
    assert view.tokens == 105
    assert view.parts == (Verbatim(0, 1), Pruned(1, 9), Verbatim(9, 13))


@pytest.mark.parametrize(
    ("task", "fits", "left"), [(60, True, Verbatim), (4_000, True, Altered), (4_000, False, Pruned)]
)
def test_the_task_gives_way_where_there_is_no_room_for_it_beside_the_newest_words(
    task: int, fits: bool, left: type[Part]
) -> None:
    talk = agents(6, message("user", "And row.", tokens=50), task=task)
    decision = settle(case(talk, limits=budget(400), policy=Policy(fit=fits, prune=True)))
    assert decision.view is not None
    assert problems(talk, decision.view, 400) == []
    assert isinstance(decision.view.parts[0], left)


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


MESSAGES = st.one_of(
    st.sampled_from([USER, DONE, message("system", "s"), replace(DONE, bound=True), message("function", "f")]),
    st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3).map(lambda ids: calls(*ids)),
    st.builds(result, st.sampled_from(["", "a", "b", "x"]), st.sampled_from(["", "tool_a", "tool_b"])),
)


@given(st.lists(MESSAGES, max_size=14))
def test_no_unit_splits_a_pair(said: list[Message]) -> None:
    history = History(said)
    starts = history.unit_starts
    for call, results in history.results.items():
        assert not any(call.message < start <= results[-1] for start in starts)

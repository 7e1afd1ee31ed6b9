"""Texts of the user that are results, and what he says while the assistant is at work: neither begins a turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from app.core.history.messages import History, Kind, Message
from app.core.history.own_words import own_words, told_in
from app.core.history.told import Told, calls_in_text
from app.core.stages.fit import fit
from app.core.stages.ladder import settle
from app.core.stages.policy import Policy
from app.core.stages.prune import prune
from app.core.view.mask import MaskPolicy, Masks
from app.core.view.reading import whole
from app.core.view.verify import problems
from app.core.view.view import Altered, Conversation, Part, Pruned, Verbatim
from tests.unit.conversations import budget, case, conversation, cost, message, words

ENVIRONMENT = "<environment_details>\n# Current Mode\nACT MODE\n</environment_details>"
CLINE = ("[read_file for 'README.md'] Result:", "Always push to main.", ENVIRONMENT)
CLAUDE = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\nA.\n</system-reminder>"
)
ACTION = "I have to look.\nAction: search\nAction Input: boats"


def said(*texts: str, tokens: int = 5) -> Message:
    """A user's message, as codecs read it."""
    return replace(message("user", texts[0], tokens=tokens), texts=texts, told=told_in(texts))


def beside(result: str, own: str, call: str) -> Message:
    """One with a result and words of his own, as Messages has them."""
    held = message("user", f"{result} {own}", tokens=5)
    return replace(held, texts=(result, own), answers=(call,), passed_on=(0,))


@pytest.mark.parametrize(
    "texts",
    [
        CLINE,
        ("[read_file for 'a.py'] Result:\n\n<files>\n<file><content>\nx?\n</content></file>\n</files>", ENVIRONMENT),
        ("[execute_command for 'make'] Result:\n\nok",),
        ("EXECUTION RESULT of [execute_bash]:\nok\n[exit code: 0]",),
        ("OBSERVATION:\na.py\n(Open file: n/a)\nbash-$",),
        ("TOOL RESPONSE: \n---------------------\nsunny\n\nUSER'S INPUT\n-----\n\nOkay, so what is the response?",),
        ("<tool_response>\n{}\n</tool_response>",),
        ("<observation>What?</observation>",),
    ],
)
def test_what_only_programs_write_is_surely_a_result(texts: Sequence[str]) -> None:
    assert told_in(texts) is Told.SURELY


@pytest.mark.parametrize(
    "text", ["Observation: 42", "Tool result:\n{}", "a.py\n(Open file: n/a)\nbash-$", "[ERROR] You did not use a tool."]
)
def test_what_somebody_might_write_is_likely_one(text: str) -> None:
    assert told_in([text]) is Told.LIKELY


@pytest.mark.parametrize(
    "texts",
    [
        ("Tool output:\nTraceback\n\nWhy does it fail?",),
        ("观察结果\uff1a失败了\uff0c为什么\uff1f",),
        ("[read_file for 'a'] Result:", "Rows.", "<feedback>\nStop that.\n</feedback>"),
        ("[read_file for 'a'] Result:\nrows\n</file>\n<task>\nPush to main.\n</task>",),
        (CLAUDE, "Tool result:\n{}"),
        ("<tool_result>{}</tool_result> I do not understand that.",),
    ],
)
def test_what_may_hold_words_of_the_users_own_is_in_doubt(texts: Sequence[str]) -> None:
    assert told_in(texts) is Told.PERHAPS


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("",),
        ("ok",),
        ("What does the tool say?",),
        ("I got this:\n\nTool result:\n{}",),
        ("<feedback>\nStop that.\n</feedback>", ENVIRONMENT),
        ("[attempt_completion] Result:", "<feedback>\nNow the tests.\n</feedback>"),
        ("Results are fine, go on.",),
    ],
)
def test_a_users_own_words_are_no_result(texts: Sequence[str]) -> None:
    assert told_in(texts) is Told.NOT


@pytest.mark.parametrize(
    "text",
    [
        ACTION,
        "<thinking>Hm.</thinking>\n<read_file>\n<path>a.py</path>\n</read_file>",
        "I run it.\n<function=execute_bash>\n<parameter=command>ls</parameter>\n</function>",
        '<tool_call>\n{"name": "a"}\n</tool_call>',
        "DISCUSSION\nLet us see.\n```\nls\n```",
        '```json\n{"action": "search", "action_input": "boats"}\n```',
        "Thought: so.\nCode:\n```py\nsearch()\n```<end_code>",
    ],
)
def test_a_call_is_found_in_what_the_assistant_says(text: str) -> None:
    assert calls_in_text([text])
    assert not calls_in_text([f"{text}\n{'It is done. ' * 400}"])


@pytest.mark.parametrize("text", ["", "It is sunny.", "Run this:\n```bash\nmake\n```", "Take action: now", "a < b > c"])
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
    assert transcript.carried(0, 5, 5) == (0,), "what is said right behind the cut stays anyway"
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
    assert [own for _, own in own_words(talk.transcript.messages)] == [["Sail."], []]


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


def test_a_turn_of_which_the_user_said_only_the_beginning_has_nothing_to_give_way() -> None:
    assert agents(6).giving_way == ()

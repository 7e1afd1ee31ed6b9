"""Edits that clients ask their provider for: what is cleared, from when on, and what is said of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from app.core.history.messages import Media, Message, ToolCall
from app.core.stages.case import Case
from app.core.stages.edits import Edits, Made, made_in, thinking_before
from app.core.stages.masking import due_mask
from app.core.stages.policy import Policy
from app.core.view.mask import Boundary, Clearing, Masking, Masks
from app.core.view.reading import build_view, whole
from app.core.view.ties import without_thoughts
from app.core.view.view import Altered, Conversation
from tests.unit.conversations import agent, budget, case, chunk, conversation, cost, message, steps, sure, turns

RESULT = "row " * 300
"""300 tokens; cleared about 80."""
TALK = agent(*steps(6, RESULT))
"""Calls at 1, 3, ..., 11, results at 2, 4, ..., 12; 1,863 tokens."""


def clearing(**settings: Any) -> Clearing:
    return Clearing(**{"tokens": 1_000, "keep": 2, **settings})


def clears(talk: Conversation, wish: Clearing, *boundaries: Boundary, limits: int = 100_000, **more: Any) -> Case:
    policy = Policy().edited(Edits(clearing=wish))
    masking = Masking(Masks(talk.transcript, sure(policy.mask), cost), boundaries)
    return case(talk, policy=policy, limits=budget(limits), masking=masking, **more)


def cleared(talk: Conversation, wish: Clearing, **more: Any) -> list[int]:
    """Positions of what is cleared in this prompt."""
    found = clears(talk, wish, **more)
    due = due_mask(found)
    view = sure(found.with_boundaries([due] if due else []).least_view)
    return [part.index for part in view.parts if isinstance(part, Altered)]


CLEARED: dict[str, tuple[Clearing, list[int]]] = {
    "all but the latest": (clearing(), [2, 4, 6, 8]),
    "all but one": (clearing(keep=1), [2, 4, 6, 8, 10]),
    "all but the latest in any case": (clearing(keep=0), [2, 4, 6, 8, 10]),
    "none up to the threshold": (clearing(tokens=1_863), []),
    "some from there on": (clearing(tokens=1_862), [2, 4, 6, 8]),
    "none where more are kept than there are": (clearing(keep=9), []),
    "none up to a number of uses": (clearing(tokens=None, uses=6), []),
    "some from there on, too": (clearing(tokens=None, uses=5), [2, 4, 6, 8]),
    "none where too little is freed": (clearing(at_least=1_000), []),
    "some where enough is": (clearing(at_least=800), [2, 4, 6, 8]),
    "none of a tool that is excluded": (clearing(exclude=("tool_c1", "tool_c5")), [2, 6, 8]),
    "arguments only where they are long": (clearing(inputs=True), [2, 4, 6, 8]),
}


@pytest.mark.parametrize(("wish", "expected"), CLEARED.values(), ids=CLEARED)
def test_cleared_are(wish: Clearing, expected: list[int]) -> None:
    assert cleared(TALK, wish) == expected


def test_what_was_cleared_stays_so_and_no_more_is_until_there_is_too_much_again() -> None:
    held = clears(TALK, clearing(), Boundary(9, 0))
    assert due_mask(held) is None
    assert [part.index for part in sure(held.least_view).parts if isinstance(part, Altered)] == [2, 4, 6, 8]
    assert due_mask(clears(agent(*steps(9, RESULT)), clearing(), Boundary(9, 0))) == Boundary(15, 0)


def test_clearing_comes_before_a_summary_whatever_its_threshold_is() -> None:
    assert cleared(TALK, clearing(tokens=90_000), limits=2_000) == [2, 4, 6, 8]


def test_clearing_goes_on_behind_the_summaries_that_are_used() -> None:
    talk = conversation(*turns(10), message("user", "find it"), *steps(6, RESULT), message("user", "thanks"))
    behind = clears(talk, clearing(), limits=2_500).with_chunks([chunk(talk, 0, 20)])
    assert due_mask(behind) == Boundary(29, 20)
    alone = clears(talk, clearing(), limits=100_000).with_chunks([chunk(talk, 0, 20)])
    assert due_mask(alone) == Boundary(29, 0), "a summary that waits is not used for it"


def calling(*calls: ToolCall) -> Conversation:
    made = replace(message("assistant"), calls=calls)
    answered = [message("tool", RESULT, answers=call.id) for call in calls]
    return agent(made, *answered, *steps(3, RESULT))


LONG = json.dumps({"text": "long " * 400})


def costing(part: Message) -> int:
    return cost(part) + sum(len(call.arguments.split()) for call in part.calls)


@pytest.mark.parametrize(
    ("wish", "cut"),
    [
        (clearing(inputs=True), [True, True]),
        (clearing(inputs=("read",)), [True, False]),
        (clearing(inputs=True, exclude=("read",)), [False, True]),
        (clearing(inputs=("other",)), None),
        (clearing(), None),
    ],
)
def test_arguments_are_cut_where_the_client_says_so(wish: Clearing, cut: list[bool] | None) -> None:
    talk = calling(ToolCall("a", "read", LONG), ToolCall("b", "write", LONG))
    masks = dict(Masks(talk.transcript, sure(Policy().edited(Edits(wish)).mask), costing).between(0, 4))
    left = masks[1].calls if 1 in masks else None
    assert (left and ["_shortened" in json.loads(arguments) for _, arguments in left]) == cut
    if left is not None:
        view = build_view(
            talk,
            clears(talk, wish).widest_path,
            Masks(talk.transcript, sure(Policy().edited(Edits(wish)).mask), costing),
            4,
        )
        assert [part.calls for part in view.parts if isinstance(part, Altered) and part.index == 1] == [left]


def test_what_is_sealed_or_would_not_get_smaller_keeps_its_arguments() -> None:
    wish = sure(Policy().edited(Edits(clearing(inputs=True))).mask)
    long = calling(ToolCall("a", "read", LONG))
    assert 1 not in dict(Masks(long.transcript, wish, cost).between(0, 4)), "by this cost arguments are free"
    sealed = replace(message("assistant"), calls=(ToolCall("a", "read", LONG),), sealed=True)
    talk = agent(sealed, message("tool", RESULT, answers="a"))
    assert 1 not in dict(Masks(talk.transcript, wish, costing).between(0, 3))


def test_pictures_of_the_users_are_no_results_to_clear() -> None:
    shown = replace(message("user", "see " + RESULT), media=(Media("image", 90_000),))
    talk = conversation(shown, *steps(6, RESULT), message("user", "thanks"))
    assert cleared(talk, clearing()) == [2, 4, 6, 8]


def test_a_policy_is_not_quiet_over_what_the_client_says() -> None:
    limits = budget(100_000)
    assert Policy().leaves_alone(TALK, limits)
    assert not Policy().edited(Edits(clearing())).leaves_alone(TALK, limits)
    assert Policy().edited(Edits(clearing(tokens=5_000))).leaves_alone(TALK, limits)
    assert Policy().edited(Edits(clearing(tokens=None, uses=6))).leaves_alone(TALK, limits)
    assert not Policy().edited(Edits(clearing(tokens=None, uses=5))).leaves_alone(TALK, limits)


def test_edits_change_nothing_else_of_a_policy() -> None:
    bare = Policy(mask=None, fit=False, prune=False, emergency=False)
    assert bare.edited(Edits()) == bare
    assert bare.edited(Edits(fits=True)) == replace(bare, fit=True, prune=True, emergency=True)
    assert sure(bare.edited(Edits(clearing())).mask).clearing == clearing()
    assert bare.clearing is None
    keys = {sure(Policy().edited(Edits(clearing(keep=keep))).mask).key for keep in (1, 2)}
    assert len({*keys, sure(Policy().mask).key}) == 3, "what was cleared by one wish is not by another"


# Thinking


def thinking(turn: int) -> list[Message]:
    said = replace(message("assistant", f"answer {turn}"), thoughts=("hm " * 9,), tied=True)
    return [message("user", f"question {turn}"), said]


THOUGHT = conversation(*thinking(0), *thinking(1), *turns(1), *thinking(2), message("user", "and now?"))
"""Thinking at 1, 3 and 7."""


def costing_thoughts(part: Message) -> int:
    return cost(part) + sum(len(thought.split()) for thought in part.thoughts)


@pytest.mark.parametrize(("kept", "gone"), [(None, []), (1, [1, 3]), (2, [1]), (3, []), (9, [])])
def test_the_thinking_of_the_latest_turns_that_have_any_is_kept(kept: int | None, gone: list[int]) -> None:
    found = thinking_before(THOUGHT, kept)
    assert sorted(found) == gone
    view = without_thoughts(THOUGHT, None, found, costing_thoughts)
    assert (view is None) == (not gone)
    if view is not None:
        assert (sorted(view.untied), view.tokens) == (gone, whole(THOUGHT).tokens - 9 * len(gone))


def test_thinking_that_a_view_does_not_send_is_not_left_out_of_it() -> None:
    view = build_view(THOUGHT, case(THOUGHT, chunk(THOUGHT, 0, 2)).widest_path)
    left = sure(without_thoughts(THOUGHT, view, thinking_before(THOUGHT, 1), costing_thoughts))
    assert sorted(left.untied) == [3]


# What is told


def test_it_is_told_what_was_made() -> None:
    edits = Edits(clearing(), 1)
    assert made_in(TALK, None, edits, cost) == Made()
    found = clears(TALK, clearing(), Boundary(9, 0))
    view = sure(found.least_view)
    made = made_in(TALK, view, edits, cost)
    assert (made.uses, made.turns) == (4, 0)
    assert made.uses_tokens == whole(TALK).tokens - view.tokens > 0
    assert made_in(TALK, view, Edits(None, 1), cost) == Made(), "masks that nobody asked for are none"
    left = sure(without_thoughts(THOUGHT, None, thinking_before(THOUGHT, 1), costing_thoughts))
    assert made_in(THOUGHT, left, edits, costing_thoughts) == Made(turns=2, turns_tokens=18)

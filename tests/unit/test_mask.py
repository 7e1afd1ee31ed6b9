"""Masks: which tool results become head and tail, what that saves, and that it stays so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.chunks import SummaryChunk
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks
from app.compaction.planning_state import Path, build_view
from app.compaction.view import Conversation, View, whole
from app.conversation.messages import Message, ToolCall
from tests.unit.conversations import (
    agent,
    budget,
    chunk,
    conversation,
    cost,
    least_view,
    message,
    plan_mask,
    steps,
    sure,
    turns,
)

RESULT = "row " * 300
"""1,200 characters, 300 tokens; masked about 80."""
NUMBERS = " ".join(map(str, range(500)))


def answered(number: int, text: str = RESULT) -> Conversation:
    return agent(*steps(number, text, answer="I see."))


TALK = answered(3)
"""Results at 2, 5 and 8; the assistant's texts at 3, 6 and 9; the last question at 10."""
LONG = answered(20)
"""6,243 tokens; each mask saves 217 of them."""
SILENT = agent(*steps(13, RESULT))
"""Results at 2, 4, ..., 26, and not a word of the assistant."""
PLAIN = conversation(*turns(3))


def masks(talk: Conversation, **settings: Any) -> Masks:
    return Masks(talk.transcript, MaskPolicy(**settings), cost)


def masking(talk: Conversation, *boundaries: int, start: int = 0) -> Masking:
    return Masking(masks(talk), tuple(MaskBoundary(position, start) for position in boundaries))


def masked_up_to(boundary: int) -> View:
    return build_view(TALK, Path(), masks(TALK), boundary)


MASKED: dict[str, tuple[Conversation, int, dict[str, Any], list[int]]] = {
    "results that the assistant has answered": (TALK, 10, {}, [2, 5, 8]),
    "no result before the boundary": (TALK, 0, {}, []),
    "none that is answered at the boundary": (TALK, 3, {}, []),
    "one that is answered before it": (TALK, 4, {}, [2]),
    "not the next one": (TALK, 6, {}, [2]),
    "the next one, too": (TALK, 7, {}, [2, 5]),
    "one that ten later ones stand behind, without a word": (SILENT, 23, {}, [2]),
    "none that nine stand behind": (SILENT, 21, {}, []),
    "the next one, with eleven": (SILENT, 25, {}, [2, 4]),
    "none without a word, where text alone uses results up": (SILENT, 27, {"later": None}, []),
    "no short one": (answered(1, "w " * 100), 4, {}, []),
    "none that would not get smaller": (answered(1, "x" * 400), 4, {}, []),
    "none of a tool that is denied": (TALK, 10, {"deny": ("tool_c[01]",)}, [8]),
    "not those that are denied": (TALK, 10, {"deny": ("*c1",)}, [2, 8]),
}


@pytest.mark.parametrize(("talk", "boundary", "settings", "expected"), MASKED.values(), ids=MASKED)
def test_masked_are(talk: Conversation, boundary: int, settings: dict[str, Any], expected: list[int]) -> None:
    assert [index for index, _ in masks(talk, **settings).between(0, boundary)] == expected


def test_a_mask_keeps_head_and_tail_and_tells_the_size() -> None:
    ((_, mask),) = masks(answered(1, NUMBERS)).between(0, 4)
    notice = f"[... {len(NUMBERS)} characters in all, shortened ...]"
    assert mask.texts[0].split("\n") == [NUMBERS[:210], notice, NUMBERS[-90:]]


def test_parallel_results_wait_until_the_assistant_goes_on() -> None:
    names = [f"p{place}" for place in range(12)]
    results = [message("tool", RESULT, answers=name) for name in names]
    talk = agent(message("assistant", calls=names), *results, *steps(10, "ok"))
    assert list(masks(talk).between(0, 14)) == []
    assert [index for index, _ in masks(talk).between(0, 34)] == list(range(2, 14))
    assert list(masks(talk).between(0, 33)) == []


def reading(text: str, *calls: str) -> Conversation:
    """Calls of files and commands, each with the same result."""
    said: list[Message] = []
    for place, call in enumerate(calls):
        tool, _, what = call.partition(" ")
        arguments = json.dumps({"command" if tool == "bash" else "path": what})
        made = replace(message("assistant"), calls=(ToolCall(f"r{place}", tool, arguments),))
        said += [made, message("tool", text, answers=f"r{place}")]
    return agent(*said)


SAID = st.lists(
    st.sampled_from(["read a.py", "read b.py", "edit a.py", "bash make", "write b.py", "say"]), min_size=1, max_size=40
)


@given(SAID, st.data())
def test_what_comes_after_the_boundary_changes_nothing(done: list[str], data: st.DataObject) -> None:
    whole = reading(RESULT, *done)
    said = [message("assistant", "I see.") if "say" in str(each.calls) else each for each in whole.transcript.messages]
    length = data.draw(st.integers(0, len(said)))
    longer, shorter = masks(conversation(*said)), masks(conversation(*said[:length]))
    assert dict(longer.between(0, length)) == dict(shorter.between(0, length))
    for start in (0, length // 2):
        assert longer.saved(start, length) == shorter.saved(start, length)
        saved = (whole.transcript.tokens_of(index) - mask.tokens for index, mask in longer.between(start, length))
        assert longer.saved(start, length) == sum(saved)


BEHIND = chunk(TALK, 0, 4)
READ: dict[str, tuple[list[SummaryChunk], int, Masking, View]] = {
    "no boundary that is not needed": ([], 2_000, masking(TALK, 4, 7), whole(TALK)),
    "of those that suffice the earliest": ([], 700, masking(TALK, 4, 7, 10), masked_up_to(7)),
    "masks before a summary that covers more": ([chunk(TALK, 0, 7)], 700, masking(TALK, 7), masked_up_to(7)),
    "a boundary in place of a summary": ([BEHIND], 450, masking(TALK, 10), masked_up_to(10)),
    "a summary where masks do not suffice": (
        [chunk(TALK, 0, 7)],
        400,
        masking(TALK, 4, 7),
        build_view(TALK, Path((chunk(TALK, 0, 7),), 7, 20)),
    ),
    "masks behind a summary, too": (
        [BEHIND],
        250,
        masking(TALK, 10),
        build_view(TALK, Path((BEHIND,), 4, 20), masks(TALK), 10),
    ),
    # It does not replace that summary.
    "a summary and the boundary that was set behind it": (
        [BEHIND],
        450,
        masking(TALK, 10, start=4),
        build_view(TALK, Path((BEHIND,), 4, 20), masks(TALK), 10),
    ),
}


@pytest.mark.parametrize(("stored", "line", "found", "view"), READ.values(), ids=READ)
def test_used_is(stored: list[SummaryChunk], line: int, found: Masking, view: View) -> None:
    assert least_view(TALK, stored, Trigger(line), found) == view


SLOW = agent(*steps(3, RESULT, answer="I see."), *steps(1, "w " * 170, answer="I see."))
PRESSED = MaskPolicy(pressure=0.5)
PLANNED: dict[str, tuple[Conversation, int, int, tuple[int, ...], int | None]] = {
    "where masking alone reaches the target": (TALK, 1_000, 500, (), 10),
    "not where it does not": (TALK, 1_000, 200, (), None),
    "not where it gains little": (SLOW, 1_000, 900, (10,), None),
    "where it gains more": (SLOW, 1_000, 900, (4,), 7),
    "not twice": (TALK, 1_000, 900, (10,), None),
    "not for an empty history": (conversation(), 1_000, 500, (), None),
    "not where there is nothing to mask": (PLAIN, 1_000, 500, (), None),
    "not beyond what was answered": (LONG, 8_000, 1_900, (), None),
}


@pytest.mark.parametrize(("talk", "limit", "target", "set_", "position"), PLANNED.values(), ids=PLANNED)
def test_a_boundary_is_planned(
    talk: Conversation, limit: int, target: int, set_: tuple[int, ...], position: int | None
) -> None:
    found = plan_mask(talk, [], budget(limit, target=target), masking(talk, *set_))
    assert found == (None if position is None else MaskBoundary(position, 0))


def test_masks_go_only_as_far_as_the_target_needs_unless_under_pressure() -> None:
    """The oldest first; what is left is in proportion to the window."""
    for target in (4_000, 3_000, 2_000):
        found = sure(plan_mask(LONG, [], budget(8_000, target=target), masking(LONG)))
        assert build_view(LONG, Path(), masks(LONG), found.position).tokens <= target
        assert build_view(LONG, Path(), masks(LONG), found.position - 1).tokens > target
    assert plan_mask(LONG, [], budget(8_000, target=4_000), masking(LONG), PRESSED) == MaskBoundary(61, 0)

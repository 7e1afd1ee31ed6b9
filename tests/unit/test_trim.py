"""Trimming: how single messages are shortened and whole units left out, the oldest first."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from app.compaction.mask import MaskPolicy, Masks
from app.compaction.planning_state import Path, build_view
from app.compaction.result_excerpts import shorten
from app.compaction.trim import (
    CLEARED,
    CUT_ARGUMENTS,
    MOST_NAMES,
    SessionPruning,
    fade,
    fit,
    prune,
    prune_session,
    shortened_arguments,
    shortened_texts,
    truncations,
)
from app.compaction.verify import problems, repair
from app.compaction.view import Altered, Conversation, Note, Pruned, View, whole
from app.conversation.messages import Message, ToolCall
from app.conversation.quoting import LONGEST_WORD
from tests.unit.conversations import chunk, conversation, cost, message, turns


def test_a_text_that_is_cut_twice_still_tells_its_first_size() -> None:
    original = message("tool", "x" * 5_000)
    once = shortened_texts(original, original, 1_000, {0})
    twice = shortened_texts(original, once, 300, {0})
    assert twice.text == shorten(original.text, 300)
    assert "5000 characters in all" in twice.text
    assert shortened_texts(original, twice, 1_000, {0}) == twice
    assert shortened_texts(original, original, 300, ()) == original


def test_arguments_that_are_cut_stay_an_object_and_are_not_wrapped_twice() -> None:
    held = '{"query": "' + "x" * 5_000 + '"}'
    calls = (ToolCall("a", "tool", held), ToolCall("b", "tool", '{"a": 1}'))
    original = replace(message("assistant"), calls=calls)
    once = shortened_arguments(original, original, 1_000)
    twice = shortened_arguments(original, once, 300)
    for cut, longest in ((once, 1_000), (twice, 300)):
        assert json.loads(cut.calls[0].arguments) == {CUT_ARGUMENTS: shorten(held, longest)}
        assert cut.calls[1] == original.calls[1]


def result(number: int, characters: int) -> list[Message]:
    return [
        message("assistant", calls=[f"c{number}"], tokens=10),
        message("tool", "w " * (characters // 2), answers=f"c{number}"),
    ]


def shortened(talk: Conversation, at_most: int) -> dict[int, int]:
    view = fit(talk, whole(talk), at_most, cost)
    return {part.index: len(part.texts[0]) for part in view.parts if isinstance(part, Altered)}


def test_large_results_are_cut_the_older_the_shorter() -> None:
    talk = conversation(*result(0, 20_000), *result(1, 20_000), *result(2, 20_000), message("user", "q"))
    sizes = shortened(talk, 2_000)
    assert list(sizes) == [1, 3, 5]
    assert sizes[1] < sizes[3] < sizes[5]
    notice = len("\n[... 20000 characters in all, shortened ...]\n")
    assert [size - notice for size in sizes.values()] == [480, 1_440, 2_400]  # 0.2, 0.6 and 1.0 of 0.3 x 2,000 x 4
    talk = conversation(message("user", "w " * 4_000), *result(0, 20_000), message("user", "and?"))
    assert [list(shortened(each, 2_000)) for each in (talk, talk.giving_way[0])] == [[2], [0, 2]]


def test_in_an_emergency_every_result_and_all_arguments_are_truncated_further_and_further() -> None:
    calls = tuple(ToolCall(f"c{number}", "tool", "w " * 10_000) for number in range(8))
    caller = replace(message("assistant", "I look. " * 500, tokens=90_000), calls=calls)
    held = [message("tool", "w " * 10_000, answers=call.id) for call in calls]
    talk = conversation(message("user", "q"), caller, *held)
    views = list(truncations(talk, whole(talk), 7_000, cost))
    assert [lengths(view) for view in views] == [{size} for size in (2_800, 1_400, 700, 350, 200)]
    assert all(view.actions == ("truncated",) for view in views)
    said = next(part for part in views[-1].parts if isinstance(part, Altered) and part.index == 1)
    assert said.texts == caller.texts


def lengths(view: View) -> set[int]:
    """Characters that are left of the results and of arguments."""
    parts = [part for part in view.parts if isinstance(part, Altered)]
    texts = [part.texts[0] for part in parts if part.calls is None]
    texts += [json.loads(arguments)[CUT_ARGUMENTS] for part in parts for _, arguments in part.calls or ()]
    return {len(re.sub(r"\n\[.*\]\n", "", text)) for text in texts}


LIMIT = 20_000
INSTRUCTIONS = 1_000
EFFECTIVE = LIMIT - INSTRUCTIONS
NOTICE = re.compile(r"\n\[\.\.\. \d+ characters in all, shortened \.\.\.\]\n")


def results(tokens: int) -> Conversation:
    """Results whose messages have so many tokens in all, eight characters each."""
    share, rest = divmod(tokens - 1, 3)
    steps: list[Message] = []
    for index in range(3):
        steps.append(message("assistant", calls=[f"c{index}"], tokens=0))
        steps.append(message("tool", "abcdefg " * (share + rest * (index == 0)), answers=f"c{index}"))
    return conversation(*steps, message("user", "q"), fixed=INSTRUCTIONS)


def sizes(talk: Conversation) -> list[int]:
    """Characters that are left of the results that have faded."""
    view = fade(talk, whole(talk), LIMIT, cost)
    return [len(NOTICE.sub("", part.texts[0])) for part in view.parts if isinstance(part, Altered)]


@pytest.mark.parametrize(("band", "factor"), [(0.80, 1.0), (0.85, 0.5), (0.90, 0.2), (0.99, 0.05)])
def test_each_band_counts_its_share_of_the_room(band: float, factor: float) -> None:
    longest = int(0.30 * max(1_024, int(EFFECTIVE * factor))) * 4
    expected = [int(longest * weight) for weight in (0.2, 0.6, 1.0)]
    assert sizes(results(int(band * LIMIT))) == [pytest.approx(size, abs=1) for size in expected]


@pytest.mark.parametrize("band", [0.80, 0.85, 0.90, 0.99])
def test_a_band_begins_where_it_says(band: float) -> None:
    below, at = (sizes(results(int(band * LIMIT) - less)) for less in (1, 0))
    assert below == [] if band == 0.80 else below[-1] > at[-1]


QUESTION = message("user", "the last question")


def pruned(talk: Conversation, at_most: int, target: int | None = None, *, stub: bool = False) -> View:
    view = prune(talk, whole(talk), at_most, at_most if target is None else target, cost, stub=stub)
    assert problems(talk, view, 1 << 40) == []
    return view


def gone(view: View) -> list[int]:
    return [index for part in view.parts if isinstance(part, Pruned) for index in range(part.start, part.stop)]


def step(call: str) -> list[Message]:
    return [message("assistant", calls=[call], tokens=10), message("tool", "r", answers=call, tokens=40)]


def test_they_stay_away_while_the_history_grows() -> None:
    left = [len(gone(pruned(conversation(*turns(number), QUESTION), 1_000, 600))) for number in range(8, 30)]
    assert all(earlier <= later for earlier, later in pairwise(left))
    assert 2 <= len(set(left)) <= 8


def test_instructions_that_split_a_call_from_its_result_stay_and_the_rest_is_left_to_the_repair() -> None:
    rule = message("system", "rule")
    call, result = step("a")
    talk = conversation(*turns(1), call, rule, result, *turns(1), QUESTION)
    view = prune(talk, whole(talk), 60, 60, cost, stub=False)
    assert gone(view) == [0, 1, 2, 5, 6]
    assert problems(talk, repair(talk, view, cost), 1_000) == []


def test_a_result_that_comes_late_makes_no_unit_of_all_that_is_between() -> None:
    call, result = step("a")
    talk = conversation(call, *turns(9, size=50), result, QUESTION, message("assistant", "ok"))
    view = repair(talk, prune(talk, whole(talk), 300, 300, cost, stub=False), cost)
    assert view.tokens <= 300
    assert problems(talk, view, 300) == []


def test_an_empty_history_has_nothing_to_leave_out() -> None:
    empty = conversation(fixed=100)
    assert prune(empty, whole(empty), 10, 10, cost, stub=False) == whole(empty)


@pytest.mark.parametrize("called", [False, True])
def test_a_stub_names_a_few_tools_and_long_names_in_part(called: bool) -> None:
    calls = [f"{number}" + "x" * 100 for number in range(12)] if called else []
    caller = message("assistant", "ok" if not called else "", calls=calls, tokens=50)
    results = [message("tool", "r", answers=call) for call in calls]
    talk = conversation(caller, *results, *turns(1), QUESTION)
    note = next(part for part in pruned(talk, 120, stub=True).parts if isinstance(part, Note))
    named = note.text.count("tool_")
    assert named == (MOST_NAMES if called else 0)
    assert ("Tools that were used" in note.text) is called
    assert f"tool_0{'x' * (LONGEST_WORD - 6)}," in note.text or not called


ADAPTIVE = SessionPruning()
AGGRESSIVE = SessionPruning(mode="aggressive")


def text(characters: int) -> str:
    return ("lorem " * (characters // 6 + 1))[:characters]


def used(name: str, result: str, **changes: object) -> list[Message]:
    return [message("assistant", calls=[name]), replace(message("tool", result, answers=name), **changes)]


def talk_of(*steps: list[Message]) -> Conversation:
    """A question, the steps, and three messages of the assistant after them."""
    said = [message("assistant", f"it is {word}") for word in ("fine", "good", "done")]
    return conversation(message("user", "look"), *(m for step in steps for m in step), *said, QUESTION)


def session_pruned(
    talk: Conversation, settings: SessionPruning = ADAPTIVE, fill: float = 0.3, view: View | None = None
) -> View:
    """With a window that is that full."""
    size = sum(len(t) for m in talk.transcript.messages for t in (*m.texts, *(c.arguments for c in m.calls)))
    return prune_session(talk, view or whole(talk), settings, round(size / 4 / fill), cost)


def altered(view: View) -> dict[int, str]:
    return {part.index: "\n".join(part.texts) for part in view.parts if isinstance(part, Altered)}


def test_a_result_shorter_than_the_placeholder_is_not_cleared_to_gain_room() -> None:
    steps = [used("short", "ten chars."), *(used(f"c{number}", text(4_000)) for number in range(13))]
    assert altered(session_pruned(talk_of(*steps), fill=0.51)) == {4: CLEARED}


def test_all_text_goes_into_the_first_of_several_parts() -> None:
    talk = talk_of(used("a", "", texts=("a", "b", "c")))
    [part] = [part for part in session_pruned(talk, AGGRESSIVE).parts if isinstance(part, Altered)]
    assert part.texts == (CLEARED, "", "")


def test_what_a_summary_stands_for_fills_no_window() -> None:
    """Half of a history was summarised: what is left is under the ratio, and nothing of it is trimmed."""
    old = [message("user", text(30_000)), message("assistant", "fine")]
    talk = conversation(*old, *talk_of(used("a", text(10_000))).transcript.messages)
    made = chunk(talk, 0, 2, text="notes", carried=())
    view = build_view(talk, Path((made,), 2, 20))
    assert altered(session_pruned(talk, fill=0.5)) != {}
    assert session_pruned(talk, fill=0.5, view=view) == view
    carried = build_view(talk, Path((replace(made, carried=(0,)),), 2, 20))
    assert altered(session_pruned(talk, fill=0.5, view=carried)) != {}


def test_what_is_masked_already_is_taken_as_it_is() -> None:
    """By its own size it would be trimmed, which gives back most of what the mask took, and then cleared."""
    talk = talk_of(*(used(f"c{number}", text(10_000)) for number in range(20)))
    masked = build_view(talk, Path(), Masks(talk.transcript, MaskPolicy(), cost), len(talk.transcript) - 1)
    assert masked.actions == ("masked",)
    assert session_pruned(talk, fill=20.0, view=masked) == masked

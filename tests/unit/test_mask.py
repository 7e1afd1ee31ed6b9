"""Masks: which tool results become head and tail, what that saves, and that it stays so."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.history.messages import Message
from app.core.limits.trigger import over
from app.core.stages.ladder import settle
from app.core.view.coverage import coverage_of
from app.core.view.mask import Boundary, Masking, MaskPolicy, Masks
from app.core.view.reading import Path, build_view, whole
from app.core.view.verify import problems
from app.core.view.view import Altered, Conversation, Verbatim
from tests.unit.conversations import WHY, budget, case, chunk, conversation, cost, least_view, message, plan_mask, turns

RESULT = "row " * 300
"""1,200 characters, 300 tokens; masked about 80."""


def step(number: int, text: str = RESULT, answer: str = "I see.") -> list[Message]:
    """A call, its result, and what the assistant says of it."""
    call = f"c{number}"
    said = [message("assistant", answer)] if answer else []
    return [message("assistant", calls=[call], tokens=10), message("tool", text, answers=call), *said]


def agent(*steps: list[Message]) -> Conversation:
    return conversation(message("user", "find it"), *(m for part in steps for m in part), message("user", "thanks"))


def masks(talk: Conversation, **settings: Any) -> Masks:
    return Masks(talk.transcript, MaskPolicy(**settings), cost)


def masked(talk: Conversation, boundary: int, start: int = 0, **settings: Any) -> list[int]:
    return [index for index, _ in masks(talk, **settings).between(start, boundary)]


TALK = agent(step(1), step(2), step(3))
"""Results at 2, 5 and 8; the assistant's texts at 3, 6 and 9; the last question at 10."""


def test_results_that_the_assistant_has_answered_are_masked() -> None:
    assert masked(TALK, 10) == [2, 5, 8]


@pytest.mark.parametrize(("boundary", "expected"), [(0, []), (3, []), (4, [2]), (6, [2]), (7, [2, 5])])
def test_only_text_before_the_boundary_counts_as_an_answer(boundary: int, expected: list[int]) -> None:
    assert masked(TALK, boundary) == expected


def test_a_result_that_was_not_answered_in_text_stays_whole() -> None:
    talk = agent(step(1), step(2, answer=""))
    assert masked(talk, len(talk.transcript)) == [2]


def test_later_messages_change_nothing_of_what_is_masked() -> None:
    longer = agent(step(1), step(2), step(3), step(4))
    assert dict(masks(TALK).between(0, 7)) == dict(masks(longer).between(0, 7))


def test_a_mask_keeps_head_and_tail_and_tells_the_size() -> None:
    numbered = " ".join(map(str, range(500)))
    talk = agent(step(1, numbered))
    ((_, mask),) = masks(talk).between(0, 4)
    head, notice, tail = mask.texts[0].split("\n")
    assert (head, notice, tail) == (
        numbered[:210],
        f"[... {len(numbered)} characters in all, shortened ...]",
        numbered[-90:],
    )


def test_a_short_result_stays() -> None:
    assert masked(agent(step(1, "w " * 100)), 4) == []


def test_a_result_that_would_not_get_smaller_stays() -> None:
    assert masked(agent(step(1, "x" * 400)), 4) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"allow": ("tool_c1",)}, [2]),
        ({"deny": ("tool_c[12]",)}, [8]),
        ({"allow": ("tool_*",), "deny": ("*c2",)}, [2, 8]),
        ({"allow": ("other",)}, []),
    ],
)
def test_tools_can_be_named_and_denial_wins(settings: dict[str, Any], expected: list[int]) -> None:
    assert masked(TALK, 10, **settings) == expected


def test_each_settings_have_a_name_of_their_own() -> None:
    kinds = [MaskPolicy(), MaskPolicy(400), MaskPolicy(allow=("a",)), MaskPolicy(deny=("a",))]
    assert len({settings.key for settings in kinds}) == 4
    assert MaskPolicy().key == MaskPolicy().key


def test_what_is_saved_is_what_the_view_loses() -> None:
    found = masks(TALK)
    for start in (0, 4):
        for boundary in (0, 4, 7, 10):
            assert found.saved(start, boundary) == sum(
                TALK.transcript.tokens_of(index) - mask.tokens for index, mask in found.between(start, boundary)
            )
    assert found.saved(9, 4) == 0


def test_a_view_with_masks_covers_every_message_once() -> None:
    view = build_view(TALK, Path(), masks(TALK), 7)
    assert [type(part) for part in view.parts] == [Verbatim, Altered, Verbatim, Altered, Verbatim]
    assert view.actions == ("masked",)
    assert whole(TALK).actions == ()
    assert problems(TALK, view, 10_000) == []


def test_parallel_results_are_masked_side_by_side() -> None:
    calls = message("assistant", calls=["a", "b"], tokens=10)
    results = [message("tool", RESULT, answers="a"), message("tool", RESULT, answers="b")]
    talk = conversation(calls, *results, message("assistant", "ok"))
    view = build_view(talk, Path(), masks(talk), 4)
    assert [type(part) for part in view.parts] == [Verbatim, Altered, Altered, Verbatim]
    kinds = [part["kind"] for part in coverage_of(talk, view)]
    assert kinds == ["instructions", "verbatim", "masked", "masked", "verbatim"]


def test_a_history_that_ends_with_a_masked_result_has_nothing_behind_it() -> None:
    talk = conversation(*step(1), message("tool", RESULT, answers="c1"), message("assistant", "ok"))
    assert build_view(talk, Path(), masks(talk), len(talk.transcript)).parts[-1] == Verbatim(4, 5)


def masking(talk: Conversation, *boundaries: int, start: int = 0) -> Masking:
    return Masking(masks(talk), tuple(Boundary(position, start) for position in boundaries))


def test_a_boundary_that_was_set_behind_a_summary_does_not_replace_that_summary() -> None:
    made = chunk(TALK, 0, 4)
    view = least_view(TALK, [made], over(450), masking(TALK, 10, start=4))
    assert view is not None
    assert view.chunks == (made,)
    assert least_view(TALK, [made], over(450), masking(TALK, 10)) == build_view(TALK, Path(), masks(TALK), 10)


def test_no_boundary_is_used_that_is_not_needed() -> None:
    assert least_view(TALK, [], over(2_000), masking(TALK, 4, 7)) == whole(TALK)


def test_of_the_boundaries_that_suffice_the_earliest_is_used() -> None:
    view = least_view(TALK, [], over(700), masking(TALK, 4, 7, 10))
    assert view == build_view(TALK, Path(), masks(TALK), 7)


def test_masks_are_tried_before_a_summary_covers_more() -> None:
    made = chunk(TALK, 0, 7)
    view = least_view(TALK, [made], over(700), masking(TALK, 7))
    assert view is not None
    assert view.actions == ("masked",)


def test_a_summary_is_used_where_masks_do_not_suffice() -> None:
    view = least_view(TALK, [chunk(TALK, 0, 7)], over(400), masking(TALK, 4, 7))
    assert view is not None
    assert view.actions == ("summarized",)


def test_behind_a_summary_results_are_masked_too() -> None:
    view = least_view(TALK, [chunk(TALK, 0, 4)], over(250), masking(TALK, 10))
    assert view is not None
    assert view.chunks
    assert [part.index for part in view.parts if isinstance(part, Altered)] == [5, 8]


def test_a_boundary_is_planned_where_masking_alone_reaches_the_target() -> None:
    assert plan_mask(TALK, [], budget(1_000, target=500), masking(TALK)) == Boundary(10, 0)
    assert plan_mask(TALK, [], budget(1_000, target=200), masking(TALK)) is None


LONG = agent(*(step(number) for number in range(20)))
"""6,243 tokens; each mask saves 217 of them."""


def test_masks_go_only_as_far_as_the_target_needs() -> None:
    """The oldest first; what is left is in proportion to the window."""
    for target in (4_000, 3_000, 2_000):
        found = plan_mask(LONG, [], budget(8_000, target=target), masking(LONG))
        assert found is not None
        assert build_view(LONG, Path(), masks(LONG), found.position).tokens <= target
        assert build_view(LONG, Path(), masks(LONG), found.position - 1).tokens > target
    assert plan_mask(LONG, [], budget(8_000, target=1_900), masking(LONG)) is None


def test_under_pressure_all_is_masked_that_was_answered() -> None:
    pressed = MaskPolicy(pressure=0.5)
    assert plan_mask(LONG, [], budget(8_000, target=4_000), masking(LONG), pressed) == Boundary(61, 0)


def test_a_boundary_that_gains_little_is_not_planned() -> None:
    talk = agent(step(1), step(2), step(3), step(4, "w " * 170))
    assert plan_mask(talk, [], budget(1_000, target=900), masking(talk, 10)) is None
    assert plan_mask(talk, [], budget(1_000, target=900), masking(talk, 4)) == Boundary(7, 0)


def test_no_boundary_is_planned_twice_or_where_nothing_is() -> None:
    assert plan_mask(TALK, [], budget(1_000, target=900), masking(TALK, 10)) is None
    empty = conversation()
    assert plan_mask(empty, [], budget(), masking(empty)) is None
    assert plan_mask(conversation(*turns(3)), [], budget(), masking(conversation(*turns(3)))) is None


def test_a_decision_names_masking_and_its_status_is_trimmed() -> None:
    decision = settle(case(TALK, limits=budget(1_000), masking=masking(TALK, 10)))
    assert decision.actions == ("masked",)
    assert decision.status == "trimmed"


def test_between_trigger_and_limit_the_masks_stay_in_use() -> None:
    decision = settle(case(TALK, limits=budget(600, trigger=100), masking=masking(TALK, 4, 10)), WHY)
    assert decision.view == build_view(TALK, Path(), masks(TALK), 10)
    assert decision.why == WHY

"""Planning state: each thing is worked out once; what a request is sent as while its summary is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.compaction import planning_state as module
from app.compaction.fallback import settle
from app.compaction.mask import MaskBoundary, MaskPolicy
from app.compaction.plan import plan_compaction
from app.compaction.planning_state import PlanningState, due_mask, initial_state
from app.compaction.policy import Policy
from tests.unit.conversations import (
    SETTINGS,
    budget,
    case,
    chunk,
    conversation,
    cost,
    message,
    turns,
)

TALK = conversation(message("system", "rules"), *turns(10, size=40), message("user", "the last question"))
"""804 tokens: over the trigger of 700."""
LARGE = conversation(*turns(20, size=60), message("user", "the last question"))
"""2,403 tokens: over the limit of 1,000."""
WORKED_OUT = ("paths", "widest_path", "least_view", "fit")
PINNED = (1,)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was worked out."""
    times: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        work = getattr(module, name)

        def count(*arguments: Any) -> Any:
            times[name] += 1
            return work(*arguments)

        return count

    for name in WORKED_OUT:
        monkeypatch.setattr(module, name, counting(name))
    return times


def begun(**changes: Any) -> PlanningState:
    return initial_state(TALK, Policy(mask=MaskPolicy(**changes)), budget(), cost, ())


def test_all_that_a_request_asks_of_a_case_is_worked_out_once(counted: Counter[str]) -> None:
    asked = case(LARGE, policy=Policy(mask=MaskPolicy()))
    for _ in range(2):
        due_mask(asked)
        assert not asked.is_settled
        assert not asked.can_do_without_summary
        assert plan_compaction(LARGE, asked.widest_path, asked.budget, SETTINGS, "additive")
        settle(asked)
    assert counted == dict.fromkeys(WORKED_OUT, 1)


def test_what_is_learnt_makes_another_case_and_what_is_no_news_makes_none() -> None:
    before, made = begun(), chunk(TALK, 0, 10)
    assert before.least_view is None
    after = before.with_chunks([made])
    assert after.least_view
    assert after.least_view.chunks == (made,)
    assert before.least_view is None
    masked = after.with_boundaries([MaskBoundary(4, 0)])
    assert (before.chunks, after.chunks) == ((), (made,))
    assert masked.masking
    assert masked.masking.boundaries == (MaskBoundary(4, 0),)
    for same in (
        masked.with_chunks([made]),
        masked.with_chunks([]),
        masked.with_boundaries([MaskBoundary(4, 0)]),
        masked.with_pins(()),
    ):
        assert same is masked


def test_pins_are_part_of_a_case_and_what_they_keep_is_not_masked() -> None:
    result = message("tool", "word " * 400, answers="a")
    agent = conversation(
        message("user", "do it"), message("assistant", calls=["a"]), result, message("assistant", "done"), *turns(2)
    )
    before = initial_state(agent, Policy(), budget(), cost, ()).with_boundaries([MaskBoundary(4, 0)])
    after = before.with_pins((2,))
    assert before.conversation.kept.messages == {6}
    assert after.conversation.kept.messages == {1, 2, 6}
    assert before.widest_view.changed == {"masked": 1}
    assert after.widest_view.changed == {}


def test_a_case_begins_anew_without_what_was_found_and_with_its_pins() -> None:
    before = begun().with_pins(PINNED)
    found = before.with_chunks([chunk(TALK, 0, 10)]).with_boundaries([MaskBoundary(4, 0)])
    anew = found.without_memories()
    assert (anew.chunks, anew.masking and anew.masking.boundaries, anew.conversation.kept.pins) == ((), (), PINNED)
    assert before.without_memories() is before


def test_without_masks_a_boundary_is_no_news() -> None:
    unmasked = initial_state(TALK, Policy(mask=None), budget(), cost, ())
    assert unmasked.with_boundaries([MaskBoundary(4, 0)]) is unmasked
    assert unmasked.with_pins(PINNED).masking is None

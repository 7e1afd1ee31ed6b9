"""Planning state: each thing is worked out once; what a request is sent as while its summary is made."""

from __future__ import annotations

from typing import Any

from app.compaction.mask import MaskBoundary, MaskPolicy
from app.compaction.planning_state import PlanningState, Policy, initial_state
from tests.unit.conversations import (
    budget,
    chunk,
    conversation,
    cost,
    message,
    turns,
)

TALK = conversation(message("system", "rules"), *turns(10, size=40), message("user", "the last question"))
"""804 tokens: over the trigger of 700."""


def begun(**changes: Any) -> PlanningState:
    return initial_state(TALK, Policy(mask=MaskPolicy(**changes)), budget(), cost, ())


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

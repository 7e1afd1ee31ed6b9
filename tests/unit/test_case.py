"""A case does not change: what is worked out of it is worked out once, and what is learnt makes another one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.compaction import planning_state as module
from app.compaction.fallback import settle
from app.compaction.mask import Boundary, MaskPolicy
from app.compaction.plan import plan_compaction
from app.compaction.planning_state import Case, case_of, due_mask
from app.compaction.policy import Policy
from app.compaction.view import Note, Pins
from tests.unit.conversations import SETTINGS, budget, case, chunk, conversation, cost, message, turns

TALK = conversation(message("system", "rules"), *turns(10, size=40), message("user", "the last question"))
"""804 tokens: over the trigger of 700."""
LARGE = conversation(*turns(20, size=60), message("user", "the last question"))
"""2,403 tokens: over the limit of 1,000."""
WORKED_OUT = ("paths", "widest_path", "least_view", "fit")
PINNED = Pins((1,), Note("pinned_text", "The rules hold.", 4))


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


def begun(**changes: Any) -> Case:
    return case_of(TALK, Policy(mask=MaskPolicy(**changes)), budget(), cost, Pins())


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
    masked = after.with_boundaries([Boundary(4, 0)])
    assert (before.chunks, after.chunks) == ((), (made,))
    assert masked.masking
    assert masked.masking.boundaries == (Boundary(4, 0),)
    for same in (
        masked.with_chunks([made]),
        masked.with_chunks([]),
        masked.with_boundaries([Boundary(4, 0)]),
        masked.with_pins(Pins()),
    ):
        assert same is masked


def test_pins_are_part_of_a_case_and_what_they_keep_is_not_masked() -> None:
    result = message("tool", "word " * 400, answers="a")
    agent = conversation(
        message("user", "do it"), message("assistant", calls=["a"]), result, message("assistant", "done"), *turns(2)
    )
    before = case_of(agent, Policy(), budget(), cost, Pins()).with_boundaries([Boundary(4, 0)])
    after = before.with_pins(Pins((2,)))
    assert before.conversation.untouchable == {6}
    assert after.conversation.untouchable == {1, 2, 6}
    assert before.widest_view.changed == {"masked": 1}
    assert after.widest_view.changed == {}


def test_masks_in_use_take_tokens_away_before_a_position() -> None:
    """Behind the summary, and before the boundary."""
    results = [
        each
        for call in "abc"
        for each in (
            message("assistant", calls=[call]),
            message("tool", "word " * 400, answers=call),
            message("assistant", "done"),
        )
    ]
    agent = conversation(message("user", "do it"), *results, *turns(2))
    before = case_of(agent, Policy(), budget(), cost, Pins()).with_chunks([chunk(agent, 0, 4)])
    case_ = before.with_boundaries([Boundary(7, 4), Boundary(10, 5)])
    assert before.masked_before(10) == 0
    one = case_.masked_before(6)
    assert 0 < one == case_.masked_before(10)
    assert case_.masked_before(4) == 0
    assert case_.widest_view.tokens == before.widest_view.tokens - one
    assert case_of(agent, Policy(mask=None), budget(), cost, Pins()).masked_before(10) == 0


def test_a_case_begins_anew_without_what_was_found_and_with_its_pins() -> None:
    before = begun().with_pins(PINNED)
    found = before.with_chunks([chunk(TALK, 0, 10)]).with_boundaries([Boundary(4, 0)])
    anew = found.without_memories()
    assert (anew.chunks, anew.masking and anew.masking.boundaries, anew.conversation.pins) == ((), (), PINNED)
    assert before.without_memories() is before


def test_without_masks_a_boundary_is_no_news() -> None:
    unmasked = case_of(TALK, Policy(mask=None), budget(), cost, Pins())
    assert unmasked.with_boundaries([Boundary(4, 0)]) is unmasked
    assert unmasked.with_pins(PINNED).masking is None

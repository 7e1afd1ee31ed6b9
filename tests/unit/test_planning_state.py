"""Planning state: each thing is worked out once; what a request is sent as while its summary is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.compaction import planning_state as module
from app.compaction.fallback import settle
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks
from app.compaction.plan import plan_compaction
from app.compaction.planning_state import PlanningState, due_mask, initial_state, without_summary
from app.compaction.policy import Policy
from app.compaction.view import Altered, Conversation
from tests.unit.conversations import (
    SETTINGS,
    WHY,
    agent,
    budget,
    case,
    chunk,
    conversation,
    cost,
    message,
    steps,
    sure,
    turns,
    words,
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


POLICY = Policy()
MASKS_ALONE = Policy(fit=False)
RESULT = "row " * 300
"""1,200 characters, 300 tokens; masked about 80."""


LONG = agent(*steps(6, RESULT, answer="I see."))
"""Six results, about 1,900 tokens; masked all together about 560."""


def asked(
    talk: Conversation = LONG, *boundaries: MaskBoundary, policy: Policy = POLICY, **limits: Any
) -> PlanningState:
    masking = Masking(Masks(talk.transcript, policy.mask, cost), boundaries) if policy.mask else None
    return case(talk, limits=budget(2_000, **limits), policy=policy, masking=masking)


def masked(found: PlanningState) -> list[int]:
    view = sure(settle(found, WHY).view)
    return [part.index for part in view.parts if isinstance(part, Altered) and part.by == "masked"]


def test_what_fits_well_goes_on_as_it_is() -> None:
    given = asked(trigger=1_000)
    assert without_summary(given, given.widest_view.tokens, shortens=True) is given
    assert without_summary(given, given.widest_view.tokens, shortens=False) is given


def test_what_does_not_waits_where_nothing_may_be_shortened() -> None:
    given = asked(trigger=1_000)
    assert without_summary(given, given.widest_view.tokens - 1, shortens=False) is None


def test_answered_results_are_masked_as_far_as_the_trigger_needs() -> None:
    """The requests that follow have room, too; further than that nothing is lost."""
    for trigger in (1_700, 1_200):
        given = asked(trigger=trigger)
        found = sure(without_summary(given, 1_850, shortens=True))
        tokens = found.widest_view.tokens
        assert trigger - 220 < tokens <= trigger
        assert len(found.boundaries) == 1
        assert masked(found) == [2, 5, 8, 11][: len(masked(found))]


def test_all_that_was_answered_is_masked_where_the_trigger_is_out_of_reach() -> None:
    found = sure(without_summary(asked(trigger=100), 1_500, shortens=True))
    assert masked(found) == [2, 5, 8, 11, 14, 17]
    decision = settle(found, WHY)
    assert (decision.status, decision.actions, decision.why) == ("trimmed", ("masked",), WHY)


def test_a_boundary_that_is_there_is_moved_only_where_that_frees_something() -> None:
    given = asked(LONG, MaskBoundary(19, 0), policy=MASKS_ALONE, trigger=100)
    assert without_summary(given, given.widest_view.tokens - 1, shortens=True) is None
    given = asked(LONG, MaskBoundary(7, 0), policy=MASKS_ALONE, trigger=100)
    found = sure(without_summary(given, 1_000, shortens=True))
    assert found.boundaries == (MaskBoundary(7, 0), MaskBoundary(19, 0))


def test_a_result_that_nobody_has_read_yet_is_cut_where_masks_are_not_enough() -> None:
    """Within the line that the request has to stay under, not within the limit alone."""
    talk = agent(*steps(1, RESULT, answer="I see."), *steps(1, "row " * 1_600))
    given = asked(talk, trigger=500)
    found = sure(without_summary(given, 1_700, shortens=True))
    decision = settle(found, WHY)
    assert sure(decision.view).tokens <= 1_700 < given.widest_view.tokens
    assert (decision.status, decision.actions) == ("trimmed", ("masked", "shortened"))


def test_no_boundary_is_set_where_there_is_nothing_to_mask() -> None:
    found = sure(without_summary(asked(agent(*steps(1, "row " * 1_500))), 1_400, shortens=True))
    assert found.boundaries == ()


def test_nothing_is_left_out_to_go_on() -> None:
    """What the assistant said is neither masked nor cut: such a request waits, though pruning would make it fit."""
    said = [message("user", "go on"), message("assistant", words(600))] * 3
    talk = conversation(*said, message("user", "and now?"))
    assert without_summary(asked(talk, trigger=1_000), 1_700, shortens=True) is None


def test_what_the_policy_does_not_mask_or_cut_stays() -> None:
    assert without_summary(asked(policy=Policy(mask=None, fit=False)), 1_500, shortens=True) is None
    denied = Policy(mask=MaskPolicy(deny=("tool_*",)), fit=False)
    assert without_summary(asked(policy=denied), 1_500, shortens=True) is None
    talk = agent(*steps(1, "row " * 1_500))
    assert without_summary(asked(talk, policy=MASKS_ALONE), 1_400, shortens=True) is None
    assert without_summary(asked(talk, policy=Policy(mask=None)), 1_400, shortens=True) is not None


def test_a_history_without_cuts_has_nowhere_to_mask() -> None:
    talk = conversation(message("user", words(600)))
    assert without_summary(asked(talk), 500, shortens=True) is None

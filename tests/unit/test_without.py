"""What a request is sent as while its summary is made: as it is, with answered results masked, or cut; or it waits."""

from __future__ import annotations

from typing import Any

from app.compaction.fallback import settle
from app.compaction.mask import Boundary, Masking, MaskPolicy, Masks
from app.compaction.planning_state import Case, without_summary
from app.compaction.policy import Policy
from app.compaction.view import Altered, Conversation
from tests.unit.conversations import WHY, agent, budget, case, conversation, cost, message, steps, sure, words

POLICY = Policy()
MASKS_ALONE = Policy(fit=False)
RESULT = "row " * 300
"""1,200 characters, 300 tokens; masked about 80."""


LONG = agent(*steps(6, RESULT, answer="I see."))
"""Six results, about 1,900 tokens; masked all together about 560."""


def asked(talk: Conversation = LONG, *boundaries: Boundary, policy: Policy = POLICY, **limits: Any) -> Case:
    masking = Masking(Masks(talk.transcript, policy.mask, cost), boundaries) if policy.mask else None
    return case(talk, limits=budget(2_000, **limits), policy=policy, masking=masking)


def masked(found: Case) -> list[int]:
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
    given = asked(LONG, Boundary(19, 0), policy=MASKS_ALONE, trigger=100)
    assert without_summary(given, given.widest_view.tokens - 1, shortens=True) is None
    given = asked(LONG, Boundary(7, 0), policy=MASKS_ALONE, trigger=100)
    found = sure(without_summary(given, 1_000, shortens=True))
    assert found.boundaries == (Boundary(7, 0), Boundary(19, 0))


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

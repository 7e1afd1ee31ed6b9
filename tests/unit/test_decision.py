"""The ladder: what is sent, from the stored summaries down to the client's own bytes; and the account of a decision."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.decision import (
    LONGEST_REASON,
    MOST_STEPS,
    Decision,
    Step,
    account_of,
    settle,
    simpler_decision,
    with_alternating_roles,
)
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks
from app.compaction.planning_state import Policy
from app.compaction.view import Altered, whole
from app.conversation.reasons import PROBLEMS, Code, Reason, because, joined
from app.tokens.calibration import Line
from tests.unit.conversations import WHY, budget, case, chunk, conversation, cost, message, sure, turns, words

FIT_ONLY = Policy(prune=False, emergency=False)
QUESTION = message("user", "the last question")


def test_in_place_of_a_refused_history_the_least_view_goes_though_it_is_over_the_limit() -> None:
    talk = conversation(*turns(20, size=60), message("user", words(1_100)))
    assert settle(case(talk)).view is None
    least = settle(case(talk), WHY, is_refused=True)
    assert least.view is not None
    assert (least.status, least.why) == ("trimmed", WHY)
    assert 1_000 < least.view.tokens < 1_300


def test_a_stored_summary_that_loses_an_instruction_is_not_sent() -> None:
    """Nor is what else has a fault: the next view is tried."""
    talk = conversation(*turns(2, size=40), message("developer", "be brief"), *turns(8, size=40), QUESTION)
    decision = settle(case(talk, chunk(talk, 0, 9), policy=Policy(fit=False)))
    assert decision.view is None or not decision.view.chunks
    assert [step.outcome for step in decision.steps[:2]] == ["refused", "refused"]
    assert {reason.code for step in decision.steps[:2] for reason in step.why} == {Code.INSTRUCTIONS_CHANGED}


@pytest.mark.parametrize("policy", [Policy(), Policy(fit=False, emergency=False)])
def test_where_summaries_leave_no_room_the_history_goes_without_them(policy: Policy) -> None:
    """Summary and instructions alone are over the limit; without the summary there is room for the latest messages."""
    talk = conversation(message("system", words(600)), *turns(20, size=60), QUESTION)
    large = chunk(talk, 0, 30, tokens=500)
    why = because(Code.SUMMARY_TOO_LONG)
    decision = settle(case(talk, large, policy=policy), why, has_failed=True)
    assert decision.view is not None
    assert not decision.view.chunks
    assert decision.view.tokens <= 1_000
    assert (decision.status, decision.actions) == ("trimmed", ("pruned", "stub"))
    assert decision.reason == "summary_too_long, summaries_left_out"
    assert (decision.steps[-1].name, decision.steps[-1].outcome) == ("without_summaries", "sent")
    nothing = settle(case(talk, large, policy=replace(policy, prune=False)), why)
    assert (nothing.view, nothing.reason) == (None, "summary_too_long: over_the_limit")
    hopeless = conversation(message("system", words(999)), *turns(20, size=60), QUESTION)
    assert settle(case(hopeless, chunk(hopeless, 0, 30, tokens=500), policy=policy), why).view is None


def test_without_its_summaries_a_history_is_masked_as_far_as_it_was() -> None:
    """Also by a boundary that was set behind a summary: masks of its messages would else be given up."""
    call, result = message("assistant", "look", calls=["a"]), message("tool", words(400), answers="a")
    talk = conversation(
        message("system", words(600)), message("user", "go"), call, result, *turns(12, size=30), QUESTION
    )
    masks = Masks(talk.transcript, MaskPolicy(), cost)
    masking = Masking(masks, (MaskBoundary(10, 6),))
    decision = settle(case(talk, chunk(talk, 0, 8, tokens=500), masking=masking, policy=Policy(fit=False)))
    bare = case(talk, chunk(talk, 0, 8, tokens=500), masking=masking).bare_view
    assert bare.actions == ("masked",)
    assert decision.steps[-1].name == "without_summaries"
    assert case(talk, chunk(talk, 0, 8)).bare_view == whole(talk)


@pytest.mark.parametrize(("pressure", "altered"), [(0.20, 2), (0.50, 1), (0.60, 0)])
def test_from_its_pressure_on_all_that_can_be_masked_is_under_the_trigger_too(pressure: float, altered: int) -> None:
    """The instructions are no part of it: messages alone take 560 of 1,000 tokens."""
    settings = MaskPolicy(pressure=pressure)
    steps = [
        part
        for name in "ab"
        for part in (
            message("assistant", calls=[name]),
            message("tool", "w " * 275, answers=name),
            message("assistant", "ok"),
        )
    ]
    talk = conversation(message("system", "rule " * 100), message("user", "do it"), *steps, QUESTION)
    masking = Masking(Masks(talk.transcript, settings, cost), (MaskBoundary(4, 0), MaskBoundary(7, 0)))
    decision = settle(case(talk, policy=Policy(mask=settings), masking=masking))
    parts = decision.view.parts if decision.view else ()
    assert [part.by for part in parts if isinstance(part, Altered)] == ["masked"] * altered
    assert decision.reason is None
    widest = case(talk, policy=Policy(mask=settings), masking=masking).widest_view
    assert [part.index for part in widest.parts if isinstance(part, Altered)] == [2, 5]
    assert case(talk, policy=Policy(mask=settings), masking=replace(masking, boundaries=())).least_view == whole(talk)


REFUSED = because(Code.PAYLOAD_REFUSED, "roles must alternate")


def test_a_history_that_is_malformed_itself_goes_no_step_down() -> None:
    talk = conversation(*turns(3), message("tool", "nobody asked", answers="c1"), QUESTION)
    assert simpler_decision(case(talk, chunk(talk, 0, 2)), "summarized", REFUSED) is None


def test_a_provider_that_refuses_the_assistant_twice_in_a_row_is_sent_notes_between() -> None:
    talk = conversation(*turns(12, size=40), QUESTION).with_pins((3, 5))
    policy = replace(FIT_ONLY, alternates=True)
    decision = settle(case(talk, chunk(talk, 0, 8), policy=policy))
    assert decision.view is not None
    kinds = [type(part).__name__ for part in decision.view.parts]
    assert kinds == ["Summary", "Pinned", "Note", "Pinned", "Verbatim"]


ACCOUNT_TALK = conversation(*turns(8, size=100), message("user", "q"))


def test_every_number_is_told_as_the_provider_counts() -> None:
    limits = replace(budget(line=Line(10.0, 2.0)), limit=1_000, trigger=Trigger(700), target=500)
    decision = Decision(None, why=because(Code.STORAGE), steps=(Step("unchanged", "sent", 100),))
    told = account_of(ACCOUNT_TALK, limits, "config", decision)
    assert {name: told[name] for name in ("limit", "trigger", "target", "window_source")} == {
        "limit": 2_010,
        "trigger": 1_410,
        "target": 1_010,
        "window_source": "config",
    }
    assert told["estimated"] == told["forwarded"] == 10 + 2 * ACCOUNT_TALK.tokens
    assert told["floor"] == 10 + 2 * ACCOUNT_TALK.floor
    assert (told["context_status"], told["actions"], told["reason"]) == ("full", [], "storage")
    assert told["steps"] == [{"step": "unchanged", "outcome": "sent", "tokens": 210, "summaries": 0, "reason": None}]


def test_an_account_stays_small_whatever_was_tried() -> None:
    long = because(Code.FLOOR_EXCEEDS_LIMIT, "x" * 5_000)
    steps = (Step("summarise", "failed", why=long),) * 100
    told = account_of(ACCOUNT_TALK, budget(), "config", Decision(None, why=long, steps=steps))
    assert len(told["steps"]) == MOST_STEPS
    assert len(told["reason"]) == len(told["steps"][0]["reason"]) == LONGEST_REASON


def test_roles_are_merged_only_in_a_view_that_is_there_and_has_room_for_it() -> None:
    state = case(conversation(message("user", "one"), *turns(20, size=60), QUESTION))
    refused = settle(state)
    assert sure(with_alternating_roles(state, refused)).view is not None
    assert with_alternating_roles(state, replace(refused, view=None)) is None
    assert with_alternating_roles(state, replace(refused, budget=budget(10))) is None


# Reasons

STORAGE = Reason(Code.STORAGE)
FAILED_LATELY = Reason(Code.SUMMARY_FAILED_LATELY)


def test_what_is_wrong_with_the_payload_comes_after_a_colon() -> None:
    wrong = Reason(Code.TOOL_PAIR_SPLIT), Reason(Code.OVER_THE_LIMIT)
    assert joined(wrong) == "tool_pair_split, over_the_limit"
    assert joined((STORAGE, FAILED_LATELY, *wrong)) == (
        "storage, summary_failed_lately: tool_pair_split, over_the_limit"
    )


def test_each_code_has_a_meaning_of_its_own() -> None:
    assert len({code.meaning for code in Code}) == len(Code)
    assert set(Code) > PROBLEMS

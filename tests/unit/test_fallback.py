"""The ladder: what is sent, from the stored summaries down to the client's own bytes; and the account of a decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.chunks import Compaction, Outcome, SummaryChunk
from app.compaction.decision import LONGEST_REASON, MOST_STEPS, Decision, Step, account_of
from app.compaction.fallback import earlier_steps, settle, step_down
from app.compaction.mask import MaskBoundary, Masking, MaskPolicy, Masks
from app.compaction.planning_state import Path, PlanningState, build_view, initial_state
from app.compaction.policy import Policy
from app.compaction.trim import SessionPruning
from app.compaction.verify import coverage_of
from app.compaction.view import Altered, Conversation, Pruned, View, whole
from app.conversation.reasons import Code, Reason, Reasons, because
from app.tokens.calibration import Line
from tests.unit.conversations import WHY, budget, case, chunk, conversation, cost, message, sure, turns, words
from tests.unit.worlds import asked

FIT_ONLY = Policy(prune=False, emergency=False)
QUESTION = message("user", "the last question")
TALK = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
"""804 tokens: over the trigger of 700, under the limit of 1,000."""


def settled(talk: Conversation, *chunks: SummaryChunk, why: Reasons = (), has_failed: bool = False) -> Decision:
    return settle(case(talk, *chunks, policy=FIT_ONLY), why, has_failed=has_failed)


def without_its_way(decision: Decision | None) -> Decision | None:
    """What was decided, and not by which steps."""
    return decision and replace(decision, steps=(), budget=None)


def test_a_floor_over_the_limit_is_named_with_its_numbers() -> None:
    talk = conversation(*turns(2), QUESTION, fixed=1_000)
    decision = sure(asked(talk, policy=Policy(), model="gpt-4").decide_early())
    assert decision.reason == (
        "floor_exceeds_limit: the instructions take about 0 tokens, tools and format 1000, the last user message 3;"
        " gpt-4 leaves room for 1000"
    )


def test_between_trigger_and_limit_every_chunk_in_use_stays_in_use() -> None:
    """Giving one up would break the prompt's prefix for nothing."""
    talk = conversation(*turns(10, size=60), QUESTION)
    decision = settled(talk, chunk(talk, 0, 2), chunk(talk, 0, 6), why=WHY)
    assert decision.view is not None
    assert decision.view.tokens > budget().trigger.tokens
    assert [c.id for c in decision.view.chunks] == ["c0-6"]
    assert decision.why == WHY


def test_over_the_limit_large_texts_are_shortened() -> None:
    talk = conversation(message("user", "w " * 2_000), message("assistant", "ok"), QUESTION)
    decision = settled(talk, why=WHY)
    assert (decision.status, decision.actions, decision.why) == ("trimmed", ("shortened",), WHY)


def test_what_nothing_brings_under_the_limit_goes_as_it_came() -> None:
    held = conversation(*turns(20, size=60), QUESTION)
    decision = settled(held, chunk(held, 0, 2), why=WHY, has_failed=True)
    assert without_its_way(decision) == Decision(None, (), (*WHY, Reason(Code.OVER_THE_LIMIT)), failed=True)
    assert decision.reason == "summariser_upstream_timeout: over_the_limit"
    assert settled(held, chunk(held, 0, 2)).reason == "over_the_limit"


def test_in_place_of_a_refused_history_the_least_view_goes_though_it_is_over_the_limit() -> None:
    talk = conversation(*turns(20, size=60), message("user", words(1_100)))
    assert settle(case(talk)).view is None
    least = settle(case(talk), WHY, is_refused=True)
    assert least.view is not None
    assert (least.status, least.why) == ("trimmed", WHY)
    assert 1_000 < least.view.tokens < 1_300


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
    assert decision.steps[-1].name == "without_summaries"
    nothing = settle(case(talk, large, policy=replace(policy, prune=False)), why)
    assert (nothing.view, nothing.reason) == (None, "summary_too_long: over_the_limit")


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


def test_coverage_tells_each_part_in_order() -> None:
    agent = conversation(
        message("system", "rules"), *turns(2), message("user", "do it"), message("assistant", "a"), QUESTION
    )
    made = chunk(agent, 0, 6, carried=(4,))
    parts = coverage_of(agent, build_view(agent, Path((made,), 6, 22)))
    assert parts == [
        {"kind": "instructions", "messages": 1, "tools_tokens": 0, "tokens": 1},
        {"kind": "summarized", "first_index": 0, "last_index": 5, "summary_id": "c0-6", "tokens": 20},
        {"kind": "carried", "first_index": 4, "last_index": 4, "tokens": 2},
        {"kind": "verbatim", "first_index": 6, "last_index": 6, "tokens": 3},
    ]


def test_coverage_names_copies_and_what_is_left_out() -> None:
    talk = conversation(*turns(4, size=20), QUESTION)
    talk = talk.with_pins((1,))
    made = chunk(talk, 0, 4)
    view = build_view(talk, Path((made,), 4, made.tokens))
    (_, *parts) = coverage_of(talk, View((*view.parts[:-1], Pruned(4, 6, "repaired"), view.parts[-1]), view.tokens))
    assert parts == [
        {"kind": "summarized", "first_index": 0, "last_index": 3, "summary_id": "c0-4", "tokens": 20},
        {"kind": "pinned", "first_index": 1, "last_index": 1, "tokens": 20},
        {"kind": "pruned", "by": "repaired", "first_index": 4, "last_index": 5, "tokens": 0},
        {"kind": "verbatim", "first_index": 4, "last_index": 8, "tokens": 83},
    ]


def test_a_summary_can_be_done_without_where_shortening_is_enough() -> None:
    document = [message("user", "w " * 2_000), message("assistant", "ok"), QUESTION]
    large = conversation(*turns(20, size=60), QUESTION)
    assert case(TALK).can_do_without_summary
    assert case(conversation(*document)).can_do_without_summary
    assert not case(conversation(*document), policy=Policy(fit=False)).can_do_without_summary
    assert not case(large).can_do_without_summary
    assert case(large, chunk(large, 0, 30), policy=Policy(fit=False)).can_do_without_summary


def test_where_the_last_unit_alone_is_too_large_it_is_shortened_in_place_of_a_summary() -> None:
    step = [message("assistant", calls=["a"]), message("tool", "w " * 2_000, answers="a")]
    agent = conversation(message("user", "do it"), *step)
    assert case(agent).fits_shortened
    assert not case(agent, policy=Policy(fit=False)).fits_shortened
    assert not case(TALK).fits_shortened
    assert not case(conversation(*turns(20, size=60), message("user", "do it"), *step)).fits_shortened


def test_without_pruning_every_result_is_truncated_in_an_emergency() -> None:
    steps = [
        part
        for number in range(12)
        for part in (message("assistant", calls=[f"c{number}"]), message("tool", "w " * 300, answers=f"c{number}"))
    ]
    agent = conversation(message("user", "do it"), *steps, QUESTION)
    policy = Policy(strategy="none", mask=None, fit=False, prune=False)
    decision = settle(case(agent, policy=policy, limits=budget(1_800)))
    assert decision.actions == ("truncated",)


def test_what_a_window_left_is_what_is_made_to_fit() -> None:
    """Its last turn is too large alone: it is shortened, and the turns before the window stay out."""
    step = (message("assistant", calls=["1"]), message("tool", "x " * 2_000, answers="1"), message("assistant", "ok"))
    talk = conversation(*turns(6, size=40), message("user", "look"), *step, QUESTION)
    policy = Policy(strategy="window", mask=None, stub=False, window_turns=2)
    decision = settle(case(talk, policy=policy))
    assert decision.actions == ("shortened", "pruned")
    assert decision.view is not None
    assert decision.view.tokens <= 1_000
    assert decision.view.parts[0] == Pruned(0, 10)


@pytest.mark.parametrize(
    ("stage", "action"),
    [
        ({"session_pruning": SessionPruning(mode="aggressive")}, "cleared"),
        ({"fade": True}, "faded"),
    ],
)
def test_every_stage_with_a_threshold_of_its_own_is_gone_through(stage: dict[str, Any], action: str) -> None:
    step = [message("assistant", calls=["a"]), message("tool", "w " * 900, answers="a")]
    talk = conversation(message("user", "do it"), *step, *[message("assistant", "ok")] * 3, QUESTION)
    decision = settle(case(talk, policy=Policy(strategy="none", mask=None, **stage), limits=budget(trigger=1_000)))
    assert decision.actions == (action,)
    assert decision.reason is None


def test_a_trigger_over_the_limit_does_not_let_a_view_over_it_pass() -> None:
    large = conversation(*turns(20, size=60), QUESTION)
    policy = Policy(strategy="none", mask=None, stub=False, emergency=False)
    decision = settle(case(large, policy=policy, limits=budget(trigger=5_000)))
    assert decision.actions == ("pruned",)
    assert settle(case(large, policy=replace(policy, prune=False), limits=budget(trigger=5_000))).view is None


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


REFUSED = because(Code.PAYLOAD_REFUSED, "roles must alternate")
FAR_TOO_LONG = conversation(message("system", "rules"), *turns(30, size=60), QUESTION)


def test_below_a_refused_summary_stands_the_history_made_to_fit_without_any() -> None:
    decision = sure(step_down(case(FAR_TOO_LONG, chunk(FAR_TOO_LONG, 0, 50)), "summarized", REFUSED))
    assert (decision.status, decision.why) == ("trimmed", REFUSED)
    assert decision.view is not None
    assert decision.view.tokens <= budget().limit


def test_below_it_stand_the_clients_own_bytes_where_those_fit() -> None:
    assert step_down(case(TALK, chunk(TALK, 0, 10)), "summarized", REFUSED) == Decision(None, (), REFUSED)


def test_below_what_was_refused_without_a_summary_there_are_the_clients_own_bytes_or_nothing() -> None:
    assert step_down(case(TALK), "trimmed", REFUSED) == Decision(None, (), REFUSED)
    assert step_down(case(FAR_TOO_LONG), "trimmed", REFUSED) is None


def test_a_history_that_is_malformed_itself_goes_no_step_down() -> None:
    talk = conversation(*turns(3), message("tool", "nobody asked", answers="c1"), QUESTION)
    assert step_down(case(talk, chunk(talk, 0, 2)), "summarized", REFUSED) is None


def test_a_provider_that_refuses_the_assistant_twice_in_a_row_is_sent_notes_between() -> None:
    talk = conversation(*turns(12, size=40), QUESTION).with_pins((3, 5))
    policy = replace(FIT_ONLY, alternates=True)
    decision = settle(case(talk, chunk(talk, 0, 8), policy=policy))
    assert decision.view is not None
    kinds = [type(part).__name__ for part in decision.view.parts]
    assert kinds == ["Summary", "Pinned", "Note", "Pinned", "Verbatim"]


ACCOUNT_TALK = conversation(*turns(8, size=100), message("user", "q"))
CHUNK = chunk(ACCOUNT_TALK, 0, 8)


def account_case(limit: int, trigger: int, **policy: Any) -> PlanningState:
    limits = replace(budget(), limit=limit, trigger=Trigger(trigger), target=trigger)
    return initial_state(ACCOUNT_TALK, Policy(**policy), limits, cost, ())


def names(steps: Iterable[Step]) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in steps]


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


def test_what_was_sent_again_is_told_by_the_limits_it_was_made_for() -> None:
    smaller = replace(budget(), limit=300)
    assert account_of(ACCOUNT_TALK, budget(), "config", Decision(None, budget=smaller))["limit"] == 300


def test_an_account_stays_small_whatever_was_tried() -> None:
    long = because(Code.FLOOR_EXCEEDS_LIMIT, "x" * 5_000)
    steps = (Step("summarise", "failed", why=long),) * 100
    told = account_of(ACCOUNT_TALK, budget(), "config", Decision(None, why=long, steps=steps))
    assert len(told["steps"]) == MOST_STEPS
    assert len(told["reason"]) == len(told["steps"][0]["reason"]) == LONGEST_REASON


def test_the_last_step_is_what_is_sent() -> None:
    fits = account_case(10_000, ACCOUNT_TALK.tokens - 1).with_chunks([CHUNK])
    assert names(settle(fits).steps) == [("least", "sent")]
    [step] = settle(fits).steps
    assert (step.summaries, step.tokens) == (1, fits.least_view.tokens if fits.least_view else None)
    assert names(settle(account_case(10_000, 10), because(Code.STORAGE)).steps) == [("unchanged", "sent")]
    small = account_case(ACCOUNT_TALK.tokens // 2, 10)
    assert names(settle(small).steps)[:3] == [("widest", "refused"), ("fit", "refused"), ("prune", "sent")]
    assert settle(small).steps[0].why == (Reason(Code.OVER_THE_LIMIT),)
    assert names(settle(account_case(ACCOUNT_TALK.tokens - 1, 10, fit=False, prune=False, emergency=False)).steps) == [
        ("widest", "refused"),
        ("unchanged", "sent"),
    ]


def test_what_was_looked_at_and_made_is_told_in_order() -> None:
    start = account_case(10_000, ACCOUNT_TALK.tokens - 1, mask=MaskPolicy())
    made = Compaction((CHUNK,))
    failed = Compaction((), Outcome.FAILED, because(Code.SUMMARY_EMPTY))
    end = start.with_chunks([CHUNK]).with_boundaries([MaskBoundary(4, 0)])
    steps = [*earlier_steps(start, end, [failed, made], mask_is_put_off=False)]
    assert names(steps) == [("stored", "too_large"), ("mask", "set"), ("summarise", "failed"), ("summarise", "made")]
    assert steps[0].tokens == ACCOUNT_TALK.tokens
    assert (steps[2].why, steps[2].tokens) == (because(Code.SUMMARY_EMPTY), None)
    assert (steps[3].summaries, steps[3].tokens) == (1, CHUNK.tokens)
    assert names(earlier_steps(end, end, [], mask_is_put_off=False)) == [("stored", "fits")]


def test_without_a_store_there_is_nothing_to_look_at() -> None:
    away = Compaction((), Outcome.STORE_AWAY)
    steps = earlier_steps(None, account_case(10_000, 10), [away], mask_is_put_off=True)
    assert names(steps) == [("mask", "put_off"), ("summarise", "store_away")]

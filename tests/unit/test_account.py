"""The account of a decision: every number and every attempt is in it, in order, and it stays small."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.compactor import Preparation
from app.compaction.fallback import LONGEST_REASON, MOST_STEPS, Decision, Step, account_of, settle
from app.compaction.mask import Boundary, MaskPolicy
from app.compaction.planning_state import Case, case_of
from app.compaction.policy import Policy
from app.compaction.results import Compaction, Outcome
from app.compaction.view import Pins
from app.conversation.reasons import Code, Reason, because
from app.tokens.calibration import Line
from tests.unit.conversations import budget, chunk, conversation, cost, message, turns
from tests.unit.worlds import asked

TALK = conversation(*turns(8, size=100), message("user", "q"))
CHUNK = chunk(TALK, 0, 8)


def case(limit: int, trigger: int, **policy: Any) -> Case:
    limits = replace(budget(), limit=limit, trigger=Trigger(trigger), target=trigger)
    return case_of(TALK, Policy(**policy), limits, cost, Pins())


def names(steps: tuple[Step, ...]) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in steps]


def test_every_number_is_told_as_the_provider_counts() -> None:
    limits = replace(budget(line=Line(10.0, 2.0)), limit=1_000, trigger=Trigger(700), target=500)
    decision = Decision(None, why=because(Code.STORAGE), steps=(Step("unchanged", "sent", 100),))
    told = account_of(TALK, limits, "config", decision)
    assert {name: told[name] for name in ("limit", "trigger", "target", "window_source")} == {
        "limit": 2_010,
        "trigger": 1_410,
        "target": 1_010,
        "window_source": "config",
    }
    assert told["estimated"] == told["forwarded"] == 10 + 2 * TALK.tokens
    assert told["floor"] == 10 + 2 * TALK.floor
    assert (told["context_status"], told["actions"], told["reason"]) == ("full", [], "storage")
    assert told["steps"] == [{"step": "unchanged", "outcome": "sent", "tokens": 210, "summaries": 0, "reason": None}]


def test_what_was_sent_again_is_told_by_the_limits_it_was_made_for() -> None:
    smaller = replace(budget(), limit=300)
    assert account_of(TALK, budget(), "config", Decision(None, budget=smaller))["limit"] == 300


def test_an_account_stays_small_whatever_was_tried() -> None:
    long = because(Code.FLOOR_EXCEEDS_LIMIT, "x" * 5_000)
    steps = (Step("summarise", "failed", why=long),) * 100
    told = account_of(TALK, budget(), "config", Decision(None, why=long, steps=steps))
    assert len(told["steps"]) == MOST_STEPS
    assert len(told["reason"]) == len(told["steps"][0]["reason"]) == LONGEST_REASON


def test_the_last_step_is_what_is_sent() -> None:
    fits = case(10_000, TALK.tokens - 1).with_chunks([CHUNK])
    assert names(settle(fits).steps) == [("least", "sent")]
    [step] = settle(fits).steps
    assert (step.summaries, step.tokens) == (1, fits.least_view.tokens if fits.least_view else None)
    assert names(settle(case(10_000, 10), because(Code.STORAGE)).steps) == [("unchanged", "sent")]
    small = case(TALK.tokens // 2, 10)
    assert names(settle(small).steps)[:3] == [("widest", "refused"), ("fit", "refused"), ("prune", "sent")]
    assert settle(small).steps[0].why == (Reason(Code.OVER_THE_LIMIT),)
    assert names(settle(case(TALK.tokens - 1, 10, fit=False, prune=False, emergency=False)).steps) == [
        ("widest", "refused"),
        ("unchanged", "sent"),
    ]


def steps_of(end: Case, **known: Any) -> tuple[Step, ...]:
    nothing: Any = None
    return tuple(Preparation(asked(TALK), nothing, _case=end, **known)._steps())


def test_what_was_looked_at_and_made_is_told_in_order() -> None:
    start = case(10_000, TALK.tokens - 1, mask=MaskPolicy())
    made = Compaction((CHUNK,))
    failed = Compaction((), Outcome.FAILED, because(Code.SUMMARY_FAILED))
    end = start.with_chunks([CHUNK]).with_boundaries([Boundary(4, 0)])
    steps = steps_of(end, _stored=start, _tried=[failed, made])
    assert names(steps) == [("stored", "too_large"), ("mask", "set"), ("summarise", "failed"), ("summarise", "made")]
    assert steps[0].tokens == TALK.tokens
    assert (steps[2].why, steps[2].tokens) == (because(Code.SUMMARY_FAILED), None)
    assert (steps[3].summaries, steps[3].tokens) == (1, CHUNK.tokens)
    assert names(steps_of(end, _stored=end)) == [("stored", "fits")]


def test_without_a_store_there_is_nothing_to_look_at() -> None:
    away = Compaction((), Outcome.STORE_AWAY)
    steps = steps_of(case(10_000, 10), _tried=[away], _mask_is_put_off=True)
    assert names(steps) == [("mask", "put_off"), ("summarise", "store_away")]

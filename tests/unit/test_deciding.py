"""What `decide` asks for, in which order, in every mode; and what becomes of each reply."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.core.deciding.attempt import Ahead, Answer, Attempt, Compact, CompactionStart, Imagine, Recover, StepDown, Untie
from app.core.deciding.decide import RECOVERIES, ROUNDS, untouched
from app.core.deciding.effects import (
    AskPrices,
    Effect,
    Freed,
    KeepMask,
    KeepPrint,
    Lately,
    LookBack,
    Make,
    MakeUnstored,
    Postpone,
    Prices,
    ReadHeads,
    Read,
    ReadPrints,
    ReadRewritten,
    Recall,
    Remember,
    ShapeRefusals,
    ShapeRefused,
    StoreAway,
    StoreRecovers,
    Wait,
)
from app.core.deciding.request import MANY_MESSAGES, Request
from app.core.limits.trigger import Trigger
from app.core.reasons import Code, Reason, because
from app.core.recall.policy import RecallPolicy
from app.core.stages.ladder import UNTOUCHED, Decision
from app.core.stages.policy import Policy
from app.core.summary.flow import Compaction, Outcome
from app.core.tokens.economy import CostGate, Rates
from app.core.tokens.usage import Price
from app.core.view.chunks import FirstChunk
from app.core.view.mask import MaskPolicy
from app.core.view.ties import MARK
from app.core.view.view import Pruned, View
from tests.unit.conversations import WHY, budget, chunk, conversation, message, turns, words
from tests.unit.worlds import AWAY, World, asked

QUESTION = message("user", "the last question")
SHORT = conversation(*turns(2), QUESTION)
LONG = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
"""Over the trigger of 700, under the limit of 1,000."""
FAR = conversation(message("system", "rules"), *turns(20, size=40), QUESTION)
"""Over the limit."""
MADE = ["ShapeRefusals", "ShapeRefusals", "Read", "Brief", "LookBack", "Make", "Read", "Freed"]
"""The way of a request that makes the summary that is due."""
STORED = chunk(LONG, 0, 14)
FAILED = Compaction((), Outcome.FAILED, WHY)
DEAR = Prices(Rates(10.0, 0.1), Price(prompt=10.0, completion=1_000.0), reads_warm=True)


def tools(answered: bool = True) -> Any:
    """A history whose tool results are large: masking them is enough."""
    calls = [
        each
        for n in range(6)
        for each in (
            message("user", f"task {n}"),
            message("assistant", calls=[f"c{n}"], tokens=5),
            message("tool", words(140, "out"), answers=f"c{n}"),
            *([message("assistant", f"done {n}")] if answered else []),
        )
    ]
    return conversation(*calls, QUESTION)


MASKS = Policy(mask=MaskPolicy(), cost_gate=None, recall=None)


# Without anything to do


@pytest.mark.parametrize("mode", [Answer(), Imagine(summaries=True), Imagine(summaries=False)])
def test_under_the_trigger_nothing_is_asked_for(mode: Any) -> None:
    world = World()
    assert world.decide(asked(SHORT), mode) is UNTOUCHED
    assert world.names == []


def test_a_request_that_is_not_to_be_compacted_goes_as_it_came_and_says_why() -> None:
    decision = untouched(asked(LONG, compaction=False))
    assert decision is not None
    assert decision.why == because(Code.COMPACTION_OFF)
    assert untouched(asked(LONG)) is None


def test_a_history_is_long_by_its_messages_or_its_bytes() -> None:
    many = conversation(*[message("user", "x")] * (MANY_MESSAGES + 1))
    assert asked(many).is_long
    assert not asked(SHORT).is_long
    assert asked(SHORT).size == sum(len(each.raw) for each in SHORT.history)


# Answering


def test_a_summary_that_is_due_is_made_and_the_view_over_it_is_sent() -> None:
    world = World()
    decision = world.decide(asked(LONG))
    assert world.names == MADE
    assert (decision.status, len(decision.made), decision.why) == ("summarized", 1, ())
    assert decision.view is not None
    assert [step.name for step in decision.steps][:2] == ["stored", "summarise"]


def test_a_stored_summary_that_does_is_used_and_nothing_is_made() -> None:
    world = World()
    world.stored = replace(world.stored, chunks=(STORED,))
    decision = world.decide(asked(LONG))
    assert world.names == MADE[:3]
    assert (decision.status, decision.made) == ("summarized", ())


def test_a_mask_that_is_due_is_kept_before_anything_is_sent() -> None:
    world = World()
    decision = world.decide(asked(tools(), policy=MASKS))
    assert world.names == ["ShapeRefusals", "ShapeRefusals", "Read", "KeepMask"]
    assert (decision.status, decision.actions) == ("trimmed", ("masked",))


def test_a_mask_that_is_known_is_not_kept_again() -> None:
    world = World()
    first = world.decide(asked(tools(), policy=MASKS))
    world.effects.clear()
    assert world.decide(asked(tools(), policy=MASKS)).view == first.view
    assert "KeepMask" not in world.names


def test_a_failed_summary_is_no_error_and_the_reason_is_told() -> None:
    world = World({Make: FAILED})
    decision = world.decide(asked(LONG))
    assert world.names == MADE[:6]
    assert (decision.view, decision.why) == (None, WHY)


def test_what_was_announced_in_vain_is_a_failure() -> None:
    world = World({Make: lambda effect: (world.make(effect), FAILED)[1]})
    assert world.decide(asked(LONG)).failed


def test_where_nothing_can_be_summarised_the_reason_says_so() -> None:
    huge = conversation(message("user", words(800)), QUESTION)
    decision = World().decide(asked(huge))
    assert decision.why == because(Code.NOTHING_TO_SUMMARISE)


@pytest.mark.parametrize(
    ("lately", "why"),
    [
        (Lately(stopping=True), because(Code.STOPPING)),
        (Lately(blocked=Code.COMPACTION_INEFFECTIVE), because(Code.COMPACTION_INEFFECTIVE)),
        (Lately(paused=WHY), (*WHY, Reason(Code.SUMMARY_FAILED_LATELY))),
    ],
)
def test_what_speaks_against_a_compaction_is_told_in_its_place(lately: Lately, why: Any) -> None:
    world = World({LookBack: lately})
    assert world.decide(asked(LONG)).why == why
    assert "Make" not in world.names


def test_a_pause_does_not_hold_where_nothing_else_would_do() -> None:
    policy = Policy(mask=None, cost_gate=None, recall=None, prune=False, fit=False, emergency=False)
    world = World({LookBack: Lately(paused=WHY)})
    assert world.decide(asked(FAR, policy=policy)).status == "summarized"


def test_a_history_that_is_rewritten_every_turn_is_not_summarised_again() -> None:
    """Two forms of it were summarised within the last turns, and neither is found in this one any more."""
    positions = (14, 16)
    first = [
        FirstChunk(
            conversation_id="conv",
            through_digest=b"other",
            last_index=stop - 1,
            last_message_digest=LONG.transcript.messages[stop - 1].digest,
            history_length=stop + 3,
            created_at=n,
        )
        for n, stop in enumerate(positions)
    ]
    world = World({ReadRewritten: first})
    assert world.decide(asked(LONG)).why == because(Code.HISTORY_CHANGES_EVERY_TURN)
    assert world.names[-2:] == ["ReadRewritten", "ReadHeads"]
    seen = World({ReadRewritten: first, ReadHeads: lambda effect: effect.digests})
    assert seen.decide(asked(LONG)).status == "summarized"


# Rounds, and others


def test_whoever_makes_it_already_is_waited_for_and_then_the_store_is_read_again() -> None:
    def other(_: Effect) -> None:
        world.stored = replace(world.stored, chunks=(STORED,))

    world = World({Make: other})
    decision = world.decide(asked(LONG))
    assert world.names == [*MADE[:6], "Wait", "Read"]
    assert (decision.status, decision.made) == ("summarized", ())


def test_who_waited_in_vain_tries_it_and_says_that_it_is_again() -> None:
    world = World({Make: [None, World().make]})
    world.decide(asked(LONG))
    makes = [effect.is_again for effect in world.effects if isinstance(effect, Make)]
    assert makes == [False, True]


def test_where_waiting_takes_too_long_the_request_goes_on_without() -> None:
    decision = World({Make: None, Wait: False}).decide(asked(LONG))
    assert decision.why == because(Code.SUMMARY_TAKES_TOO_LONG)


def test_a_lost_lease_is_planned_anew_three_times_at_most() -> None:
    world = World({Make: Compaction((), Outcome.LEASE_LOST)})
    assert world.decide(asked(LONG)).why == because(Code.LEASE_LOST)
    assert world.names.count("Make") == ROUNDS


def test_a_deleted_conversation_is_not_summarised_again() -> None:
    world = World({Make: Compaction((), Outcome.DELETED)})
    assert world.decide(asked(LONG)).why == because(Code.CONVERSATION_DELETED)
    assert world.names.count("Make") == 1


def test_where_one_compaction_does_not_suffice_another_one_follows() -> None:
    made = [Compaction((chunk(FAR, start, start + 6),)) for start in (0, 6, 12, 18)]
    world = World({Make: [lambda effect, made=each: _stored(world, made) for each in made]})
    decision = world.decide(asked(FAR))
    assert world.names.count("Make") == ROUNDS
    assert world.names.count("Freed") == 1
    assert decision.status == "summarized"


def _stored(world: World, made: Compaction) -> Compaction:
    world.stored = replace(world.stored, chunks=(*world.stored.chunks, *made.made))
    return made


def test_where_three_do_not_suffice_the_reason_says_so() -> None:
    small = [Compaction((chunk(FAR, n, n + 1, tokens=40),)) for n in range(4)]
    world = World({Make: [lambda effect, made=each: _stored(world, made) for each in small]})
    assert Reason(Code.SUMMARIES_NOT_ENOUGH) in world.decide(asked(FAR)).why


# The background


GOES_ON = Answer(may_go_on=True)
COMES_BACK = Lately(comes_back=True, has_room=True)


def test_a_request_that_fits_well_leaves_its_summary_to_the_background() -> None:
    world = World({LookBack: COMES_BACK})
    decision = world.decide(asked(LONG), GOES_ON)
    assert world.names == [*MADE[:5], "Postpone"]
    assert decision.why == because(Code.SUMMARY_IN_BACKGROUND)


def test_the_mask_by_which_it_goes_on_is_kept() -> None:
    talk = conversation(*tools().history[:-1], *turns(4, size=60), QUESTION)
    world = World({LookBack: COMES_BACK})
    decision = world.decide(asked(talk, policy=MASKS, budget=budget(1_400, trigger=700, target=300)), GOES_ON)
    assert decision.why[-1:] == because(Code.SUMMARY_IN_BACKGROUND)
    assert world.names[-2:] == ["Postpone", "KeepMask"]


@pytest.mark.parametrize(
    ("mode", "lately"),
    [
        (Answer(), COMES_BACK),
        (GOES_ON, replace(COMES_BACK, comes_back=False)),
        (GOES_ON, replace(COMES_BACK, failed_last=True)),
        (GOES_ON, replace(COMES_BACK, tokens_spent=True)),
    ],
)
def test_without_that_it_waits(mode: Answer, lately: Lately) -> None:
    world = World({LookBack: lately})
    world.decide(asked(LONG), mode)
    assert world.names[5] == "Make"


def test_after_an_announcement_it_waits() -> None:
    """A client that was told of a summary gets it."""
    world = World({LookBack: COMES_BACK, Make: lambda effect: (world.make(effect), Compaction((), Outcome.LEASE_LOST))[1]})
    world.attempt = None
    request = asked(FAR)
    world.decide(request, GOES_ON)
    assert world.names.count("Postpone") == 0


# The price


GATED = Policy(mask=None, recall=None, cost_gate=CostGate())


@pytest.mark.parametrize(
    ("prices", "puts_off"),
    [(DEAR, True), (replace(DEAR, reads_warm=False), True), (replace(DEAR, rates=None), False), (Prices(DEAR.rates), False)],
)
def test_a_compaction_that_costs_more_than_it_saves_is_put_off_where_all_prices_are_known(
    prices: Prices, puts_off: bool
) -> None:
    world = World({AskPrices: prices})
    decision = world.decide(asked(LONG, policy=GATED, budget=budget(hold=1_000)))
    assert ("Make" in world.names) is not puts_off
    assert (decision.why == because(Code.PUT_OFF_FOR_COST)) is puts_off
    assert [effect.summariser for effect in world.effects if isinstance(effect, AskPrices)] == ["m"]


def test_without_room_or_where_turns_are_counted_nobody_asks_for_the_price() -> None:
    for limits in (budget(hold=100), budget(hold=1_000, trigger=Trigger(700, turns=5))):
        world = World({AskPrices: DEAR})
        world.decide(asked(LONG, policy=GATED, budget=limits))
        assert "AskPrices" not in world.names


def test_a_mask_is_put_off_likewise_and_its_reason_stands_where_no_summary_is_possible() -> None:
    policy = replace(MASKS, cost_gate=CostGate())
    limits = budget(hold=1_000, trigger=700)
    for prices, keeps in ((DEAR, False), (Prices(), True)):
        world = World({AskPrices: prices})
        world.decide(asked(tools(), policy=policy, budget=limits))
        assert ("KeepMask" in world.names) is keeps
    assert [effect.summariser for effect in world.effects if isinstance(effect, AskPrices)] == [None]

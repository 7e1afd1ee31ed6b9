"""What `decide` asks for, in which order, in every mode; and what becomes of each reply."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from app.api import compactions
from app.compaction import compactor
from app.compaction.chunks import ChunkRange, Compaction, Outcome
from app.compaction.compactor import ROUNDS, Compactor, RecentAttempts, RequestCompactor, Stored
from app.compaction.cost_gate import Prices
from app.compaction.decision import UNTOUCHED, Decision
from app.compaction.lease import CompactionJob, LeasedCompaction, _LeasedCalls
from app.compaction.mask import MaskPolicy
from app.compaction.planning_state import Policy
from app.compaction.prompts import SummaryRequest
from app.compaction.request import MANY_BYTES, MANY_MESSAGES
from app.compaction.verify import order_of
from app.compaction.view import Altered, Pruned, Summary, Verbatim, View, changes_with_each_request
from app.conversation.reasons import Code, Reason, because
from app.formats.spec import SummaryAnswer
from app.store import Lease, StoreUnavailable
from app.tokens.costs import COMMON_PRICE, Price, Rates, rates_of
from tests.unit.conversations import TENANT, WHY, budget, chunk, conversation, message, sure, turns, words
from tests.unit.worlds import AWAY, Then, World, asked

AHEAD = methodcaller("make_ahead", 500)

QUESTION = message("user", "the last question")
SHORT = conversation(*turns(2), QUESTION)
LONG = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
"""Over the trigger of 700, under the limit of 1,000."""
FAR = conversation(message("system", "rules"), *turns(20, size=40), QUESTION)
"""Over the limit."""
CHEAP = Price(prompt=2.0, completion=8.0, cached=0.5)
DEAR = Prices(Rates(10.0, 0.1), Price(prompt=10.0, completion=1_000.0), reads_warm=True)


def tools() -> Any:
    """A history whose tool results are large: masking them is enough."""
    calls = [
        each
        for n in range(3)
        for each in (
            message("user", f"task {n}"),
            message("assistant", calls=[f"c{n}"], tokens=5),
            message("tool", words(260, "out"), answers=f"c{n}"),
            message("assistant", f"done {n}"),
        )
    ]
    return conversation(*calls, QUESTION)


MASKS = Policy(mask=MaskPolicy(), cost_gate=False)


# Without anything to do


async def test_a_long_history_is_worked_on_in_a_thread_of_its_tenant() -> None:
    """It is long by its messages, or by its bytes."""
    threads: list[str] = []

    async def thread(tenant: str, step: Any) -> Any:
        threads.append(tenant)
        return step()

    many = conversation(*[message("user", "x")] * (MANY_MESSAGES + 1))
    large = conversation(message("user", "x" * MANY_BYTES))
    for talk, used in ((SHORT, []), (many, [TENANT]), (large, [TENANT])):
        threads.clear()
        assert await asked(talk).beside(thread, lambda: 7) == 7
        assert threads == used
    assert asked(SHORT).conversation_key == (TENANT, "conv")
    assert asked(SHORT).size == sum(len(each.raw) for each in SHORT.history)


# Answering


@pytest.mark.parametrize(
    ("recent_attempts", "why"),
    [
        (RecentAttempts(blocked=Code.STOPPING), because(Code.STOPPING)),
        (RecentAttempts(blocked=Code.COMPACTION_INEFFECTIVE), because(Code.COMPACTION_INEFFECTIVE)),
        (RecentAttempts(paused=WHY), (*WHY, Reason(Code.SUMMARY_FAILED_LATELY))),
    ],
)
def test_what_speaks_against_a_compaction_is_told_in_its_place(recent_attempts: RecentAttempts, why: Any) -> None:
    world = World({"recent_attempts": recent_attempts})
    assert world.decide(asked(LONG)).why == why
    assert "make" not in world.names


def test_a_pause_does_not_hold_where_nothing_else_would_do() -> None:
    policy = Policy(mask=None, cost_gate=False, prune=False, fit=False, emergency=False)
    world = World({"recent_attempts": RecentAttempts(paused=WHY)})
    assert world.decide(asked(FAR, policy=policy)).status == "summarized"


# Rounds, and others


def test_where_waiting_takes_too_long_the_request_goes_on_without() -> None:
    decision = World({"make": Compaction((), Outcome.TAKES_TOO_LONG)}).decide(asked(LONG))
    assert decision.why == because(Code.SUMMARY_TAKES_TOO_LONG)


def test_a_lost_lease_is_planned_anew_three_times_at_most() -> None:
    world = World({"make": Compaction((), Outcome.LEASE_LOST)})
    assert world.decide(asked(LONG)).why == because(Code.LEASE_LOST)
    assert (world.names.count("make"), world.names.count("summary_options")) == (ROUNDS, 1)


def _stored(made: Compaction, _: Any) -> Compaction:
    return made


def test_where_three_do_not_suffice_the_reason_says_so() -> None:
    small = [Compaction((chunk(FAR, n, n + 1, tokens=40),)) for n in range(4)]
    world = World({"make": Then(*(partial(_stored, made) for made in small))})
    assert Reason(Code.SUMMARIES_NOT_ENOUGH) in world.decide(asked(FAR)).why


# The background


COMES_BACK = RecentAttempts(comes_back=True)


@pytest.mark.parametrize(
    ("may_postpone", "recent_attempts", "waits"),
    [
        (True, COMES_BACK, False),
        (False, COMES_BACK, True),
        (True, replace(COMES_BACK, comes_back=False), True),
        (True, replace(COMES_BACK, failed_last=True), True),
    ],
)
def test_it_waits_unless_the_background_can_make_it(
    may_postpone: bool, recent_attempts: RecentAttempts, waits: bool
) -> None:
    world = World({"recent_attempts": recent_attempts})
    world.decide(asked(LONG), may_postpone=may_postpone)
    assert ("make" in world.names) is waits


def test_after_an_announcement_it_waits() -> None:
    """A client that was told of a summary gets it."""

    def lost(call: Any) -> Compaction:
        world.succeed(call)
        world.stored = Stored()
        return Compaction((), Outcome.LEASE_LOST)

    world: World = World({"recent_attempts": Then(RecentAttempts(), COMES_BACK), "make": Then(lost, World().succeed)})
    world.decide(asked(LONG), may_postpone=True)
    assert world.names.count("make") == 2


# The price


GATED = Policy(mask=None, cost_gate=True)


@pytest.mark.parametrize(
    ("prices", "puts_off"),
    [
        (DEAR, True),
        (replace(DEAR, reads_warm=False), True),
        (replace(DEAR, rates=None), False),
        (Prices(DEAR.rates), False),
    ],
)
def test_a_compaction_that_costs_more_than_it_saves_is_put_off_where_all_prices_are_known(
    prices: Prices, puts_off: bool
) -> None:
    world = World({"prices": prices})
    decision = world.decide(asked(LONG, policy=GATED, budget=budget(cost_gate_limit=1_000)))
    assert ("make" in world.names) is not puts_off
    assert (decision.why == because(Code.PUT_OFF_FOR_COST)) is puts_off
    assert [call.summariser for call in world.calls if call.name == "prices"] == ["m"]


@pytest.mark.parametrize(
    ("known", "summariser", "prices"),
    [
        ({"m": CHEAP, "s": CHEAP}, "s", Prices(rates_of(CHEAP, warm=True), CHEAP)),
        ({"m": CHEAP}, None, Prices(rates_of(CHEAP, warm=True))),
        ({"m": CHEAP}, "s", Prices(rates_of(COMMON_PRICE, warm=True), COMMON_PRICE)),
        ({"s": CHEAP}, "s", Prices(rates_of(COMMON_PRICE, warm=True), COMMON_PRICE)),
    ],
)
def test_prices_are_the_known_ones_or_for_both_models_the_usual_ones(known: Any, summariser: Any, prices: Any) -> None:
    parts: Any = SimpleNamespace(
        ledger=SimpleNamespace(price_of=known.get, is_warm=lambda *_: True),
        routing=SimpleNamespace(is_by_own_model=lambda _: False),
    )
    assert Compactor.prices(parts, asked(SHORT), summariser) == prices


def test_what_one_request_has_begun_is_not_put_off_half_way() -> None:
    parts = [Compaction((chunk(FAR, start, start + 6),)) for start in (0, 6, 12, 18)]
    world = World({"prices": Then(Prices(), DEAR), "make": Then(*(partial(_stored, made) for made in parts))})
    world.decide(asked(FAR, policy=GATED, budget=budget(cost_gate_limit=10_000)))
    assert world.names.count("make") == ROUNDS


def test_a_mask_is_put_off_likewise_and_no_summary_is_made_in_its_place() -> None:
    policy = replace(MASKS, cost_gate=True)
    limits = budget(cost_gate_limit=1_000, trigger=700)
    for prices, keeps in ((DEAR, False), (Prices(), True)):
        world = World({"prices": prices})
        world.decide(asked(tools(), policy=policy, budget=limits))
        assert ("keep_mask" in world.names) is keeps
        assert any(call.name == "prices" and call.summariser is None for call in world.calls)
        assert "make" not in world.names
    world = World({"prices": DEAR})
    no_gain = budget(cost_gate_limit=1_000, trigger=350, target=350, summary=900)
    decision = world.decide(asked(tools(), policy=policy, budget=no_gain))
    assert decision.why == because(Code.PUT_OFF_FOR_COST)
    assert "recent_attempts" not in world.names


# Refused shapes


def test_without_the_store_it_steps_down_too_and_without_a_step_the_refusal_stays() -> None:
    refused = Decision(View((Pruned(0, 2),), 10), ("pruned",))
    assert World({"read_prefix": AWAY}).decide(asked(LONG), methodcaller("step_down", refused, "no")).view is None
    assert World().decide(asked(FAR), methodcaller("step_down", refused, "no")) is refused
    world = World()
    world.stored = Stored(pins=(2,))
    summarised = Decision(View((Summary(chunk(FAR, 0, 4)),), 10), ("summarized",))
    assert 2 in order_of(sure(world.decide(asked(FAR), methodcaller("step_down", summarised, "no")).view))


# Refused sizes


def test_without_the_store_it_recovers_by_what_needs_none_and_says_so() -> None:
    decision = World({"read_prefix": AWAY}).decide(asked(LONG), RequestCompactor.prepare_smaller)
    assert decision.why == because(Code.STORAGE)
    assert [step.name for step in decision.steps] == ["summarise", "unchanged"]
    none = replace(asked(LONG).policy, strategy="none")
    assert World().decide(asked(FAR, policy=none), RequestCompactor.prepare_smaller).status == "trimmed"


# The store away


def test_a_store_that_goes_away_while_others_are_waited_for_is_done_without() -> None:
    world = World({"make": AWAY})
    decision = world.decide(asked(LONG))
    assert world.names[-2:] == ["make", "remembered"]
    assert decision.why == because(Code.STORAGE)


def test_a_dry_run_tells_the_summary_that_the_background_would_make() -> None:
    made = (chunk(LONG, 0, 14),)
    world = World({"recent_attempts": COMES_BACK, "make": Compaction(made)}, is_dry_run=True)
    decision = world.decide(asked(LONG), may_postpone=True)
    assert (decision.made, decision.why) == (made, because(Code.SUMMARY_IN_BACKGROUND))


# Dry runs


def test_a_dry_run_needs_the_store() -> None:
    with pytest.raises(StoreUnavailable):
        World({"read_prefix": AWAY}, is_dry_run=True).decide(asked(LONG))


def test_another_s_compaction_is_not_waited_for_by_what_nobody_needs_yet() -> None:
    world = World()
    world.decide(asked(LONG), AHEAD)
    assert [call.job.waits for call in world.calls if call.name == "make"] == [False]
    assert world.names[-1] == "freed"


# Ahead


@pytest.mark.parametrize(
    ("replies", "changes", "last"),
    [
        ({"read_prefix": AWAY}, {}, "read_prefix"),
        ({"recent_attempts": RecentAttempts(failed_last=True)}, {}, "recent_attempts"),
        ({"recent_attempts": RecentAttempts(blocked=Code.COMPACTION_TOO_FREQUENT)}, {}, "recent_attempts"),
        ({"prices": DEAR}, {"policy": GATED, "budget": budget(cost_gate_limit=1_000)}, "prices"),
        ({}, {"talk": SHORT}, "read_prefix"),
        ({}, {"talk": tools(), "policy": MASKS}, "read_prefix"),
        ({}, {"talk": conversation(message("user", words(750)))}, "summary_options"),
    ],
)
def test_ahead_of_its_time_nothing_is_made_that_something_speaks_against(replies: Any, changes: Any, last: str) -> None:
    world = World(replies)
    world.decide(asked(**({"talk": LONG} | changes)), AHEAD)
    assert world.names[-1] == last


# Recall and ties


def test_nothing_is_recalled_where_that_is_off_or_the_history_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "MOST_SEARCHED", 10)
    off = ({"recalls": False}, {"recalls": True, "budget": budget(recall=0.0)})
    for changes, why in (*((each, ()) for each in off), ({"recalls": True}, because(Code.RECALL_TOO_LONG))):
        world = World()
        assert world.decide(asked(LONG, **changes)).why == why
        assert "recall" not in world.names


def test_what_compactions_freed_is_measured_from_before_the_first_of_them() -> None:
    parts = [Compaction((chunk(FAR, start, start + 6),)) for start in (0, 6, 12)]
    world = World({"make": Then(*(partial(_stored, made) for made in parts))})
    world.decide(asked(FAR))
    [freed] = [call for call in world.calls if call.name == "freed"]
    assert freed.before == FAR.tokens
    assert freed.after < FAR.tokens


# Savings


def test_a_compaction_that_failed_or_could_not_be_stored_says_nothing_of_its_history() -> None:
    """Its history would be left alone for what says nothing of it."""
    useless = chunk(LONG, 0, 14)
    for made in (Compaction((useless,), Outcome.FAILED, WHY), Compaction((useless,), Outcome.STORE_AWAY)):
        world = World({"make": made})
        world.decide(asked(LONG))
        assert "freed" not in world.names


# `POST /context/compact`, where its conversation is deleted meanwhile


async def test_nothing_is_stored_of_what_was_erased_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactions, "count_messages", AsyncMock())
    # A store that only answers this question: anything else would be an error.
    store = SimpleNamespace(is_erased=lambda *key: key == ("tenant", "conversation", 3))
    compaction = SimpleNamespace(for_request=lambda _: SimpleNamespace(prepare=AsyncMock(return_value=UNTOUCHED)))
    services: Any = SimpleNamespace(store=store, keeps_messages=True, compactor=compaction)
    key = {"tenant": "tenant", "conversation_key": ("tenant", "conversation"), "epoch": 3}
    chat: Any = SimpleNamespace(**key, conversation=None, prompt=None)
    record: Any = SimpleNamespace(decided=lambda *_, **__: None)
    assert await compactions._prepare(services, chat, record) is UNTOUCHED


# Leases

TRANSCRIPT: Any = SimpleNamespace(chain=SimpleNamespace(positions={}))
REQUEST: Any = SimpleNamespace(tenant="t", conversation_key=("t", "c"), conversation=TRANSCRIPT)
BUILDER: Any = SimpleNamespace(plan=SimpleNamespace(range=None))


@pytest.mark.parametrize(
    ("seconds", "waits", "is_revoked", "is_stored", "outcome"),
    [
        (9.0, True, False, False, Outcome.AWAITED),
        (9.0, True, True, False, Outcome.DELETED),
        (9.0, True, True, True, Outcome.AWAITED),
        (0.0, True, False, False, Outcome.TAKES_TOO_LONG),
        (9.0, False, False, False, Outcome.TAKES_TOO_LONG),
    ],
)
async def test_it_is_waited_for_as_long_as_there_is_time_and_the_wait_is_measured(
    seconds: float, waits: bool, is_revoked: bool, is_stored: bool, outcome: Outcome
) -> None:
    async def is_busy(*_: object) -> str:
        return "busy"

    async def wait(*arguments: Any) -> str | None:
        return ("revoked" if is_revoked else "ended") if arguments[-1] else None

    async def is_known(*_: object) -> bool:
        return is_stored

    measured: list[float] = []
    announced: list[bool] = []
    nothing: Any = None
    metrics: Any = SimpleNamespace(lease_waits=SimpleNamespace(observe=measured.append))
    store: Any = SimpleNamespace(take_lease=is_busy, await_lease=wait, is_stored=is_known)
    leased = LeasedCompaction(store, nothing, nothing, nothing, nothing, nothing, metrics, nothing, nothing, 1, "me")
    job = CompactionJob(BUILDER, (), lambda: announced.append(True), monotonic() + seconds, waits=waits)
    compaction = await leased.make(REQUEST, job)
    assert (compaction.outcome, bool(announced), len(measured)) == (outcome, waits, int(waits))
    assert all(0 <= waited < 60 for waited in measured)


async def test_a_call_for_what_was_erased_meanwhile_is_not_in_the_ledger() -> None:
    """Its record would have the conversation's name."""
    recorded: list[Any] = []
    leased: Any = SimpleNamespace(
        ledger=SimpleNamespace(record=lambda call, **_: recorded.append(call)),
        store=SimpleNamespace(is_erased=lambda *_: True),
    )
    request: Any = SimpleNamespace(
        conversation_key=("t", "c"), epoch=1, budget=SimpleNamespace(line=SimpleNamespace(ratio=1.0))
    )
    calls, answer = (
        _LeasedCalls(leased, request, Lease("t", "c", ChunkRange("", b"", b""), "me", 1)),
        SummaryAnswer("notes"),
    )
    calls.unrecorded[id(answer)] = answer, SummaryRequest("", "", 1), 0.1
    calls.reject(answer)
    assert (recorded, calls.unrecorded) == ([], {})


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        ((Verbatim(0, 8),), False),
        # A stage cuts or leaves out something for one request alone.
        ((Verbatim(0, 4), Altered(4, ("cut",), 1, "shortened"), Verbatim(5, 8)), True),
        ((Pruned(0, 1), Verbatim(1, 8)), True),
        # A mask stays where it is, and whole turns are left out until another one begins.
        ((Verbatim(0, 4), Altered(4, ("cut",), 1, "masked"), Verbatim(5, 8)), False),
        ((Pruned(0, 2), Verbatim(2, 8)), False),
    ],
)
def test_a_view_changes_with_each_request_where_a_stage_cut_it_for_one(parts: Any, changes: bool) -> None:
    said = map(message, ["user", "assistant", "user", *["assistant", "tool"] * 3], "abcdefgh")
    assert changes_with_each_request(conversation(*said), View(parts, 0)) is changes

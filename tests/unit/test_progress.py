"""Progress: what a request has learnt on its way, and what is still told of it in the end."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.breakers import VAIN_PASSES
from app.compaction.compactor import Compactor
from app.compaction.job import CompactionStart
from app.compaction.progress import RECOVERIES, Progress
from app.core.reasons import Code, because
from app.core.summary.flow import Compaction, Outcome
from app.runtime.caches import Caches
from app.runtime.lineages import Lineage
from tests.unit.conversations import WHY, budget, case, chunk, conversation, turns

TALK = conversation(*turns(10, size=40))
LINEAGE = Lineage("additive", (b"1",))
OLDER, NEWER = chunk(TALK, 0, 6), chunk(TALK, 6, 12)


def progress(seconds: float = 60.0, **changes: Any) -> Progress:
    told: list[CompactionStart] = []
    begun = {"job": None, "work": None, "on_start": told.append, "case": case(TALK)}
    return Progress(deadline=monotonic() + seconds, **{**begun, **changes})


def test_what_compactions_freed_is_measured_from_before_the_first_of_them() -> None:
    request = progress()
    before = request.case
    request.ended(Compaction((OLDER,)))
    request.ended(Compaction((NEWER,), Outcome.FAILED, WHY))
    assert request.before is before
    assert request.made == (OLDER, NEWER) == request.case.chunks


def test_what_was_remembered_is_forgotten_when_the_store_is_asked_anew_and_what_was_made_is_not() -> None:
    request = progress()
    request.ended(Compaction((OLDER,)))
    request.latest = Compaction((), Outcome.STORE_AWAY)
    assert (request.without_store, request.why) == (True, because(Code.STORAGE))
    request.begin_anew()
    assert (request.case.chunks, request.made) == ((), (OLDER,))
    assert (request.without_store, request.why) == (False, ())


def test_the_client_is_told_of_the_first_compaction_alone() -> None:
    told: list[CompactionStart] = []
    request = progress(on_start=told.append)
    for number in (1, 2):
        request.tell(CompactionStart(f"cmp_{number}", number))
    assert told == [CompactionStart("cmp_1", 1)]


def test_a_database_is_asked_again_so_often_and_while_there_is_time() -> None:
    request = progress()
    assert [request.asks_again() for _ in range(RECOVERIES + 1)] == [True] * RECOVERIES + [False]
    assert not progress(seconds=-1.0).asks_again()


def test_a_database_that_would_say_the_same_is_not_asked_again() -> None:
    request = progress()
    request.give_up_asking()
    assert not request.asks_again()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.LEASE_LOST, Code.LEASE_LOST),
        (Outcome.DELETED, Code.CONVERSATION_DELETED),
        (Outcome.STORE_AWAY, Code.STORAGE),
        (Outcome.TAKES_TOO_LONG, Code.SUMMARY_TAKES_TOO_LONG),
        (Outcome.NOTHING_TO_SUMMARISE, Code.NOTHING_TO_SUMMARISE),
    ],
)
def test_an_outcome_that_needs_no_more_words_is_told_by_its_code(outcome: Outcome, code: Code) -> None:
    assert progress(latest=Compaction((), outcome)).why == because(code)


@pytest.mark.parametrize("outcome", [Outcome.MADE, Outcome.AWAITED])
def test_nothing_is_told_of_what_went_well(outcome: Outcome) -> None:
    assert progress(latest=Compaction((), outcome)).why == ()


def test_nothing_is_told_where_nothing_was_due() -> None:
    assert progress().why == ()


async def judged(*compactions: Compaction) -> Code | None:
    """Why a history is left alone after requests whose own compactions came to this."""
    job: Any = SimpleNamespace(conversation=TALK, budget=budget(), history=lambda: LINEAGE)

    async def at_once(_: object, step: Callable[[], Any]) -> Any:
        return step()

    job.beside = at_once
    nothing: Any = None
    compactor = Compactor(*(nothing,) * 9, "here", Caches())
    for _ in range(VAIN_PASSES):
        request = progress(job=job)
        for compaction in compactions:
            request.ended(compaction)
            request.latest = compaction
        await compactor._judge(request)
    return compactor._breaker.blocks(LINEAGE, TALK.tokens, job.budget.limit, often=True)


async def test_a_history_is_left_alone_whose_compactions_freed_hardly_anything() -> None:
    useless = replace(OLDER, tokens=TALK.tokens)
    assert await judged(Compaction((useless,))) is Code.COMPACTION_INEFFECTIVE
    assert await judged(Compaction((OLDER,))) is None


async def test_a_compaction_that_failed_or_could_not_be_stored_says_nothing_of_its_history() -> None:
    useless = replace(OLDER, tokens=TALK.tokens)
    for outcome in (Outcome.FAILED, Outcome.STORE_AWAY):
        assert await judged(Compaction((useless,), outcome)) is None
    assert await judged(Compaction((useless,)), Compaction((), Outcome.FAILED, WHY)) is None

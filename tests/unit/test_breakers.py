"""Backoff and circuit breakers: which failed or useless compactions and models are left alone, and for how long."""

import pytest

from app.compaction.breakers import CompactionBackoff, HistoryBreaker, ModelBreaker
from app.compaction.chunks import Compaction, Outcome
from app.conversation.reasons import Code, because
from app.runtime.caches import HistoryKey
from tests.unit.clock import Clock
from tests.unit.conversations import chunk, conversation, turns

WHY = because(Code.SUMMARISER_ERROR_FRAME)
WHY_TOO = because(Code.SUMMARISER_ANSWER_CUT)


def history(*turns: str, scope: str = "from the root") -> HistoryKey:
    """One that went through these turns."""
    return HistoryKey(scope, [" ".join(turns[: end + 1]).encode() for end in range(len(turns))])


A = history("a")


def failed_twice(what: HistoryKey) -> CompactionBackoff:
    setbacks = CompactionBackoff(Clock())
    for why in (WHY, WHY_TOO):
        setbacks.learn(what, Compaction((), Outcome.FAILED, why))
    return setbacks


def test_each_failure_doubles_the_pause() -> None:
    clock = Clock()
    setbacks = CompactionBackoff(clock)
    pauses = []
    for _ in range(6):
        setbacks.learn(A, Compaction((), Outcome.FAILED, WHY))
        start = clock.now
        while setbacks.pauses(A):
            clock.now += 1.0
        pauses.append(clock.now - start)
    assert pauses == [30, 60, 120, 240, 300, 300]


def test_a_pause_holds_while_the_history_grows_and_for_no_other_one() -> None:
    """Nor for another one under the same name, nor for the next part of the same."""
    setbacks = failed_twice(history("a", "b"))
    assert setbacks.pauses(history("a", "b", "c"))
    assert setbacks.pauses(history("a", "another")) is None
    assert setbacks.pauses(history("a", "b", "c", scope="from there")) is None


def test_a_history_of_a_single_unit_has_nothing_to_be_known_by() -> None:
    assert failed_twice(history()).pauses(history()) is None


def test_a_part_that_was_made_is_no_success_where_another_one_failed() -> None:
    setbacks, half = (
        CompactionBackoff(Clock()),
        Compaction((chunk(conversation(*turns(3)), 0, 2),), Outcome.FAILED, WHY),
    )
    for _ in range(2):
        setbacks.learn(A, half)
    assert setbacks.pauses(A) == WHY
    setbacks.learn(A, Compaction(half.made))
    assert setbacks.pauses(A) is None


@pytest.mark.parametrize("outcome", [Outcome.LEASE_LOST, Outcome.DELETED, Outcome.STORE_AWAY])
def test_what_others_took_away_or_the_database_says_nothing_of_a_compaction(outcome: Outcome) -> None:
    untried, paused = CompactionBackoff(Clock()), failed_twice(A)
    for setbacks in (untried, paused):
        for _ in range(3):
            setbacks.learn(A, Compaction((), outcome))
    assert untried.pauses(A) is None
    assert paused.pauses(A) == WHY_TOO


def test_what_failed_the_last_time_is_known_until_it_succeeds() -> None:
    """Also after its pause: in the background nothing is made twice."""
    clock = Clock()
    setbacks = CompactionBackoff(clock)
    assert not setbacks.failed_last(A)
    setbacks.learn(A, Compaction((), Outcome.FAILED, WHY))
    clock.now += 10_000.0
    assert setbacks.failed_last(history("a", "b"))
    assert not setbacks.failed_last(history("b"))
    setbacks.learn(A, Compaction(()))
    assert not setbacks.failed_last(A)


# Circuit breakers

LIMIT = 10_000
TENANT, ANOTHER, THIRD = "one tenant", "another", "a third"


TALK = history("hello")


def failed(times: int, clock: Clock) -> ModelBreaker:
    breaker = ModelBreaker(clock)
    for _ in range(times):
        breaker.failed("m", TENANT, WHY)
    return breaker


def test_after_thirty_seconds_one_caller_is_the_probe_and_another_where_it_fails_or_never_reports() -> None:
    clock = Clock()
    breaker = failed(3, clock)

    def admitted(now: float) -> list[bool]:
        clock.now = now
        return [breaker.admits("m", TENANT) for _ in range(2)]

    assert [admitted(29.9), admitted(30.0)] == [[False, False], [True, False]]
    assert admitted(60.0) == [True, False], "the first probe never reported"
    clock.now = 80.0
    breaker.failed("m", TENANT, WHY)
    assert [admitted(109.9), admitted(110.0)] == [[False, False], [True, False]]


def test_what_fails_for_two_tenants_is_left_alone_by_all_until_the_pause_is_over() -> None:
    clock = Clock()
    breaker = failed(3, clock)
    for _ in range(2):
        breaker.failed("m", ANOTHER, WHY_TOO)
    assert breaker.admits("m", THIRD), "two failures are bad luck, whosever"
    clock.now = 10.0
    breaker.failed("m", ANOTHER, WHY_TOO)
    assert not breaker.admits("m", THIRD)
    assert breaker.why("m", THIRD) == WHY_TOO
    clock.now = 30.0
    assert breaker.admits("m", THIRD), "the first tenant's pause is over"


def test_a_tenant_that_is_answered_confirms_no_pause() -> None:
    breaker = failed(3, Clock())
    for _ in range(3):
        breaker.failed("m", ANOTHER, WHY)
    breaker.answered("m", TENANT)
    assert breaker.admits("m", THIRD)
    assert not breaker.admits("m", ANOTHER)


def test_two_passes_in_a_row_that_freed_hardly_anything_are_enough() -> None:
    breaker = HistoryBreaker()
    breaker.finished(TALK, 8_000, 8_000, 7_201, LIMIT)
    assert breaker.blocks(TALK, 8_000, LIMIT) is None
    breaker.finished(TALK, 9_500, 8_700, 8_000, LIMIT)
    assert breaker.blocks(TALK, 9_500, LIMIT) == "compaction_ineffective"
    assert breaker.blocks(history("another"), 9_500, LIMIT) is None


def test_a_pass_that_freed_a_tenth_begins_the_count_anew() -> None:
    breaker = HistoryBreaker()
    for tokens, after in ((8_000, 7_900), (20_000, 7_200), (32_000, 7_900)):
        breaker.finished(TALK, tokens, 8_000, after, LIMIT)
    assert breaker.blocks(TALK, 32_000, LIMIT) is None


@pytest.mark.parametrize("tokens", [11_500, 7_500])
def test_an_ineffective_compaction_is_tried_again_once_the_history_is_another(tokens: int) -> None:
    """Grown, or cut by its client: by a fifth of the limit. Then one more vain pass is enough to stop again."""
    breaker = HistoryBreaker()
    for _ in range(2):
        breaker.finished(TALK, 9_500, 8_000, 7_900, LIMIT)
    toward = 1 if tokens < 9_500 else -1
    assert breaker.blocks(TALK, tokens + toward, LIMIT) == "compaction_ineffective"
    assert breaker.blocks(TALK, tokens, LIMIT) is None
    breaker.finished(TALK, tokens, 8_000, 7_900, LIMIT)
    assert breaker.blocks(TALK, tokens, LIMIT) == "compaction_ineffective"


def test_three_compactions_with_hardly_any_growth_between_them_are_enough() -> None:
    breaker = HistoryBreaker()
    for tokens in (8_000, 8_999):
        breaker.finished(TALK, tokens, 8_000, 4_000, LIMIT)
    assert breaker.blocks(TALK, 9_998, LIMIT) is None
    breaker.finished(TALK, 9_998, 8_000, 4_000, LIMIT)
    assert breaker.blocks(TALK, 9_998, LIMIT) == "compaction_too_frequent"
    assert breaker.blocks(TALK, 11_997, LIMIT) == "compaction_too_frequent"
    assert breaker.blocks(TALK, 11_998, LIMIT) is None


def test_a_branch_takes_over_what_was_before_it() -> None:
    breaker = HistoryBreaker()
    for _ in range(3):
        breaker.finished(history("a", "b"), 8_000, 8_000, 4_000, LIMIT)
    breaker.finished(history("a", "b", "c"), 20_000, 8_000, 4_000, LIMIT)
    assert breaker.blocks(history("a", "b", "c"), 20_000, LIMIT) is None
    assert breaker.blocks(history("a", "b", "another"), 8_000, LIMIT) == "compaction_too_frequent"

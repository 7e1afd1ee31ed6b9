"""A compaction that keeps failing is not tried again on every request."""

import pytest

from app.compaction.chunks import Compaction, Outcome
from app.compaction.memory import CompactionBackoff
from app.conversation.reasons import Code, because
from app.runtime.bounded import HistoryKey
from tests.unit.clock import Clock
from tests.unit.conversations import chunk, conversation, turns

WHY = because(Code.SUMMARISER_ERROR_FRAME)
WHY_TOO = because(Code.SUMMARISER_ANSWER_CUT)
REFUSED = because(Code.SUMMARY_TOO_SHORT)


def history(*turns: str, scope: str = "from the root") -> HistoryKey:
    """One that went through these turns."""
    return HistoryKey(scope, [" ".join(turns[: end + 1]).encode() for end in range(len(turns))])


A = history("a")


def failed_twice(what: HistoryKey) -> CompactionBackoff:
    setbacks = CompactionBackoff(Clock())
    for why in (WHY, WHY_TOO):
        setbacks.failed(what, why)
    return setbacks


def test_one_failure_is_tried_again_at_once_and_the_second_after_a_pause() -> None:
    clock = Clock()
    setbacks = CompactionBackoff(clock)
    setbacks.failed(A, WHY)
    assert setbacks.pauses(A) is None
    setbacks.failed(A, WHY)
    assert setbacks.pauses(A)
    assert setbacks.pauses(history("b")) is None
    clock.now = 30.0
    assert setbacks.pauses(A) is None


def test_an_answer_that_could_not_be_kept_is_paid_for_and_waits_at_once() -> None:
    clock = Clock()
    setbacks = CompactionBackoff(clock)
    pauses = []
    for _ in range(6):
        setbacks.failed(A, REFUSED)
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


def test_a_success_ends_it() -> None:
    setbacks = CompactionBackoff(Clock())
    for length in range(1, 5):
        setbacks.failed(history(*"abcd"[:length]), WHY)
    setbacks.learn(history(*"abcde"), Compaction(()))
    setbacks.failed(history(*"abcde"), WHY)
    assert setbacks.pauses(history(*"abcde")) is None


def test_only_so_much_is_remembered() -> None:
    setbacks = CompactionBackoff(Clock())
    for number in range(10_001):
        setbacks.failed(history(str(number)), WHY)
        setbacks.failed(history(str(number)), WHY)
    assert setbacks.pauses(history("0")) is None
    assert setbacks.pauses(history("10000"))


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
    setbacks.failed(A, WHY)
    clock.now += 10_000.0
    assert setbacks.failed_last(history("a", "b"))
    assert not setbacks.failed_last(history("b"))
    setbacks.learn(A, Compaction(()))
    assert not setbacks.failed_last(A)


def test_where_no_failure_is_tolerated_the_first_one_pauses() -> None:
    clock = Clock()
    setbacks = CompactionBackoff(clock, tolerated=0)
    setbacks.failed(A, WHY)
    assert setbacks.pauses(A) == WHY
    clock.now = 30.0
    assert setbacks.pauses(A) is None

"""What is left alone for a while because it does not help, and when it is tried again."""

import pytest

from app.compaction.memory import HistoryBreaker
from app.compaction.summariser_client import ModelBreaker
from app.conversation.reasons import Code, because
from app.runtime.bounded import HistoryKey
from tests.unit.clock import Clock

LIMIT = 10_000
TENANT, ANOTHER, THIRD = "one tenant", "another", "a third"


def history(*turns: str) -> HistoryKey:
    """One that went through these turns."""
    return HistoryKey("additive", [" ".join(turns[: end + 1]).encode() for end in range(len(turns))])


TALK = history("hello")

WHY = because(Code.SUMMARY_EMPTY)
WHY_TOO = because(Code.SUMMARY_REFUSED)


def failed(times: int, clock: Clock) -> ModelBreaker:
    breaker = ModelBreaker(clock)
    for _ in range(times):
        breaker.failed("m", TENANT, WHY)
    return breaker


def test_calls_that_were_made_for_one_thing_fail_once() -> None:
    """The parts of one long history are summarised side by side: eight failures are one, for everybody else."""
    breaker = ModelBreaker(Clock())
    for undertaking in ("a", "a", "b", "a", "b"):
        breaker.failed("m", TENANT, WHY, undertaking)
    assert breaker.admits("m", TENANT)
    breaker.failed("m", TENANT, WHY, "c")
    assert not breaker.admits("m", TENANT)
    breaker.answered("m", TENANT)
    for _ in range(3):
        breaker.failed("m", TENANT, WHY, "a")
    assert breaker.admits("m", TENANT)


def test_after_thirty_seconds_one_caller_is_the_probe() -> None:
    clock = Clock()
    breaker = failed(3, clock)
    clock.now = 29.9
    assert not breaker.admits("m", TENANT)
    clock.now = 30.0
    assert [breaker.admits("m", TENANT) for _ in range(3)] == [True, False, False]


def test_a_probe_that_fails_begins_another_pause() -> None:
    clock = Clock()
    breaker = failed(3, clock)
    clock.now = 30.0
    assert breaker.admits("m", TENANT)
    clock.now = 50.0
    breaker.failed("m", TENANT, WHY)
    clock.now = 79.9
    assert not breaker.admits("m", TENANT)
    clock.now = 80.0
    assert breaker.admits("m", TENANT)


def test_a_probe_that_never_reports_is_followed_by_another() -> None:
    clock = Clock()
    breaker = failed(3, clock)
    clock.now = 30.0
    assert breaker.admits("m", TENANT)
    clock.now = 60.0
    assert breaker.admits("m", TENANT)


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


def compact_often(breaker: HistoryBreaker, talk: HistoryKey, tokens: int = 8_000) -> None:
    for _ in range(3):
        breaker.finished(talk, tokens, 8_000, 4_000, LIMIT)


def test_histories_of_one_size_and_beginning_do_not_lock_each_other_out() -> None:
    """Sub-agents that go under their agent's name, after its first words."""
    breaker = HistoryBreaker()
    for agent in range(5):
        compact_often(breaker, history("a", f"agent {agent}"))
    assert breaker.blocks(history("a", "another agent"), 8_000, LIMIT) is None


def test_a_branch_takes_over_what_was_before_it() -> None:
    breaker = HistoryBreaker()
    compact_often(breaker, history("a", "b"))
    breaker.finished(history("a", "b", "c"), 20_000, 8_000, 4_000, LIMIT)
    assert breaker.blocks(history("a", "b", "c"), 20_000, LIMIT) is None
    assert breaker.blocks(history("a", "b", "another"), 8_000, LIMIT) == "compaction_too_frequent"

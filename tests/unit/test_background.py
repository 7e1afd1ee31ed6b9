"""Background compaction: how fast conversations grow, how many compactions find room, and when one begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.compaction.background import (
    FIRST_SUMMARY_SECONDS,
    PLANNED_GROWTH,
    REMEMBERED_SECONDS,
    Answered,
    Background,
    BackgroundRoom,
    RequestRate,
    RequestRates,
)
from app.compaction.decision import Decision
from app.conversation.reasons import Code, because
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks
from app.settings import BackgroundSettings
from tests.unit.clock import Clock
from tests.unit.conversations import budget, conversation, message
from tests.unit.worlds import asked

ONE, TWO = ("tenant", "one"), ("tenant", "two")


def answered(*requests: tuple[float, int], forwarded: int = 5_000) -> RequestRate:
    """The rate after requests that were answered at these seconds, with histories of so many tokens."""
    rate = RequestRate()
    for at, history in requests:
        rate = rate.after(Answered(at, history, forwarded))
    return rate


def test_a_conversation_is_likely_to_continue_after_three_requests_at_10_000_tokens_an_hour() -> None:
    assert not answered((0, 100), (1, 200)).is_likely_to_continue
    assert answered((0, 100), (1_800, 200), (3_600, 300)).is_likely_to_continue
    assert not answered((0, 100), (1_800, 200), (3_601, 300)).is_likely_to_continue
    assert not answered((0, 100), (1, 200), (2, 300), (9_999, 400)).is_likely_to_continue
    assert answered((5, 100), (5, 200), (5, 300)).is_likely_to_continue


GROWTH: dict[str, tuple[tuple[tuple[float, int], ...], float, int]] = {
    "at 1.25 times its pace, and by one request more": (((0, 0), (10, 100), (20, 200), (30, 300)), 20, 250 + 100),
    "by one as large as the largest": (((0, 0), (10, 10), (20, 290), (30, 300)), 20, 250 + 280),
    "by the eight latest requests": (((0, 0), *((n * 10, 5_000 + n * 100) for n in range(1, 9))), 20, 250 + 100),
    "however slow it was, by one at least": (((0, 0), (3_600, 100), (7_200, 200)), 20, 125 + 100),
    "as fast as it was after a pause": (((0, 0), (3_600, 100), (3_602, 200), (3_604, 300)), 20, 312 + 100),
    "by nothing that went to another branch": (((0, 900), (10, 100), (20, 200)), 20, 125 + 100),
    "by nothing after a first request": (((0, 900),), 20, 0),
    "by nothing before": ((), 20, 0),
    "without a time in between": (((5, 100), (5, 101)), 2, 2_501),
}


@pytest.mark.parametrize(("requests", "seconds", "tokens"), GROWTH.values(), ids=GROWTH)
def test_a_history_may_grow(requests: tuple[tuple[float, int], ...], seconds: float, tokens: int) -> None:
    assert answered(*requests).growth(seconds) == tokens


def test_rates_are_forgotten_with_what_is_erased_and_after_a_day() -> None:
    clock = Clock(1_000.0)
    rates = RequestRates(clock)
    for place in (ONE, TWO, ("other", "one")):
        rates.answered(place, 100, 100)
    rates.forget(Erased("tenant", "one"))
    assert [rates.of(place).requests for place in (ONE, TWO, ("other", "one"))] == [0, 1, 1]
    rates.forget(Erased("tenant"))
    assert [rates.of(place).requests for place in (TWO, ("other", "one"))] == [0, 1]
    clock.now += REMEMBERED_SECONDS
    assert rates.of(("other", "one")) == RequestRate()


def test_a_summary_is_expected_to_take_as_long_as_the_longest_of_the_latest_of_its_model() -> None:
    rates = RequestRates()
    assert rates.summary_seconds("model") == FIRST_SUMMARY_SECONDS
    for seconds in (90.0, 2.0, 5.0, 4.0):
        rates.summarised("model", seconds)
    assert rates.summary_seconds("model") == 90.0
    rates.summarised("model", 2.0)
    assert (rates.summary_seconds("model"), rates.summary_seconds("other")) == (5.0, FIRST_SUMMARY_SECONDS)


def test_there_are_so_many_at_once_for_a_tenant_and_for_all() -> None:
    held = BackgroundRoom(3, 2, 100)
    held.taken[("a", "1")] = 1
    assert held.is_free("a", 1)
    held.taken[("a", "2")] = 1
    assert not held.is_free("a", 1)
    assert held.is_free("b", 1)
    held.taken[("b", "1")] = 1
    assert not held.is_free("c", 1)
    del held.taken[("a", "1")]
    assert held.is_free("c", 1)


LIMIT = 10_000
SENT, MISSED = Decision(None), Decision(None, why=because(Code.SUMMARY_IN_BACKGROUND))
NOTHING: Any = None
WRITING: Any = SimpleNamespace(routes=lambda _: [SimpleNamespace(provider=SimpleNamespace(name="upstream"), model="m")])


class Continuing(RequestRates):
    """Rates of conversations that are likely to continue and to grow by 600 tokens."""

    def of(self, place: Any) -> Any:
        return SimpleNamespace(is_likely_to_continue=True, growth=lambda _: 600, after=super().of(place).after)


class Beginning(Background):
    """One that writes down what it would begin, for conversations that are likely to continue."""

    def __init__(self) -> None:
        super().__init__(NOTHING, WRITING, Continuing(), BackgroundRoom(), OwnedTasks())
        self.begun: list[Any] = []

    def _begin(self, request: Any, target: int) -> None:  # noqa: ARG002
        self.begun.append(request)


GROWN = 7_100 + int(PLANNED_GROWTH * LIMIT)
PLANS: dict[str, tuple[int | None, int, Decision, bool]] = {
    "not at the trigger": (None, 7_000, SENT, False),
    "over the trigger": (None, 7_100, SENT, True),
    "not twice for one history": (7_100, 7_100, SENT, False),
    "not before it has grown": (7_100, GROWN - 1, SENT, False),
    "once it has grown": (7_100, GROWN, SENT, True),
    "where a request went on without its summary": (7_100, 7_100, MISSED, True),
    "also where it was shortened far below the trigger": (7_100, 3_000, MISSED, True),
    "not below the trigger": (7_100, 3_000, SENT, False),
    # 9,700 may be sent without the summary, less the 600 that are expected.
    "not while there is time": (9_000, 9_100, SENT, False),
    "where there is no more time": (9_000, 9_101, SENT, True),
}


@pytest.mark.parametrize(("planned", "tokens", "decision", "begins"), PLANS.values(), ids=PLANS)
def test_a_compaction_is_planned(planned: int | None, tokens: int, decision: Decision, begins: bool) -> None:
    """By limits for the time when it is used."""
    history = [message("user", tokens=tokens - 600), message("assistant", tokens=300), message("user", tokens=300)]
    request, background = asked(conversation(*history), budget=budget(LIMIT)), Beginning()
    if planned:
        background._planned.keep(request.conversation_key, planned)
    background.consider(request, BackgroundSettings(), decision)
    limits = [(begun.budget.limit, begun.budget.target) for begun in background.begun]
    assert limits == ([(LIMIT, LIMIT // 2 - 600)] if begins else [])


async def test_a_conversation_has_one_background_compaction_at_a_time_and_room_for_the_next() -> None:
    purposes: list[str] = []

    async def make_ahead(request: Any, _: int) -> None:
        purposes.append(request.purpose)

    request, tasks = asked(conversation(message("user"))), OwnedTasks()
    background = Background(make_ahead, NOTHING, RequestRates(), BackgroundRoom(), tasks)
    for _ in range(2):
        background._begin(request, 500)
        background._begin(request, 500)
        await tasks.drain(60.0)
    assert purposes == ["background", "background"]


def test_trouble_of_its_own_does_not_reach_the_request_that_was_answered() -> None:
    """Here it is that nothing it needs is there."""
    asked: Any = SimpleNamespace(request_id="req_1", conversation_id="c-1")
    with capture_logs() as logged:
        Background(NOTHING, NOTHING, RequestRates(), NOTHING, OwnedTasks()).consider(asked, NOTHING, SENT)
    assert [(entry["event"], entry["request_id"]) for entry in logged] == [("a background compaction failed", "req_1")]

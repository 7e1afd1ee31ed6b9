"""How much is worked out for a request: nothing that it has no use for, and nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.compaction import select as case
from app.compaction.summariser_client import SummaryRouting
from tests.e2e.histories import chat, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.store_calls import Call, intercept

VIEWS = ("paths", "widest_path", "least_view")
WRITING = ("brief", "_route")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    times: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            times[name] += 1
            return work(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    for name in VIEWS:
        count(case, name)
    for name in WRITING:
        count(SummaryRouting, name)
    return times


def test_under_the_trigger_nothing_is_worked_out(steno: StartSteno, counted: Counter[str]) -> None:
    post(steno().url, chat(turns(2)))
    assert not counted


def test_each_view_is_worked_out_once_before_a_summary_is_made_and_once_after_it(
    steno: StartSteno, counted: Counter[str]
) -> None:
    post(steno().url, chat(turns(20)))
    assert counted == {**dict.fromkeys(VIEWS, 2), **dict.fromkeys(WRITING, 1)}


def test_where_a_stored_summary_does_the_view_over_it_is_all(steno: StartSteno, counted: Counter[str]) -> None:
    proxy = steno()
    post(proxy.url, chat(turns(20)))
    counted.clear()
    post(proxy.url, chat(turns(21)))
    assert counted == {"paths": 1, "least_view": 1}


def test_a_request_over_the_trigger_reads_the_store_once(steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins and summaries; masks only where there are tool results to be masked."""
    asked: Counter[str] = Counter()
    proxy = steno()
    for name in ("pins_in", "chunks_in", "masks_in", "find_heads"):
        intercept(monkeypatch, proxy.services.store, name, _counting(asked, name))
    post(proxy.url, chat(turns(20)))
    asked.clear()
    post(proxy.url, chat(turns(21)))
    assert asked == {"pins_in": 1, "chunks_in": 1}


def _counting(asked: Counter[str], name: str) -> Callable[[Call], Call]:
    def wrap(call: Call) -> Call:
        def counting(*arguments: Any, **named: Any) -> Any:
            asked[name] += 1
            return call(*arguments, **named)

        return counting

    return wrap

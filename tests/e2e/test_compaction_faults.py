"""Compactions while a step of the store fails."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from app.store import StoreUnavailable
from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.store_calls import Call, intercept

LONG = turns(15)
"""About 6,300 tokens: over the trigger of an 8,000-token window, and within the window."""
NOTES = re.compile(r"\[Notes on messages (\d+) to (\d+) of this conversation")


def assert_covered(payload: list[Any], history: list[Any]) -> None:
    """Every message of the history is in the payload exactly once, in order: verbatim, or in the range of one
    summary."""
    position = 0
    for message in payload:
        if position < len(history) and message == history[position]:
            position += 1
            continue
        found = NOTES.match(str(message["content"]))
        assert found, f"no message of the history, and no summary: {str(message)[:200]}"
        assert int(found[1]) == position + 1
        position = int(found[2])
    assert position == len(history)


STORE_STEPS = [
    *((step, False) for step in ("read_prefix", "read_first_chunks", "heads")),
    *((step, after) for step in ("take_lease", "keep_chunks", "release_lease") for after in (False, True)),
]


def failing_once(failures: list[str], after: bool, real: Call) -> Call:
    """The call, which fails the first time, before or after it has done its work; `failures` is told."""

    async def call(*given: Any, **named: Any) -> Any:
        if failures:
            return await real(*given, **named)
        failures.append("the test says so")
        if after:
            await real(*given, **named)
        raise StoreUnavailable(failures[0])

    return call


@pytest.mark.parametrize(("step", "after"), STORE_STEPS)
def test_whatever_store_step_fails_nothing_is_lost(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """The next payload covers everything; the compaction is there, unless its lease is still held, and paid for once,
    unless it could not be stored."""
    nobody_releases = (step, after) == ("take_lease", True)
    waits = {"wait_seconds": 0.3} if nobody_releases else {}
    proxy = steno(compaction={"background": {"enabled": False}, **waits}, calibration={"enabled": False})
    failures: list[str] = []
    intercept(monkeypatch, proxy.services.store, step, partial(failing_once, failures, after))
    answers = []
    for history in (LONG, LONG, turns(16)):
        answers.append(post(proxy.url, chat(history)))
        assert_covered(simulator.chats[-1].payload["messages"], history)
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert failures
    if not nobody_releases:
        assert answers[-1].header("x-context-status") == "summarized"
        assert len(simulator.summaries) == (2 if (step, after) == ("keep_chunks", False) else 1)

"""Compactions while a step of the store fails."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from app.store import StoreUnavailable
from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import StartSteno, Steno
from tests.e2e.store_calls import Call, intercept

Messages = list[Any]

LONG = turns(15)
"""About 6,300 tokens: over the trigger of an 8,000-token window, and within the window."""
NOTES = re.compile(r"\[Notes on messages (\d+) to (\d+) of this conversation")


def context(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json["context"]


def sent(record: Any) -> Messages:
    messages: Messages = record.payload["messages"]
    return messages


def assert_covered(payload: Messages, history: Messages) -> list[tuple[int, int]]:
    """Every message of the history is in the payload exactly once, in order: verbatim, or in the range of one summary.

    Returns the ranges, counted from 0, stops exclusive.
    """
    position, ranges = 0, []
    for message in payload:
        if position < len(history) and message == history[position]:
            position += 1
            continue
        found = NOTES.match(str(message["content"]))
        assert found, f"no message of the history, and no summary: {str(message)[:200]}"
        assert int(found[1]) == position + 1
        ranges.append((position, int(found[2])))
        position = int(found[2])
    assert position == len(history)
    return ranges


STORE_STEPS = [
    *((step, False) for step in ("read_prefix", "read_first_chunks", "heads")),
    *((step, after) for step in ("take_lease", "keep_chunks", "release_lease") for after in (False, True)),
]


class Failing:
    """A call of a running store that fails once, before or after it has done its work."""

    def __init__(self, after: bool) -> None:
        self._after, self.failed = after, 0

    async def __call__(self, real: Call, *given: Any, **named: Any) -> Any:
        if self.failed:
            return await real(*given, **named)
        self.failed += 1
        if self._after:
            await real(*given, **named)
        raise StoreUnavailable("the test says so")


def seed_fault(monkeypatch: pytest.MonkeyPatch, proxy: Steno, step: str, after: bool) -> Failing:
    failing = Failing(after)
    intercept(monkeypatch, proxy.services.store, step, lambda real: partial(failing, real))
    return failing


@pytest.mark.parametrize(("step", "after"), STORE_STEPS)
def test_whatever_store_step_fails_nothing_is_lost(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """The next payload covers everything; the compaction is there, unless its lease is still held, and paid for once,
    unless it could not be stored."""
    nobody_releases = (step, after) == ("take_lease", True)
    waits = {"wait_seconds": 0.3} if nobody_releases else {}
    proxy = steno(compaction={"background": {"enabled": False}, **waits}, calibration={"enabled": False})
    failing = seed_fault(monkeypatch, proxy, step, after)
    reports = []
    for history in (LONG, LONG, turns(16)):
        reports.append(context(post(proxy.url, chat(history))))
        assert_covered(sent(simulator.chats[-1]), history)
    assert failing.failed == 1
    if not nobody_releases:
        assert reports[-1]["status"] == "summarized"
        assert len(simulator.summaries) == (2 if (step, after) == ("keep_chunks", False) else 1)

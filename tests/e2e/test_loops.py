"""Stenos in a row are served; one whose upstream leads back to itself says so, at once and only once."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from app.http.upstream import Pool
from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import Answer, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider


def lead(steno: Steno, to: str) -> None:
    """Its address is only known once it runs, so settings could not name it."""
    upstream = steno.services.providers.default.upstream
    upstream._base = httpx2.URL(f"{to}/v1")
    upstream._pool = Pool(upstream._base, upstream._timeouts)


def assert_loop(answered: Answer) -> None:
    assert answered.status == 508
    error = answered.json["error"]
    assert (error["type"], error["code"], error["param"]) == ("api_error", "loop_detected", None)
    assert "the base_url of an upstream leads back here" in error["message"]
    assert answered.header("x-should-retry") == "false"


PATHS: dict[str, Any] = {
    "a chat": request_bytes(chat()),
    "a long chat, with its summary": request_bytes(chat(long_history())),
    "an unreadable chat": request_bytes(b"{"),
    "another path": request_bytes(chat(), target="/v1/completions"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stenos", [1, 2])
def test_circle_is_refused_after_one_round(
    scripted: ScriptedProvider, before_scripted: StartSteno, path: str, stenos: int
) -> None:
    row = [before_scripted() for _ in range(stenos)]
    for steno, following in zip(row, [*row[1:], row[0]], strict=True):
        lead(steno, following.url)
    assert_loop(send(row[0].url, PATHS[path]))
    assert not scripted.requests


def test_row_of_stenos_is_no_circle(simulator: Simulator, steno: StartSteno) -> None:
    """Their names pass up, on summaries too, and none comes down."""
    last = steno()
    first = steno(upstream={"base_url": steno(upstream={"base_url": last.base_url}).base_url})
    answered = post(first.url, chat(long_history()))
    assert (answered.status, answered.header("x-context-status")) == (200, "summarized")
    assert answered.header("steno-hops") is None
    [summary], [chatted] = simulator.summaries, simulator.chats
    assert len((chatted.header("steno-hops") or "").split(", ")) == 3
    assert summary.header("steno-hops") == chatted.header("steno-hops")

"""A stored summary serves whoever comes later."""

from __future__ import annotations

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno


@pytest.mark.parametrize("again", ["restart", "second process"])
def test_nobody_makes_a_summary_again(steno: StartSteno, simulator: Simulator, sqlite_url: str, again: str) -> None:
    """A restart and another process on the same database reuse what is stored, byte for byte."""
    first, body = steno(storage={"url": sqlite_url}), chat(long_history())
    before = post(first.url, body).json["context"]
    payload = simulator.chats[-1].body
    if again == "restart":
        first.stop()
    assert post(steno(storage={"url": sqlite_url}).url, body).json["context"] == before
    assert simulator.chats[-1].body == payload
    assert len(simulator.summaries) == 1

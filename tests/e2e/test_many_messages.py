"""Conversations of more messages than are read of an unknown request: they go on from what is known of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.formats.requests import BodyBounds
from app.proxy import request
from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno, Steno

MOST = 100
LONG = turns(200)
"""401 messages: the last is the user's."""
OTHER = b"authorization: Bearer sk-other"


@pytest.fixture(autouse=True)
def _fewer_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "BOUNDS", BodyBounds(messages=MOST))


@pytest.fixture
def running(steno: StartSteno, tmp_path: Path) -> Steno:
    return start(steno, tmp_path)


def start(steno: StartSteno, folder: Path) -> Steno:
    database = f"sqlite+aiosqlite:///{folder / 'steno.db'}"
    return steno(storage={"url": database}, compaction={"background": {"enabled": False}})


def ask(running: Steno, messages: int, *headers: bytes) -> str | None:
    """Send the first messages, of which the last is the user's; returns the status of the context."""
    answer = post(running.url, chat(LONG[:messages]), *headers)
    assert answer.status in (200, 400)  # What passes as it came may be too large.
    return answer.header("x-context-status") or answer.header("x-context-reason")


def test_a_conversation_goes_on_beyond_the_bound(simulator: Simulator, running: Steno) -> None:
    assert [ask(running, messages) for messages in (51, 99, 101, 199, 201, 299)] == ["summarized"] * 6
    assert all(record.status == 200 for record in simulator.chats)


def test_what_another_process_served_is_known(
    simulator: Simulator, steno: StartSteno, running: Steno, tmp_path: Path
) -> None:
    assert ask(running, 99) == "summarized"
    made = len(simulator.summaries)
    running.stop()
    assert ask(start(steno, tmp_path), 199) == "summarized"
    assert 0 < len(simulator.summaries) - made < made + 3


def test_more_than_that_of_somebody_unknown_is_not_read(running: Steno) -> None:
    assert ask(running, 101) == "bypassed"
    assert ask(running, 101) == "bypassed"
    assert ask(running, 99) == "summarized"
    assert ask(running, 99, OTHER) == "summarized"
    assert ask(running, 201) == "bypassed"
    assert ask(running, 51) == "summarized"
    assert ask(running, 149) == "summarized"
    assert ask(running, 101, b"authorization: Bearer sk-third") == "bypassed"

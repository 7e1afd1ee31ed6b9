"""Histories that no sensible client sends, under every preset: an answer or the provider's own error, never a loop."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings.presets import PRESET_NAMES
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL
from tests.e2e.raw import post
from tests.e2e.running import WINDOW, Steno
from tests.exchanges.histories import messages_of

MOST_CALLS = 40
"""Summaries for one request: parts, folds and second tries of the longest history here."""
LONG = "the parcel went back to the warehouse " * 60
CASES: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("bad_input.yaml").read_text("ascii"))


def history_of(entries: list[Any]) -> str:
    """A history in JSON."""
    messages = [
        message
        for entry in entries
        for message in messages_of(entry.get("entries", [entry])) * int(entry.get("repeat", 1))
    ]
    return re.sub(r"<long (\d+)>", lambda times: LONG * int(times[1]), json.dumps(messages))


@pytest.fixture(scope="module")
def provider_and_steno() -> Iterator[tuple[Simulator, Steno]]:
    simulator = Simulator(window=WINDOW, tables=TABLES, max_messages=None, lenient_messages=True)
    with pytest.MonkeyPatch.context() as patched, simulator.serve() as server:
        running.forget_environment(patched)
        steno = running.start(server.url, {})
        try:
            yield simulator, steno
        finally:
            steno.stop()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_odd_histories_end_in_an_answer_or_the_providers_own_error(
    provider_and_steno: tuple[Simulator, Steno], preset: str, name: str
) -> None:
    simulator, steno = provider_and_steno
    simulator.clear_log()
    history = history_of(CASES[name]).replace('"content": "TWICE', '"content": "once", "content": "')
    body = f'{{"model": "{MODEL}", "messages": {history}, "context": {{"preset": "{preset}"}}}}'
    answered = post(steno.url, body.encode())
    chats, calls = simulator.chats, simulator.summaries
    assert answered.status in (200, 400)
    assert 1 <= len(chats) <= 2  # Once more after a refusal for its size.
    assert len(calls) <= MOST_CALLS
    sent = json.loads(chats[-1].body)["messages"]
    if answered.status == 400:
        # What came could not be taken, and Steno made nothing worse: the bytes are the client's, or the provider
        # refuses what the client sent, whatever its size.
        assert json.loads(answered.body)["error"]["message"]
        if sent != json.loads(body)["messages"] and answered.header("x-context-reason") is None:
            simulator.window = 10**6
            try:
                unchanged = body.replace(f'{{"preset": "{preset}"}}', '{"compaction": false}')
                assert post(steno.url, unchanged.encode()).status == 400
            finally:
                simulator.window = WINDOW
        return
    context = json.loads(answered.body)["context"]
    if sent != json.loads(body)["messages"]:
        assert context["actions"]
    elif context["tokens"]["estimated"] > WINDOW:
        assert context["reason"]

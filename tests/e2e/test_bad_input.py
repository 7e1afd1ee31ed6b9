"""Histories that no sensible client sends, under every preset: an answer or the provider's own error, never a loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.runtime.server import RunningServer
from app.settings.presets import PRESET_NAMES
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL, calls, result, said, turns
from tests.e2e.raw import post
from tests.e2e.running import WINDOW, Steno

MOST_CALLS = 40
"""Summaries for one request: parts, folds and second tries of the longest history here."""
IMAGE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"},
}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF" * 40, "format": "wav"}}


LONG = "the parcel went back to the warehouse " * 60
QUESTION = said("user", "Well?")
BEFORE = turns(12)[:-1]

CASES: dict[str, Callable[[], list[Any]]] = {
    "one giant user message": lambda: [said("user", LONG * 40)],
    "a giant pasted document before the question": lambda: [said("user", LONG * 40), said("assistant", "ok"), QUESTION],
    "only tool results": lambda: [result(f"c{number}", LONG) for number in range(30)],
    "only system messages": lambda: [said("system", LONG) for _ in range(30)],
    "system messages at the end": lambda: [*BEFORE, *(said("system", LONG) for _ in range(3)), QUESTION],
    "parallel calls cut by the client": lambda: [
        *(*BEFORE, said("user", "Both?"), calls("a", "b"), result("a", LONG * 3), said("assistant", "One."), QUESTION),
    ],
    "calls that were never answered": lambda: [*BEFORE, calls("x"), QUESTION, calls("y"), said("user", LONG), QUESTION],
    "duplicated ids": lambda: [
        step for _ in range(20) for step in (said("user", "Again?"), calls("same"), result("same", LONG))
    ],
    "the same id twice in one message": lambda: [
        *(*BEFORE, said("user", "Twice?"), calls("a", "a"), result("a", LONG * 5), result("a", LONG * 5)),
    ],
    "empty strings": lambda: [said(role, "") for _ in range(200) for role in ("user", "assistant")] + [QUESTION],
    "wrong alternation": lambda: [said("assistant", LONG) for _ in range(20)] + [said("user", LONG)] * 20,
    "images and audio": lambda: [
        *(said("user", [{"type": "text", "text": LONG}, IMAGE, AUDIO]) for _ in range(20)),
        said("assistant", "I see."),
        QUESTION,
    ],
    "5,000 tiny messages": lambda: [said(role, "a b c") for _ in range(2_500) for role in ("user", "assistant")][:-1],
    "one tool result of 2 MB": lambda: [
        *(said("user", "Read."), calls("big"), result("big", LONG * 900)),
    ],
    "a tool result of 2 MB that was answered": lambda: [
        *(said("user", "Read."), calls("big"), result("big", LONG * 900), said("assistant", "Read."), QUESTION),
    ],
    "arguments of 200 kB": lambda: [
        *(said("user", "Do."), calls("big", arguments=json.dumps({"a": LONG * 90})), result("big", "done")),
        *(said("assistant", "Done."), QUESTION),
    ],
    "arguments that are no JSON": lambda: [
        *(
            said("user", "Do."),
            calls("big", arguments="{" + LONG * 20),
            result("big", LONG),
            said("assistant", "k"),
            QUESTION,
        ),
    ],
    "a key twice in a message": lambda: [*BEFORE, said("user", "twice"), calls("k"), result("k", "TWICE" + LONG * 20)],
    "an empty list": list,
    "a single message": lambda: [QUESTION],
}


@pytest.fixture(scope="module")
def provider_and_steno() -> Iterator[tuple[Simulator, Steno]]:
    simulator = Simulator(window=WINDOW, tables=TABLES, max_messages=None, lenient_messages=True)
    with pytest.MonkeyPatch.context() as patched, simulator.serve() as server:
        running.forget_environment(patched)
        steno = _start(server)
        try:
            yield simulator, steno
        finally:
            steno.stop()


def _start(server: RunningServer) -> Steno:
    return running.start(server.url, {})


@pytest.mark.sampled(0.25)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_odd_histories_end_in_an_answer_or_the_providers_own_error(
    provider_and_steno: tuple[Simulator, Steno], preset: str, name: str
) -> None:
    simulator, steno = provider_and_steno
    simulator.clear_log()
    messages = CASES[name]()
    body = json.dumps({"model": MODEL, "messages": messages, "context": {"preset": preset}}).replace(
        '"content": "TWICE', '"content": "once", "content": "'
    )
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

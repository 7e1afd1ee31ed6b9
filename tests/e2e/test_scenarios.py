"""The main job, as a user meets it: seven scenarios of the design, then what must never happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from lab.simulator import Simulator
from tests.e2e.running import StartSteno, Steno

RULES = {"role": "system", "content": "You are the booking desk of Harbour Hotels. Always answer in one sentence."}
FILLER = "The guest explains at length why the room, the view, the breakfast and the late arrival matter so much. " * 5

Messages = list[dict[str, Any]]


def talk(turns: int, first: int = 0) -> Messages:
    """So many whole turns, about 230 tokens each; every turn holds a fact of its own."""
    messages: Messages = []
    for number in range(first, first + turns):
        messages.append({"role": "user", "content": f"My booking number {number} is HB-{4_000 + number}-X. {FILLER}"})
        messages.append({"role": "assistant", "content": f"Room {700 + number} goes to booking {number}. {FILLER}"})
    return messages


def ask(steno: Steno, history: Messages, question: str = "Which one was that?", **options: Any) -> Any:
    messages: Any = [RULES, *history, {"role": "user", "content": question}]
    return steno.sdk().chat.completions.create(model="gpt-4o", messages=messages, **options)


def get(steno: Steno, path: str, key: str = "sk-test") -> Any:
    return httpx.get(f"{steno.url}/context{path}", headers={"authorization": f"Bearer {key}"}).json()


def calls(simulator: Simulator) -> int:
    """How many summaries were asked for."""
    return len(simulator.summaries)


LONG = talk(26)
"""About 6,000 tokens: over the trigger of an 8,000-token window (5,320)."""


@pytest.mark.parametrize("again", ["restart", "second process"])
def test_nobody_makes_a_summary_again(steno: StartSteno, simulator: Simulator, tmp_path: Path, again: str) -> None:
    """A restart and another process on the same database reuse what is stored, byte for byte."""
    storage = {"storage": {"url": f"sqlite:///{tmp_path}/steno.db"}}
    first = steno(**storage)
    before = ask(first, LONG).context
    payload = simulator.chats[-1].body
    if again == "restart":
        first.stop()
    assert ask(steno(**storage), LONG).context == before
    assert simulator.chats[-1].body == payload
    assert calls(simulator) == 1

"""The main job, as a user meets it: seven scenarios of the design, then what must never happen."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
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


def sent(simulator: Simulator) -> Messages:
    """The messages of the latest request that reached the provider."""
    return list(simulator.chats[-1].messages or ())


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


WORDS = (
    "the harbour office asked whether a delayed shipment could still reach the northern warehouse before friday because"
    " several customers had already paid for express delivery and wanted a refund otherwise"
)


@pytest.mark.slow
def test_a_summary_serves_many_turns_and_the_prefix_stays(steno: StartSteno, simulator: Simulator) -> None:
    """24 turns of 3.6 KB in an 8,192-token window: at most 4 summary calls, all other turns extend the prompt."""
    simulator.window = 8_192
    client = steno(models=[{"match": "*", "context_window": 8_192}]).sdk()
    chance = Random(1)
    messages: Messages = [RULES]
    previous, breaks = "", 0
    for turn in range(24):
        for role in ("user", "assistant"):
            messages.append({"role": role, "content": f"{turn} " + " ".join(chance.choices(WORDS.split(), k=270))})
            if role == "user":
                asked: Any = messages
                client.chat.completions.create(model="gpt-4o", messages=asked, max_tokens=1_024)
                payload = json.dumps(sent(simulator)).removesuffix("]")
                kept = next(
                    (i for i, (a, b) in enumerate(zip(previous, payload, strict=False)) if a != b), len(previous)
                )
                breaks += kept < 0.95 * len(previous)
                previous = payload
    assert 0 < calls(simulator) <= 4
    # The latest may have been made ahead, for a turn that did not come.
    assert calls(simulator) - breaks in (0, 1)

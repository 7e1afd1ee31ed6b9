"""Talks that the presets are tried on, what is planned for them, and what the provider was sent of them."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, said, used
from tests.e2e.raw import Answer, post
from tests.e2e.running import Steno

Messages = list[Any]

QUESTION: Any = {"role": "user", "content": "And what do you make of it?"}
RULES: Any = {"role": "system", "content": "You are the booking desk. Answer in one sentence."}
UNCALIBRATED: Any = {"calibration": {"enabled": False}}
"""So that sizes in tests stay what they are."""


def text(number: int, tokens: int) -> str:
    """Of about so many tokens, and no two alike."""
    return f"report {number}:" + " the" * tokens


def text_of(characters: int, name: str = "row") -> str:
    """Exactly so many characters, of which no ten words are the same as any others."""
    words = (f"{name}{number}" if number % 10 == 0 else "the" for number in count())
    return " ".join(islice(words, characters))[:characters]


def read(number: int, tokens: int) -> Messages:
    return used(f"c{number}", text(number, tokens))


def answered_reads(number: int, tokens: int) -> Messages:
    """So many questions, each with a call, its result and an answer."""
    return [
        message
        for step in range(number)
        for message in (
            said("user", f"Read report {step}."),
            *read(step, tokens),
            said("assistant", f"Report {step} is fine."),
        )
    ]


def of_preset(preset: str, window: int = 8_000, /, **compaction: Any) -> dict[str, Any]:
    """Settings with a preset for each model of so large a window."""
    # As all of them but the default: what a request led to is there when it is answered.
    held = {"preset": preset, "background": {"enabled": False}}
    return {"compaction": held | compaction, "models": [{"match": "*", "context_window": window}], **UNCALIBRATED}


def wide(window: int, simulator: Simulator) -> Any:
    """Settings for a larger window; the provider has it too."""
    simulator.window = window
    return [{"match": "*", "context_window": window}]


def planned(proxy: Steno, messages: Messages, **members: Any) -> Any:
    """What would happen to them."""
    found = post(proxy.url, chat(messages, **members), target="/context/plan")
    assert found.status == 200, found.body
    return found.json


def estimate(proxy: Steno, messages: Messages, **members: Any) -> int:
    tokens: int = planned(proxy, messages, **members)["context"]["tokens"]["estimated"]
    return tokens


def instructions(proxy: Steno, messages: Messages, **members: Any) -> int:
    """Tokens of instructions and tools."""
    tokens: int = planned(proxy, messages, **members)["parts"][0]["tokens"]
    return tokens


def padded(proxy: Steno, messages: Messages, at: int, tokens: int, **members: Any) -> Messages:
    """The messages with the one at that place filled up, so that the prompt has exactly so many tokens."""
    missing = tokens - estimate(proxy, messages, **members)
    assert missing >= 0, f"{-missing} tokens too many"
    return lengthened(messages, at, " the" * missing)


def lengthened(messages: Messages, at: int, more: str) -> Messages:
    at %= len(messages)
    return [*messages[:at], {**messages[at], "content": messages[at]["content"] + more}, *messages[at + 1 :]]


def sent(record: Record) -> Messages:
    messages: Messages = record.payload["messages"]
    return messages


def context(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json["context"]

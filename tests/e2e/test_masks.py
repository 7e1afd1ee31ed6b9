"""Masks: answered tool results become head and tail before anything is summarised, and keep their bytes."""

from __future__ import annotations

import base64
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, used
from tests.e2e.raw import Answer, post
from tests.e2e.running import NOTHING_RECALLED, StartSteno

TOOL = {"type": "function", "function": {"name": "read_report", "parameters": {"type": "object", "properties": {}}}}


HEADER = struct.pack(">8sI4sIIBBBBBI", b"\x89PNG\r\n\x1a\n", 13, b"IHDR", 2_048, 2_048, 8, 2, 0, 0, 0, 0)
PICTURE = f"data:image/png;base64,{base64.b64encode(HEADER + bytes(3_000)).decode()}"
LEFT = "[image, 3,049 bytes, 2048 x 2048: you have seen it, and it is left out now]"


def report(number: int, words: int = 500) -> str:
    return " ".join(f"r{number}w{word}" for word in range(words // 4)) + " row" * (words // 2)


def steps(number: int, words: int = 500) -> list[Any]:
    """So many questions, each with a call, a long result and an answer."""
    talk: list[Any] = []
    for step in range(number):
        talk += [
            {"role": "user", "content": f"Read report {step}."},
            *used(f"c{step}", report(step, words), "read_report"),
            {"role": "assistant", "content": f"Report {step} says that row {step} is fine."},
        ]
    return talk


def agent(number: int) -> list[Any]:
    return [*steps(number), {"role": "user", "content": f"And report {number}?"}]


def sent(record: Record) -> list[Any]:
    messages: list[Any] = record.payload["messages"]
    return messages


def context(answered: Answer) -> Any:
    return json.loads(answered.body)["context"]


def test_pictures_of_turns_that_are_over_are_masked(simulator: Simulator, steno: StartSteno) -> None:
    talk: list[Any] = []
    for number in range(10):
        shown = {"type": "image_url", "image_url": {"url": PICTURE}}
        asked = {"role": "user", "content": [{"type": "text", "text": f"What is in picture {number}?"}, shown]}
        talk += [asked, {"role": "assistant", "content": f"In picture {number} is a heron."}]
    talk = [*talk[:-1]]
    answered = post(steno(compaction=NOTHING_RECALLED).url, chat(talk))
    assert not simulator.summaries
    assert context(answered)["actions"] == ["masked"]
    payload = sent(simulator.chats[0])
    assert payload[-1] == talk[-1]
    masked = [message for message, before in zip(payload, talk, strict=True) if message != before]
    assert masked == [
        {"role": "user", "content": [before["content"][0], {"type": "text", "text": LEFT}]}
        for before in talk[: 2 * len(masked) : 2]
    ]
    assert masked


def test_a_masked_message_has_the_same_bytes_in_the_next_ten_requests_and_after_a_restart(
    simulator: Simulator, steno: StartSteno, tmp_path: Path
) -> None:
    storage = {"url": f"sqlite:///{tmp_path}/steno.db"}
    proxy = steno(storage=storage, compaction=NOTHING_RECALLED)
    talk = agent(7)
    for turn in range(6):
        if turn == 3:
            proxy.stop()
            proxy = steno(storage=storage, compaction=NOTHING_RECALLED)
        post(proxy.url, chat(talk, tools=[TOOL]))
        # Each turn has a result that is sent whole, not being answered yet: a boundary that moved would mask it.
        talk += [
            *used(f"late{turn}", report(turn, 100), "read_report"),
        ]
        post(proxy.url, chat(talk, tools=[TOOL]))
        talk += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": f"And {turn}?"}]
    for earlier, later in pairwise(map(sent, simulator.chats)):
        assert later[: len(earlier)] == earlier
    assert not simulator.summaries

"""Masks: answered tool results become head and tail before anything is summarised, and keep their bytes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, used
from tests.e2e.raw import Answer, post
from tests.e2e.running import NOTHING_RECALLED, StartSteno

TOOL = {"type": "function", "function": {"name": "read_report", "parameters": {"type": "object", "properties": {}}}}


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

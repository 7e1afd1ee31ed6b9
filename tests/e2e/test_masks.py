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
from tests.e2e.raw import Answer, get, post
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


def test_answered_results_are_masked_and_no_summary_is_made(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(compaction=NOTHING_RECALLED).url, chat(agent(7), tools=[TOOL]))
    assert not simulator.summaries
    assert context(answered)["actions"] == ["masked"]
    assert answered.header("x-context-status") == "trimmed"
    assert answered.header("x-context-actions") == "masked"
    payload = sent(simulator.chats[0])
    assert [message["role"] for message in payload] == [message["role"] for message in agent(7)]
    whole = [message for message in payload if message["role"] == "tool" and message in agent(7)]
    assert whole == [message for message in agent(7) if message["role"] == "tool"][-len(whole) :]
    assert len(whole) == 3  # As many of the latest as the target leaves room for.
    for before, after in zip(agent(7), payload, strict=True):
        if before["role"] == "tool" and before not in whole:
            assert after["tool_call_id"] == before["tool_call_id"]
            assert after["content"].startswith(before["content"][:210])
            assert after["content"].endswith(before["content"][-90:])
            assert str(len(before["content"])) in after["content"]
        else:
            assert after == before


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


def test_a_result_that_is_not_answered_yet_stays_whole(simulator: Simulator, steno: StartSteno) -> None:
    talk = steps(7)[:-1]
    post(steno().url, chat(talk, tools=[TOOL]))
    payload = sent(simulator.chats[0])
    assert payload[-1] == talk[-1]
    assert payload[2] != talk[2]


def test_named_tools_are_left_alone(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(
        steno(compaction={**NOTHING_RECALLED, "mask": {"deny": ["read_*"]}}).url, chat(agent(7), tools=[TOOL])
    )
    assert context(answered)["actions"] == ["summarized"]
    assert simulator.summaries


def test_masking_can_be_switched_off(steno: StartSteno) -> None:
    answered = post(
        steno(compaction={**NOTHING_RECALLED, "mask": {"enabled": False}}).url, chat(agent(7), tools=[TOOL])
    )
    assert context(answered)["actions"] == ["summarized"]


def test_what_is_masked_can_be_read_and_planned(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=NOTHING_RECALLED)
    body = chat(agent(7), tools=[TOOL], conversation_id="one")
    planned = json.loads(post(proxy.url, body, target="/context/plan").body)
    assert planned["context"]["actions"] == ["masked"]
    assert planned["summaries_to_make"] == 0
    post(proxy.url, body)
    parts = json.loads(get(proxy.url, "/context/conversations/one/coverage").body)["parts"]
    assert parts == planned["parts"]
    assert [part["first_index"] for part in parts if part["kind"] == "masked"] == [2, 6, 10, 14]
    assert len(simulator.chats) == 1


def test_another_tenants_masks_are_not_used(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    post(proxy.url, chat(agent(7), tools=[TOOL]))
    longer = [*agent(7), {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And?"}]
    post(proxy.url, chat(longer, tools=[TOOL]), b"authorization: Bearer sk-other")
    mine, theirs = (sum(m["role"] == "tool" and "shortened" in m["content"] for m in sent(c)) for c in simulator.chats)
    assert (mine, theirs) == (4, 4)
    assert len(simulator.summaries) == 0

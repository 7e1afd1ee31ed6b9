"""The simulator's Messages and Responses over a real socket: frames, usage and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from app.http.loopback import RunningServer
from lab.simulator import ScriptedCall, Simulator
from tests.e2e.conftest import TABLES

USER: Any = {"role": "user", "content": "What is in my cart?"}
LOOK_UP = ScriptedCall(name="look_up", arguments='{"name":"cart"}')
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any", tables=TABLES)


@pytest.fixture
def server(simulator: Simulator) -> Iterator[RunningServer]:
    with simulator.serve() as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url) as client:
        yield client


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


def message(http: httpx2.Client, *messages: Any, **more: Any) -> httpx2.Response:
    body = {"model": "claude-x", "max_tokens": 1_000, "messages": list(messages) or [USER], **more}
    return http.post("/v1/messages", json=body)


def response(http: httpx2.Client, *items: Any, **more: Any) -> httpx2.Response:
    return http.post("/v1/responses", json={"model": "gpt-x", "input": list(items) or "Hello", **more})


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """Each frame's data; its name is its type."""
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    read = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in read]
    return read


def kinds(answer: httpx2.Response) -> list[str]:
    """Types of the events, in order; neighbours of one type once."""
    found = [event["type"] for event in events(answer)]
    return [kind for index, kind in enumerate(found) if index == 0 or found[index - 1] != kind]


# Messages


def test_messages_stream_has_every_event_in_its_place(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(text="Let me see.", tool_calls=[LOOK_UP])
    answer = message(http, stream=True, tools=[TOOL])
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds(answer) == ["message_start", block[0], "ping", *block[1:], *block, "message_delta", "message_stop"]
    called = [event["content_block"] for event in events(answer) if event["type"] == "content_block_start"][1]
    assert called == {"type": "tool_use", "id": "toolu_0000010", "name": "look_up", "input": {}}
    written = "".join(event["delta"].get("partial_json", "") for event in events(answer) if "delta" in event)
    assert json.loads(written) == {"name": "cart"}
    delta = events(answer)[-2]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_messages_refuses_what_is_too_long_in_its_own_words(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.window = 100
    long = {"role": "user", "content": "word " * 200}
    refused = message(http, long)
    assert refused.status_code == 400
    body = refused.json()
    tokens = simulator.log[-1].prompt_tokens
    assert body["error"]["message"] == f"prompt is too long: {tokens} tokens > 100 maximum"
    assert body["request_id"] == refused.headers["request-id"]
    old = message(http, USER, model="claude-3-haiku").json()["error"]["message"]
    assert old.startswith("input length and `max_tokens` exceed context limit: 13 + 1000 > 100, decrease")


# Responses


def test_responses_stream_has_every_event_in_its_place(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(thinking="Hm.", text="Let me see.", tool_calls=[LOOK_UP])
    answer = response(http, stream=True, reasoning={"summary": "auto"})
    item = ["response.output_item.added", "response.output_item.done"]
    thought = "response.reasoning_summary"
    assert kinds(answer) == [
        "response.created",
        "response.in_progress",
        item[0],
        *(f"{thought}_{each}" for each in ("part.added", "text.delta", "text.done", "part.done")),
        item[1],
        item[0],
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        item[1],
        item[0],
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        item[1],
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events(answer)] == list(range(len(events(answer))))
    assert {event["output_index"] for event in events(answer) if "output_index" in event} == {0, 1, 2}


@pytest.mark.parametrize("half", ["\ud83d", "b\ude00", "\ud83d\U0001f600"])
def test_half_of_a_surrogate_pair_is_no_json_or_one_odd_character(
    simulator: Simulator, http: httpx2.Client, half: str
) -> None:
    asked = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": f"a{half}"}]}
    body = json.dumps(asked)
    assert http.post("/v1/messages", content=body.encode()).status_code == 400
    simulator.lenient_text = True
    assert http.post("/v1/messages", content=body.encode()).status_code == 200
    read = simulator.chats[-1].payload["messages"][0]["content"]
    assert read in ("a\ufffd", "ab\ufffd", "a\ufffd\U0001f600")

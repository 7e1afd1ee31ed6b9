"""Google's SDK before the simulator: answers whole, streamed and as a chat, signatures kept, errors in their shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types

from app.http.loopback import RunningServer
from lab.simulator import ScriptedCall, Simulator

MODEL = "gemini-3.6-flash"
PATH = f"/v1beta/models/{MODEL}"
LOOK_UP = ScriptedCall(name="look_up", arguments='{"name":"cart"}')
ASKED: Any = {"contents": [{"role": "user", "parts": [{"text": "What is in my cart?"}]}]}


def look_up(name: str) -> str:
    """Look something up."""
    return f"found {name}"


CONFIG = types.GenerateContentConfig(system_instruction="Be brief.", tools=[look_up])


@pytest.fixture
def client(provider: RunningServer) -> Iterator[genai.Client]:
    with genai.Client(api_key="test", http_options=types.HttpOptions(base_url=provider.url)) as client:
        yield client


@pytest.fixture
def http(provider: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=provider.url) as client:
        yield client


def test_an_answer_comes_whole_and_in_chunks_of_which_the_last_one_counts(
    simulator: Simulator, client: genai.Client
) -> None:
    whole = client.models.generate_content(model=MODEL, contents="Hello there")
    chunks = list(client.models.generate_content_stream(model=MODEL, contents="Hello there"))
    assert whole.text == "".join(chunk.text or "" for chunk in chunks) == simulator.chats[-1].text
    assert [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates] == [None, None, "STOP"]
    prompts = [chunk.usage_metadata.prompt_token_count for chunk in chunks if chunk.usage_metadata]
    assert whole.usage_metadata is not None
    assert whole.usage_metadata.prompt_token_count == prompts[-1] == simulator.chats[0].prompt_tokens != prompts[0]


def test_without_sse_a_stream_is_one_array_of_the_same_chunks(http: httpx2.Client) -> None:
    streamed = http.post(f"{PATH}:streamGenerateContent?alt=sse", json=ASKED)
    events = streamed.text.removesuffix("\r\n\r\n").split("\r\n\r\n")
    array = http.post(f"{PATH}:streamGenerateContent", json=ASKED)
    assert all(event.startswith("data: {") for event in events)
    assert len(array.json()) == len(events) == 3
    assert (streamed.headers["content-type"], array.headers["content-type"]) == (
        "text/event-stream",
        "application/json",
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_goes_through_calls_with_signatures(simulator: Simulator, client: genai.Client, stream: bool) -> None:
    chat = client.chats.create(model=MODEL, config=CONFIG)
    for _ in range(2):
        simulator.next_chat(tool_calls=[LOOK_UP, LOOK_UP])
        simulator.next_chat(tool_calls=[LOOK_UP])
        said = [part.text for part in chat.send_message_stream("Go.")] if stream else [chat.send_message("Go.").text]
        assert "".join(filter(None, said)) == simulator.chats[-1].text
    assert [record.status for record in simulator.chats] == [200] * 6
    assert simulator.chats[-1].body.count(b'"thoughtSignature"') >= 4


def test_thoughts_spend_the_cap_and_stay_in_the_prompt_until_the_users_next_words(
    simulator: Simulator, client: genai.Client
) -> None:
    config = types.GenerateContentConfig(max_output_tokens=5)
    capped = client.models.generate_content(model=MODEL, contents="Hello", config=config)
    assert capped.candidates is not None
    assert (capped.text, capped.candidates[0].finish_reason) == (None, "MAX_TOKENS")
    chat = client.chats.create(model=MODEL, config=CONFIG)
    simulator.next_chat(tool_calls=[LOOK_UP], thinking="word " * 500)
    chat.send_message("Go.")
    chat.send_message("Go on.")
    within, after = (record.prompt_tokens or 0 for record in simulator.chats[-2:])
    assert within > 500 > after


def test_what_is_too_long_is_refused_in_its_own_words_before_a_stream_too(
    simulator: Simulator, client: genai.Client, http: httpx2.Client
) -> None:
    simulator.window = 100
    with pytest.raises(errors.ClientError) as caught:
        list(client.models.generate_content_stream(model=MODEL, contents="word " * 200))
    tokens = simulator.chats[-1].prompt_tokens
    message = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed (100)."
    assert (caught.value.code, caught.value.status, caught.value.message) == (400, "INVALID_ARGUMENT", message)
    asked = {"contents": [{"parts": [{"text": "word " * 200}]}]}
    error = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    assert http.post(f"{PATH}:generateContent", json=asked).json() == error
    assert http.post(f"{PATH}:streamGenerateContent", json=asked).json() == [error]


def test_an_exhausted_quota_names_its_pause_in_the_body_alone(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(status=429, retry_after=7)
    refused = http.post(f"{PATH}:generateContent", json=ASKED)
    error = refused.json()["error"]
    assert (error["status"], error["details"][1]["retryDelay"]) == ("RESOURCE_EXHAUSTED", "7s")
    assert "retry-after" not in refused.headers


def test_a_models_window_and_what_a_request_would_cost_are_told(
    simulator: Simulator, client: genai.Client, http: httpx2.Client
) -> None:
    assert client.models.get(model=MODEL).input_token_limit == simulator.window
    counted = client.models.count_tokens(model=MODEL, contents="Hello there")
    asked = client.models.generate_content(model=MODEL, contents="Hello there")
    assert asked.usage_metadata is not None
    assert counted.total_tokens == asked.usage_metadata.prompt_token_count
    whole = {"generateContentRequest": {"model": f"models/{MODEL}", **ASKED, "systemInstruction": ASKED["contents"][0]}}
    counts = [http.post(f"{PATH}:countTokens", content=json.dumps(body)).json() for body in (ASKED, whole)]
    assert counts[1]["totalTokens"] > counts[0]["totalTokens"]


def test_what_a_recent_prompt_began_with_is_counted_as_cached(client: genai.Client) -> None:
    long = "word " * 2_000
    chat = client.chats.create(model=MODEL)
    usages = [chat.send_message(long).usage_metadata for _ in range(2)]
    first, second = (usage.cached_content_token_count if usage else None for usage in usages)
    assert first is None
    assert second is not None
    assert second > 2_000

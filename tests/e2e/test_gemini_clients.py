"""Google's SDK before the simulator, and through Steno: answers whole, streamed and as a chat, signatures, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors, types

from app.http.loopback import RunningServer
from lab.simulator import Fault, ScriptedCall, Simulator
from tests.e2e.compactions import compactions, statuses
from tests.e2e.running import StartSteno

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


# Through Steno

FILLER = "the clerk reads aloud what stands in the order and the customer explains why it came too late to the door "
COMPACTIONS = 5


@pytest.fixture
def through(steno: StartSteno, provider: RunningServer) -> Iterator[genai.Client]:
    url = steno(upstream={"base_url": provider.url, "formats": ["gemini"]}).url
    with genai.Client(api_key="test", http_options=types.HttpOptions(base_url=url)) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_goes_through_five_compactions(simulator: Simulator, through: genai.Client, stream: bool) -> None:
    """With calls and signatures, which the provider refuses where one is missing, changed or of another call."""
    chat = through.chats.create(model=MODEL, config=CONFIG)
    for number in count(1):
        question = f"Question {number}: where is ORD-{number:04d}? {FILLER * 40}"
        if number % 2:
            simulator.next_chat(tool_calls=[LOOK_UP, LOOK_UP])
        said = list(chat.send_message_stream(question)) if stream else [chat.send_message(question)]
        assert "".join(part.text or "" for part in said) == simulator.chats[-1].text
        asked = [part["text"] for content in simulator.chats[-1].payload["contents"] for part in texts_of(content)]
        assert question in asked
        if compactions(simulator.chats) >= COMPACTIONS:
            break
    assert statuses(simulator) == {200}
    kept = [part.text for content in chat.get_history() if content.role == "user" for part in content.parts or ()]
    assert len(list(filter(None, kept))) == number, "the client's history has every question"
    assert all(record.header("x-goog-api-key") == "test" for record in simulator.log)


def texts_of(content: Any) -> list[Any]:
    return [part for part in content["parts"] if "text" in part]


def test_headers_and_raw_bodies_say_what_was_done(simulator: Simulator, through: genai.Client) -> None:
    """The SDK strips members that it does not know."""
    history = [
        types.Content(role=role, parts=[types.Part(text=f"{number}: {FILLER * 60}")])
        for number in range(8)
        for role in ("user", "model")
    ]
    answer = through.models.generate_content(model=MODEL, contents=[*history, types.UserContent("Go on.")])
    assert answer.sdk_http_response is not None
    assert answer.sdk_http_response.headers is not None
    assert answer.sdk_http_response.headers["x-context-status"] == "summarized"
    assert compactions(simulator.chats) == 1


@pytest.mark.parametrize("shape", [None, "start"])
def test_a_chat_keeps_its_history_where_news_of_a_summary_come_first(
    simulator: Simulator, through: genai.Client, shape: str | None
) -> None:
    simulator.summary_default = Fault(delay=1.5)
    headers = {"x-context-events": shape} if shape else {}
    config = types.GenerateContentConfig(http_options=types.HttpOptions(headers=headers))
    roles = ("user", "model") * 8
    history: list[Any] = [types.Content(role=role, parts=[types.Part(text=FILLER * 60)]) for role in roles]
    chat = through.chats.create(model=MODEL, config=config, history=history)
    chunks = list(chat.send_message_stream("Go on."))
    assert len(simulator.summaries) > 0
    assert "".join(chunk.text or "" for chunk in chunks) == simulator.chats[-1].text
    # The SDK keeps a content for each chunk.
    parts = [part.text for content in chat.get_history()[len(history) :] for part in content.parts or ()]
    assert "".join(filter(None, parts)) == f"Go on.{simulator.chats[-1].text}"

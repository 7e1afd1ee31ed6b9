"""Gemini through Steno: Google's SDK whole, streamed and as a chat through compactions, arrays, counts, other paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import types

from lab.simulator import Fault, ScriptedCall, Simulator
from tests.e2e.compactions import statuses
from tests.e2e.running import StartSteno, Steno

MODEL = "gemini-3.6-flash"
PATH = f"/v1beta/models/{MODEL}"
ASKED = [f"Where is order ORD-{number:04d}? {'The customer waits for it at the gate. ' * 40}" for number in range(14)]
LONG: Any = [
    {"role": role, "parts": [{"text": f"{text} {'Nobody has seen it since. ' * 40}"}]}
    for text in ASKED
    for role in ("user", "model")
][:-1]
LOOK_UP = ScriptedCall(name="look_up", arguments='{"name":"cart"}')


def look_up(name: str) -> str:
    """Look something up."""
    return f"found {name} " + "on the shelf " * 100


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(compaction={"background": {"enabled": False}})


@pytest.fixture
def client(running: Steno) -> Iterator[genai.Client]:
    with genai.Client(api_key="test", http_options=types.HttpOptions(base_url=running.url)) as client:
        yield client


def post(running: Steno, method: str, sent: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(
        f"{running.url}{PATH}:{method}", json=sent, headers={"x-goog-api-key": "test", **headers}, timeout=60
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_keeps_its_turns_and_signatures_through_compactions(
    simulator: Simulator, client: genai.Client, stream: bool
) -> None:
    config = types.GenerateContentConfig(system_instruction="Be brief.", tools=[look_up])
    chat = client.chats.create(model=MODEL, config=config)
    for text in ASKED:
        simulator.next_chat(tool_calls=[LOOK_UP, LOOK_UP])
        said = [part.text for part in chat.send_message_stream(text)] if stream else [chat.send_message(text).text]
        assert "".join(filter(None, said)) == simulator.chats[-1].text
    assert len(simulator.summaries) > 1
    assert statuses(simulator) == {200}
    texts = [part.text for content in chat.get_history() for part in content.parts or ()]
    asked = [text for text in texts if text and text in ASKED]
    assert asked == ASKED, "the client's own history is whole"
    assert {record.path.rpartition("/")[2] for record in simulator.summaries} == {f"{MODEL}:streamGenerateContent"}


def test_a_chat_keeps_its_history_where_news_of_a_summary_come_first(
    simulator: Simulator, client: genai.Client
) -> None:
    simulator.summary_default = Fault(delay=0.1)
    history: list[Any] = [types.Content.model_validate(each) for each in LONG[:-1]]
    chat = client.chats.create(model=MODEL, history=history)
    chunks = list(chat.send_message_stream("Go on."))
    assert len(simulator.summaries) > 0
    assert "".join(chunk.text or "" for chunk in chunks) == simulator.chats[-1].text
    # The SDK keeps a content for each chunk.
    parts = [part.text for content in chat.get_history()[len(history) :] for part in content.parts or ()]
    assert "".join(filter(None, parts)) == f"Go on.{simulator.chats[-1].text}"


def test_counts_and_other_paths_pass_and_the_key_is_in_no_log(
    running: Steno, client: genai.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (client.models.count_tokens(model=MODEL, contents="Hi there").total_tokens or 0) > 0
    assert client.models.get(model=MODEL).name == f"models/{MODEL}"
    keyed = httpx2.post(f"{running.url}{PATH}:generateContent?key=the-key-itself", json={"contents": LONG}, timeout=60)
    assert (keyed.status_code, keyed.headers["x-context-status"]) == (200, "summarized")
    assert "the-key-itself" not in "".join(capsys.readouterr())


def test_a_plan_names_its_model_in_the_body_and_a_compaction_gives_contents_back(
    simulator: Simulator, running: Steno
) -> None:
    asked = {"format": "gemini", "model": MODEL, "contents": LONG}
    headers = {"x-goog-api-key": "test"}
    plan = httpx2.post(f"{running.url}/context/plan", json=asked, headers=headers, timeout=60)
    assert (plan.status_code, plan.json()["context"]["status"]) == (200, "summarized")
    made = httpx2.post(f"{running.url}/context/compact", json=asked, headers=headers, timeout=60).json()
    assert (made["format"], made["messages"][-1]) == ("gemini", LONG[-1])
    assert {record.path for record in simulator.summaries} == {f"{PATH}:streamGenerateContent"}


def test_the_name_of_a_model_is_sent_on_escaped(running: Steno) -> None:
    """Decoded, a line end in it would end the request's first line."""
    answered = httpx2.post(
        f"{running.url}/v1beta/models/a%0d%0ab%C2%B3:generateContent",
        json={"contents": LONG[-1:]},
        headers={"x-goog-api-key": "test"},
        timeout=60,
    )
    assert answered.status_code in (200, 404)

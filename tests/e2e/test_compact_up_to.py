"""Compaction on demand up to a place of one's own choice, and of stored messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno, Steno

ONE = "/context/conversations/one"
COMPACT = f"{ONE}/compact"
RULES = {"role": "system", "content": "Be brief."}
HISTORY: Any = [RULES, *turns(15)]
NAMED = {"x-conversation-id": "one"}


def shown(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json


def told(answered: Answer) -> tuple[int, str, str | None, str]:
    error = answered.json["error"]
    return answered.status, error["code"], error["param"], error["message"]


def started(steno: StartSteno, **sections: Any) -> Steno:
    """With a conversation of eight turns, far under its trigger."""
    proxy = steno(**sections)
    post(proxy.url, chat([RULES, *turns(8)], conversation_id="one"))
    return proxy


def compact(proxy: Steno, **members: Any) -> Answer:
    return post(proxy.url, {"model": MODEL, "messages": [RULES, *turns(8)], **members}, target=COMPACT)


# Of stored messages


def speak(proxy: Steno, format_: str) -> None:
    """The official client of each format, with instructions and eight turns."""
    if format_ == "messages":
        url = proxy.url
        client: Any = anthropic.Anthropic(base_url=url, api_key="sk-test", max_retries=0, default_headers=NAMED)
        client.messages.create(model="claude-x", max_tokens=50, system="Be brief.", messages=turns(8))
        return
    sdk: Any = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-test", max_retries=0, default_headers=NAMED)
    history: Any = turns(8)
    if format_ == "responses":
        sdk.responses.create(model=MODEL, instructions="Be brief.", input=history, store=False)
    else:
        sdk.chat.completions.create(model=MODEL, messages=[RULES, *history])


@pytest.mark.parametrize("format_", ["chat_completions", "messages", "responses"])
def test_without_messages_the_stored_ones_are_compacted(simulator: Simulator, steno: StartSteno, format_: str) -> None:
    """As the client sends them: the summary fits its next request, which needs no other."""
    proxy = steno(storage={"messages": True})
    speak(proxy, format_)
    headers = (b"x-api-key: sk-test",) if format_ == "messages" else ()
    done = shown(post(proxy.url, {"through": 7, "instructions": "every order"}, *headers, target=COMPACT))
    assert (done["format"], done["through"]["index"]) == (format_, 7)
    [made] = done["summaries"]
    assert (made["first_index"], made["last_index"]) == (0, 7)
    assert "every order" in json.dumps(simulator.summaries[0].payload)
    listed = shown(get(proxy.url, f"{ONE}/summaries"))["data"]
    assert [each["id"] for each in listed] == [made["id"]]
    plain = shown(post(proxy.url, b"", *headers, target=COMPACT))
    assert plain["summaries"]
    assert len(shown(get(proxy.url, f"{ONE}/messages?limit=100"))["data"]) == len(turns(8)) + 1


def test_a_summary_of_stored_messages_serves_the_clients_own_request(steno: StartSteno) -> None:
    proxy = started(steno, storage={"messages": True})
    [made] = shown(post(proxy.url, {"through": 11}, target=COMPACT))["summaries"]
    said = post(proxy.url, chat(HISTORY, conversation_id="one"))
    assert made["id"] in said.json["context"]["chunks"]


def test_messages_that_are_not_stored_are_to_be_sent(steno: StartSteno, tmp_path: Path) -> None:
    """Such as those of a conversation from before messages were kept."""
    url = f"sqlite:///{tmp_path}/steno.db"
    shown(get(started(steno, storage={"url": url}).url, ONE))
    proxy = steno(storage={"url": url, "messages": True})
    status, code, param, message = told(post(proxy.url, b"{}", target=COMPACT))
    assert (status, code, param) == (400, "invalid_request", "messages")
    assert "are not stored as they were sent" in message
    assert shown(compact(proxy, through=5))["summaries"]

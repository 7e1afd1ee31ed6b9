"""Compaction on demand up to a place of one's own choice, and of the messages that the archive has."""

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


def test_the_summary_ends_with_the_message_that_was_asked_for(simulator: Simulator, steno: StartSteno) -> None:
    proxy = started(steno)
    done = shown(compact(proxy, through=5))
    assert done["through"] == {"index": 5, "turn": 3}
    [made] = done["summaries"]
    assert (made["first_index"], made["last_index"]) == (0, 5)
    assert done["messages"][2:] == turns(8)[6:]
    assert (done["context_status"], done["context"]["chunks"]) == ("summarized", [made["id"]])
    assert len(simulator.summaries) == 1


def test_what_cannot_be_cut_there_ends_at_the_nearest_place_before(steno: StartSteno) -> None:
    """A question is not parted from its answer; the answer says where the summary ends."""
    proxy = started(steno)
    assert shown(compact(proxy, through=6))["through"]["index"] in (5, 6)
    last = shown(compact(proxy, through=len(turns(8)) - 1))
    assert last["through"]["index"] < len(turns(8)) - 1
    assert last["messages"][-1] == turns(8)[-1]


def test_a_turn_says_the_same(steno: StartSteno) -> None:
    proxy = started(steno)
    assert shown(compact(proxy, through_turn=3))["through"] == {"index": 5, "turn": 3}


def test_a_second_one_goes_on_where_the_first_ended_and_a_third_finds_both(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = started(steno)
    first = shown(compact(proxy, through=5))["context"]["chunks"]
    second = shown(compact(proxy, through=9))
    assert second["context"]["chunks"][:1] == first
    assert second["summaries"][0]["first_index"] == 6
    assert shown(compact(proxy, through=9))["summaries"] == []
    assert shown(compact(proxy, through=5))["context"]["chunks"] == first
    assert len(simulator.summaries) == 2


def test_the_summary_serves_the_next_request_that_is_due(steno: StartSteno) -> None:
    proxy = started(steno)
    [made] = shown(compact(proxy, through=11))["summaries"]
    said = post(proxy.url, chat(HISTORY, conversation_id="one"))
    assert made["id"] in said.json["context"]["chunks"]


@pytest.mark.parametrize(
    ("members", "param", "words"),
    [
        ({"through": 99}, "through", "has 16 messages|has 15 messages|has 17 messages"),
        ({"through": -1}, "through", "whole number from 0"),
        ({"through": True}, "through", "whole number from 0"),
        ({"through": "3"}, "through", "whole number from 0"),
        ({"through_turn": 0}, "through_turn", "whole number from 1"),
        ({"through_turn": 40}, "through_turn", "turns; through_turn is 40"),
        ({"through": 3, "through_turn": 2}, "through", "not both"),
    ],
)
def test_a_place_that_is_none_is_refused_with_the_numbers(
    steno: StartSteno, members: Any, param: str, words: str
) -> None:
    status, code, found, message = told(compact(started(steno), **members))
    assert (status, code, found) == (400, "invalid_request", param)
    assert any(each in message for each in words.split("|"))


def test_where_nothing_can_be_cut_it_says_where_the_first_summary_could_end(steno: StartSteno) -> None:
    proxy = started(steno)
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    unit: Any = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a shelf of books"},
    ]
    status, code, param, message = told(compact(proxy, messages=[*unit, *turns(3)], through=0))
    assert (status, code, param) == (400, "nothing_to_compact", "through")
    assert "the first one can end with message 1" in message


def test_a_summary_that_cannot_be_made_leaves_the_history_as_it_is(simulator: Simulator, steno: StartSteno) -> None:
    for _ in range(4):
        simulator.next_summary(text="")
    done = shown(compact(started(steno), through=5))
    assert (done["context_status"], done["summaries"], done["through"]) == ("full", [], None)
    assert done["context"]["reason"]


# From the archive


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
def test_without_messages_those_of_the_archive_are_compacted(
    simulator: Simulator, steno: StartSteno, format_: str
) -> None:
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


def test_what_the_archive_gave_serves_the_clients_own_request(steno: StartSteno) -> None:
    proxy = started(steno, storage={"messages": True})
    [made] = shown(post(proxy.url, {"through": 11}, target=COMPACT))["summaries"]
    said = post(proxy.url, chat(HISTORY, conversation_id="one"))
    assert made["id"] in said.json["context"]["chunks"]


def test_what_the_archive_does_not_have_is_to_be_sent(steno: StartSteno, tmp_path: Path) -> None:
    """Such as a conversation from before there was one."""
    url = f"sqlite:///{tmp_path}/steno.db"
    shown(get(started(steno, storage={"url": url}).url, ONE))
    proxy = steno(storage={"url": url, "messages": True})
    status, code, param, message = told(post(proxy.url, b"{}", target=COMPACT))
    assert (status, code, param) == (400, "invalid_request", "messages")
    assert "does not have all messages" in message
    assert shown(compact(proxy, through=5))["summaries"]

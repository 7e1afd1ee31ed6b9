"""Compaction as a service and on demand, search, and who the caller is."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, turns, used
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno

COMPACT = "/context/compact"
FORCED = "/context/conversations/one/compact"
OTHER_KEY = b"authorization: Bearer sk-other"


def shown(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json


def error(answered: Answer) -> Any:
    return answered.status, answered.json["error"]["param"], answered.json["error"]["message"]


def as_other(url: str, body: bytes | None, method: str, target: str) -> Answer:
    usual = (b"content-type: application/json", OTHER_KEY)
    return send(url, request_bytes(body, *usual, method=method, target=target, usual=False))


# As a service


def test_a_gateway_gets_what_the_provider_would_be_sent(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    messages = [{"role": "system", "content": "Be brief."}, *turns(15)]
    compacted = shown(post(url, chat(messages, conversation_id="one", stream=True), target=COMPACT))
    assert not simulator.chats
    assert len(simulator.summaries) == 1
    assert simulator.summaries[0].header("authorization") == "Bearer sk-test"
    assert (compacted["object"], compacted["model"]) == ("compaction", MODEL)
    assert compacted["context_status"] == compacted["context"]["status"] == "summarized"
    post(url, chat(messages))
    assert len(simulator.summaries) == 1
    assert compacted["messages"] == simulator.chats[0].payload["messages"]
    assert compacted["messages"][0] == messages[0]
    assert len(compacted["messages"]) < len(messages)


def test_under_the_trigger_a_gateway_gets_its_own_messages_to_the_byte(simulator: Simulator, steno: StartSteno) -> None:
    raw = b'[{"role" : "user","content":"\\u00e9 1.50"}]'
    answered = post(steno().url, b'{"model":"gpt-4o","messages":%b,"conversation_id":"x"}' % raw, target=COMPACT)
    assert shown(answered)["context_status"] == "full"
    assert b'"messages":' + raw in answered.body
    assert not simulator.chats


def test_the_next_request_goes_on_where_the_gateway_was(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    name = shown(post(url, chat(turns(15)), target=COMPACT))["context"]["conversation_id"]
    longer = [*turns(15), {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Well?"}]
    assert shown(post(url, chat(longer), target=COMPACT))["context"]["conversation_id"] == name
    conversation = shown(get(url, f"/context/conversations/{name}"))
    assert (conversation["requests"], conversation["context_status"]) == (2, "summarized")
    assert len(simulator.summaries) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "no chat completions request"),
        (b"[]", "no chat completions request"),
        (b'{"model": "gpt-4o"}', "has no messages"),
        (b'{"messages": []}', "names no model"),
        (b'{"model": "gpt-4o", "messages": [3]}', "no object"),
    ],
)
def test_a_body_that_is_no_chat_request_is_refused(steno: StartSteno, body: bytes, told: str) -> None:
    answered = post(steno().url, body, target=COMPACT)
    assert answered.status == 400
    assert told in answered.json["error"]["message"]


def test_nothing_to_compact_is_no_error(steno: StartSteno) -> None:
    compacted = shown(post(steno().url, {"model": MODEL, "messages": []}, target=COMPACT))
    assert (compacted["messages"], compacted["context_status"]) == ([], "full")


# On demand


def test_a_conversation_is_compacted_long_before_its_trigger(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    messages = turns(8)
    assert post(url, chat(messages, conversation_id="one")).json["context_status"] == "full"
    forced = shown(post(url, {"model": MODEL, "messages": messages}, target=FORCED))
    assert forced["context_status"] == "summarized"
    assert forced["context"]["conversation_id"] == "one"
    assert forced["context"]["tokens"]["saved"] > 0.3 * forced["context"]["tokens"]["estimated"]
    [made] = forced["summaries"]
    assert made["conversation_id"] == "one"
    assert forced["context"]["chunks"] == [made["id"]]
    assert made == shown(get(url, f"/context/conversations/one/summaries/{made['id']}"))
    assert len(simulator.summaries) == len(simulator.chats) == 1
    assert forced["messages"][-1] == messages[-1]


def test_a_second_compaction_goes_on_where_the_first_ended(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(8), conversation_id="one"))
    [first] = shown(post(url, chat(turns(8)), target=FORCED))["summaries"]
    again = shown(post(url, chat(turns(14)), target=FORCED))
    [second] = again["summaries"]
    assert second["first_index"] == first["last_index"] + 1
    assert again["context"]["chunks"] == [first["id"], second["id"]]


def test_what_cannot_be_made_smaller_stays_with_the_reason(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    forced = shown(post(url, chat(), target=FORCED))
    assert (forced["context_status"], forced["summaries"]) == ("full", [])
    assert forced["context"]["reason"]
    assert not simulator.summaries


def test_instructions_are_the_summarys_focus(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(8), conversation_id="one"))
    shown(post(url, chat(turns(8), instructions="every price"), target=FORCED))
    told = simulator.summaries[0].payload["messages"]
    assert all("every price" in message["content"] for message in told)
    focused = shown(post(url, chat(turns(15), context={"instructions": "every price"}), target=COMPACT))
    assert len(focused["context"]["chunks"]) == len(simulator.summaries) == 1
    status, param, _ = error(post(url, chat(turns(8), instructions=3), target=FORCED))
    assert (status, param) == (400, "instructions")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"model": "gpt-4o"}', b'{"model": "gpt-4o", "messages": []}'])
def test_without_messages_it_is_told_what_to_send_and_why(steno: StartSteno, body: bytes) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    status, param, message = error(post(url, body, target=FORCED))
    assert (status, param) == (400, "messages")
    assert "does not keep messages" in message
    assert '"messages": [...]' in message


def test_only_what_is_known_is_compacted(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(8), conversation_id="one"))
    assert as_other(url, chat(turns(8)), "POST", FORCED).status == 404
    assert post(url, chat(turns(8)), target=FORCED.replace("one", "two")).status == 404
    assert not simulator.summaries


def test_the_path_names_the_conversation_whatever_else_does(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(8), conversation_id="one"))
    body = chat(turns(8), conversation_id="two")
    forced = shown(post(url, body, b"x-context-conversation-id: three", b"x-session-id: four", target=FORCED))
    assert forced["context"]["conversation_id"] == "one"
    assert {made["conversation_id"] for made in forced["summaries"]} == {"one"}


def test_tool_results_are_summarised_where_masks_would_do(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    talk: list[Any] = []
    for step in range(6):
        talk += [
            {"role": "user", "content": f"Read report {step}."},
            *used(f"c{step}", f"row {step} " * 100),
            {"role": "assistant", "content": f"Report {step} is fine."},
        ]
    talk.append({"role": "user", "content": "And?"})
    post(url, chat(talk, conversation_id="one"))
    forced = shown(post(url, chat(talk), target=FORCED))
    assert forced["context"]["actions"] == ["summarized"]
    assert len(simulator.summaries) == 1


def test_an_operator_who_forbids_compaction_is_obeyed(simulator: Simulator, steno: StartSteno) -> None:
    url = steno(compaction={"enabled": False}).url
    post(url, chat(turns(8), conversation_id="one"))
    forced = shown(post(url, chat(turns(8)), target=FORCED))
    assert (forced["context_status"], forced["context"]["reason"]) == ("full", "compaction_off")
    assert not simulator.summaries


# Search


def search(url: str, query: str) -> Answer:
    return get(url, f"/context/search?{query}")


def test_summaries_are_found_by_their_words(steno: StartSteno) -> None:
    url = steno().url
    for name, first in (("one", 1), ("two", 101)):
        post(url, chat(turns(15, first=first), conversation_id=name))
    found = shown(search(url, "q=order+ord-0001"))
    assert [summary["conversation_id"] for summary in found["data"]] == ["one"]
    both = shown(search(url, "q=QUESTION"))
    assert [summary["conversation_id"] for summary in both["data"]] == ["two", "one"]
    assert both["data"][0] == shown(get(url, "/context/conversations/two/summaries"))["data"][0]
    first = shown(search(url, "q=question&limit=1"))
    assert first["has_more"]
    rest = shown(search(url, f"q=question&after={first['last_id']}"))
    assert [*first["data"], *rest["data"]] == both["data"]
    assert shown(search(url, "q=ord_0001")) == found
    assert shown(search(url, "q=rd_0001"))["data"] == []


def test_nobody_finds_anothers_summaries(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(15), conversation_id="one"))
    theirs = as_other(url, None, "GET", "/context/search?q=question")
    assert shown(theirs)["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "q"),
        ("q=", "q"),
        ("q=%20%09", "q"),
        ("q=%00", "q"),
        ("q=%5C%25--", "q"),
        (f"q={'+'.join(str(number) for number in range(17))}", "q"),
        (f"q={'a' * 201}", "q"),
        ("q=a&limit=101", "limit"),
        ("q=a&after=b", "after"),
    ],
)
def test_a_search_for_nothing_or_too_much_is_refused(steno: StartSteno, query: str, param: str) -> None:
    status, named, _ = error(search(steno().url, query))
    assert (status, named) == (400, param)


def test_too_many_words_are_told_with_their_number(steno: StartSteno) -> None:
    _, _, message = error(search(steno().url, "q=" + "+".join(f"w{number}" for number in range(17))))
    assert message == "q holds 17 different words; at most 16 are looked for."


@pytest.mark.parametrize("query", ["x%00", "x\\", "x'; --", 'x" OR y', " ".join("abcdefghij" * 10)[:200], "ä" * 200])
def test_any_words_can_be_looked_for(steno: StartSteno, query: str) -> None:
    assert shown(search(steno().url, f"q={quote(query)}"))["data"] == []


# Who the caller is


def test_a_tenant_has_an_id_of_its_own_that_is_not_its_key(steno: StartSteno) -> None:
    proxy = steno()
    ours, theirs = shown(get(proxy.url, "/context/tenant")), shown(as_other(proxy.url, None, "GET", "/context/tenant"))
    assert ours == shown(get(proxy.url, "/context/tenant"))
    assert (ours["object"], theirs["object"]) == ("tenant", "tenant")
    assert ours["id"] != theirs["id"]
    assert "sk-" not in json.dumps([ours, theirs])
    assert ours["id"] == proxy.services.identity.tenant(b"sk-test")
    anonymous = send(proxy.url, request_bytes(None, method="GET", target="/context/tenant", usual=False))
    assert shown(anonymous)["id"] == "anonymous"

"""Pins over REST and per request: what is accepted, shown and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno

PINS = "/context/conversations/one/pins"
OTHER_KEY = b"authorization: Bearer sk-other"


def put(url: str, indexes: object, *headers: bytes, target: str = PINS) -> Answer:
    body = json.dumps({"indexes": indexes}).encode()
    return send(url, request_bytes(body, *headers, method="PUT", target=target))


def send_as(url: str, key: bytes, method: str, body: bytes | None = None) -> Answer:
    usual = request_bytes(body, b"content-type: application/json", key, method=method, target=PINS, usual=False)
    return send(url, usual)


def error(answered: Answer) -> Any:
    return answered.status, answered.json["error"]["param"], answered.json["error"]["message"]


def shown(answered: Answer) -> list[tuple[int, bool]]:
    assert answered.status == 200, answered.body
    return [(pin["index"], pin["bound"]) for pin in answered.json["data"]]


def test_pins_are_set_shown_replaced_and_deleted(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    assert shown(get(url, PINS)) == []
    assert shown(put(url, [4, 0, 4])) == [(0, False), (4, False)]
    assert shown(get(url, PINS)) == [(0, False), (4, False)]
    assert shown(put(url, [7])) == [(7, False)]
    deleted = get(url, PINS, method="DELETE")
    assert deleted.json == {"id": "one", "object": "pins.deleted", "deleted": True}
    assert shown(get(url, PINS)) == []


def test_pins_belong_to_one_tenants_conversation_of_that_name(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    put(url, [0])
    theirs = [send_as(url, OTHER_KEY, method, body) for method, body in (("GET", None), ("PUT", b'{"indexes":[1]}'))]
    assert [answered.status for answered in theirs] == [404, 404]
    usual = request_bytes(chat(conversation_id="one"), b"content-type: application/json", OTHER_KEY, usual=False)
    assert send(url, usual).status == 200
    assert shown(send_as(url, OTHER_KEY, "GET")) == []
    assert shown(send_as(url, OTHER_KEY, "PUT", b'{"indexes":[1]}')) == [(1, False)]
    assert send_as(url, OTHER_KEY, "DELETE").status == 200
    assert shown(get(url, PINS)) == [(0, False)]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_conversation_that_nobody_knows_has_no_pins(steno: StartSteno, method: str) -> None:
    body = b'{"indexes": [0]}' if method == "PUT" else None
    answered = send(steno().url, request_bytes(body, method=method, target=PINS))
    assert (answered.status, answered.json["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.parametrize("index", [-1, 1.5, "0", True, None, 10**30])
def test_an_index_that_is_none_is_named(steno: StartSteno, index: object) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    put(url, [3])
    status, param, message = error(put(url, [0, index]))
    assert (status, param) == (400, "indexes")
    assert repr(index)[:100] in message
    assert shown(get(url, PINS)) == [(3, False)]


def test_more_pins_than_there_may_be_are_refused_with_the_number(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    assert len(shown(put(url, list(range(100))))) == 100
    assert error(put(url, list(range(101)))) == (
        400,
        "indexes",
        "indexes holds 101 messages; at most 100 can be pinned.",
    )


def test_a_body_longer_than_all_indexes_is_not_read(steno: StartSteno) -> None:
    refused = send_as(steno().url, OTHER_KEY, "PUT", b'{"indexes": [0' + b" " * 10_000 + b"]}")
    assert refused.status == 400
    assert "has 10016 bytes; 100 indexes fit into 10000" in refused.json["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[0]", b"{", b'{"indexes": 3}', b"{}"])
def test_a_body_without_indexes_is_told_what_to_send(steno: StartSteno, body: bytes) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    status, param, message = error(send(url, request_bytes(body, method="PUT", target=PINS)))
    assert (status, param) == (400, "indexes")
    assert '{"indexes": [0, 4]}' in message


def test_pins_go_with_their_conversation(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(conversation_id="one"))
    put(url, [0])
    assert get(url, "/context/conversations/one", method="DELETE").status == 200
    assert get(url, PINS).status == 404
    post(url, chat(conversation_id="one"))
    assert shown(get(url, PINS)) == []


# Bound


def contents(record: Record) -> list[Any]:
    return [message["content"] for message in record.payload["messages"]]


def test_a_pin_is_bound_by_the_request_that_needs_it_and_survives_its_summary(
    simulator: Simulator, steno: StartSteno
) -> None:
    url = steno().url
    messages = [{"role": "system", "content": "Be brief."}, *turns(15)]
    post(url, chat(messages[:3], conversation_id="one"))
    put(url, [2, 400])
    planned = post(url, chat(messages, conversation_id="one"), target="/context/plan").json
    assert "pinned" in planned["context"]["actions"]
    assert shown(get(url, PINS)) == [(2, False), (400, False)]
    answered = post(url, chat(messages, conversation_id="one"))
    assert answered.json["context"]["actions"] == ["summarized", "pinned"]
    assert contents(simulator.chats[-1]).count(messages[3]["content"]) == 1
    assert messages[1]["content"] not in contents(simulator.chats[-1])
    assert shown(get(url, PINS)) == [(2, True), (400, False)]


def test_a_bound_pin_stays_with_its_history(steno: StartSteno) -> None:
    """An edited branch of the conversation does not have it, nor has another conversation."""
    url = steno().url
    post(url, chat(conversation_id="one"))
    put(url, [2])
    post(url, chat(turns(15), conversation_id="one"))
    edited = [{"role": "user", "content": "Question 1, edited."}, *turns(15)[1:]]
    for messages, name in ((edited, "one"), (turns(15), "two")):
        answered = post(url, chat(messages, conversation_id=name))
        assert answered.json["context"]["actions"] == ["summarized"]
    get(url, PINS, method="DELETE")
    assert post(url, chat(turns(15), conversation_id="one")).json["context"]["actions"] == ["summarized"]


def test_a_request_pins_for_itself_only(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    messages = [{"role": "system", "content": "Be brief."}, *turns(15)]
    pinned = post(url, chat(messages, conversation_id="one", context={"pin": [0, 3]}))
    assert pinned.json["context"]["actions"] == ["summarized", "pinned"]
    assert messages[3]["content"] in contents(simulator.chats[-1])
    assert post(url, chat(messages, conversation_id="one")).json["context"]["actions"] == ["summarized"]
    assert messages[3]["content"] not in contents(simulator.chats[-1])


# Per request


@pytest.mark.parametrize("index", [-1, 3, 1.0, "1", False, None])
def test_a_pin_that_is_no_message_of_the_request_is_named_with_their_number(
    simulator: Simulator, steno: StartSteno, index: object
) -> None:
    status, param, message = error(post(steno().url, chat(turns(1), context={"pin": [0, index]})))
    assert (status, param) == (400, "context.pin")
    assert f"holds {index!r}; the request has 3 messages" in message
    assert not simulator.chats


@pytest.mark.parametrize("pin", [1, "all", {"0": 1}])
def test_pins_that_are_no_list_are_refused(simulator: Simulator, steno: StartSteno, pin: object) -> None:
    status, param, _ = error(post(steno().url, chat(context={"pin": pin})))
    assert (status, param) == (400, "context.pin")
    assert not simulator.chats


@pytest.mark.parametrize("pin", [[], [0], [0, 1, 3], None])
def test_pins_change_nothing_where_nothing_is_compacted(simulator: Simulator, steno: StartSteno, pin: object) -> None:
    """An instruction may be among them: it stays in any case."""
    messages = [{"role": "system", "content": "Be brief."}, *turns(1)]
    answered = post(steno().url, chat(messages, context={"pin": pin}))
    assert answered.json["context_status"] == "full"
    assert simulator.chats[0].payload["messages"] == messages
    assert "context" not in simulator.chats[0].payload

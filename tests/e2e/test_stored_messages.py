"""Stored messages through a real server: the latest request's history, letter by letter, for its own tenant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from app.wire.formats import FORMATS
from tests.databases import stored_rows
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.faults.proxy import FaultProxy

ODD = b'"He said \\"\xc3\xa4 \\u754c \xf0\x9f\x98\x80 \\u2028 \\\\n\\", 1e400 times.\\n\\t"'
"""JSON of a text with letters that encoders write in ways of their own."""
BODIES: dict[str, tuple[str, bytes]] = {
    "chat_completions": (
        "/v1/chat/completions",
        (
            b'{"model":"gpt-4o","messages":[{"role": "system","content":"Be brief."},{"content":%b, "role":"user"},'
            b'{"role":"assistant","content":"Yes."},{"role":"user","content":[{"type":"text" ,"text":%b}]}]}'
        ),
    ),
    "messages": (
        "/v1/messages",
        (
            b'{"model":"claude-x","max_tokens":400,"system":"Be brief.","messages":[{"content":%b, "role":"user"},'
            b'{"role":"assistant","content":"Yes."},{"role":"user","content":[{"type":"text" ,"text":%b}]}]}'
        ),
    ),
    "responses": (
        "/v1/responses",
        (
            b'{"model":"gpt-y","store":false,"instructions":"Be brief.","input":[{"content":%b, "role":"user"},'
            b'{"role":"assistant","content":"Yes."},{"role":"user","content":[{"type":"input_text" ,"text":%b}]}]}'
        ),
    ),
}
FORMAT_OF = {each.name: each for each in FORMATS}


def as_caller(steno: Steno, key: str, target: str, method: str = "GET", body: bytes | None = None) -> Answer:
    usual = (b"content-type: application/json", f"authorization: Bearer {key}".encode())
    return send(steno.url, request_bytes(body, *usual, method=method, target=target, usual=False), 30)


def pages(steno: Steno, key: str, target: str) -> Iterator[Answer]:
    after = ""
    while True:
        answered = as_caller(steno, key, f"{target}{after}")
        assert answered.status == 200, answered.body
        yield answered
        if not answered.json["has_more"]:
            return
        after = f"&after={answered.json['last_id']}"


def kept(steno: Steno, key: str, name: str, order: str = "asc") -> list[dict[str, Any]]:
    """All messages, with `sent` as the bytes that stand in the answer."""
    found = []
    for page in pages(steno, key, f"/context/conversations/{name}/messages?limit=2&order={order}"):
        raw = msgspec.json.decode(page.body, type=dict[str, msgspec.Raw])["data"]
        for entry in msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]]):
            sent = bytes(entry.pop("sent"))
            found.append({**{name: msgspec.json.decode(value) for name, value in entry.items()}, "sent": sent})
    return found


@pytest.fixture
def storing(steno: StartSteno) -> Callable[..., Steno]:
    def start(**storage: Any) -> Steno:
        return steno(upstream={"formats": list(FORMAT_OF)}, storage={"messages": True, **storage})

    return start


@pytest.mark.parametrize("spoken", FORMAT_OF)
def test_messages_come_back_letter_by_letter(storing: Callable[..., Steno], spoken: str, shared_url: str) -> None:
    steno = storing(url=shared_url)
    target, template = BODIES[spoken]
    body = template % (ODD, ODD)
    named = (b"content-type: application/json", b"authorization: Bearer sk-one", b"x-context-conversation-id: odd")
    assert send(steno.url, request_bytes(body, *named, target=target, usual=False), 30).status == 200
    answered = as_caller(steno, "sk-one", "/context/conversations/odd/messages")
    for raw in map(FORMAT_OF[spoken].alone, FORMAT_OF[spoken].read(body).raw_messages):
        assert b'"sent":' + raw in answered.body
    entries = json.loads(answered.body)["data"]
    assert [(each["id"], each["index"], each["kind"]) for each in entries] == [
        ("msg_-1", -1, "instructions"),
        ("msg_0", 0, "user"),
        ("msg_1", 1, "assistant"),
        ("msg_2", 2, "user"),
    ]
    assert [each["coverage"] and each["coverage"]["kind"] for each in entries] == [None, *["verbatim"] * 3]
    assert all(each["tokens"] > 0 and each["format"] == spoken for each in entries)


def test_pages_join_in_both_orders_and_begin_behind_any_index(storing: Callable[..., Steno]) -> None:
    steno = storing()
    history = [{"role": "system", "content": "Be brief."}, *turns(15)]
    post(steno.url, chat(history, conversation_id="one"))
    for order, expected in (("asc", history), ("desc", history[::-1])):
        assert [json.loads(each["sent"]) for each in kept(steno, "sk-test", "one", order)] == expected
    target = "/context/conversations/one/messages"
    part = get(steno.url, f"{target}?after=msg_2&limit=2").json
    assert ([each["index"] for each in part["data"]], part["has_more"]) == ([3, 4], True)
    assert [each["coverage"]["kind"] for each in part["data"]] == ["summarized", "summarized"]
    assert part["data"][0]["coverage"]["summary_id"].startswith("chk_")
    assert get(steno.url, f"{target}?after=msg_900").json["data"] == []
    for cursor in ("3", "msg_x", "msg_" + "9" * 30):
        refused = get(steno.url, f"{target}?after={cursor}")
        assert (refused.status, refused.json["error"]["param"]) == (400, "after")


def test_nobody_reads_what_another_tenant_said(storing: Callable[..., Steno]) -> None:
    steno = storing()
    as_caller(steno, "sk-one", "/v1/chat/completions", "POST", chat(conversation_id="mine"))
    assert [message["role"] for message in kept(steno, "sk-one", "mine")] == ["user"]
    other = as_caller(steno, "sk-two", "/context/conversations/mine/messages")
    assert (other.status, other.json["error"]["code"]) == (404, "conversation_not_found")


def test_the_branch_that_was_sent_last_is_kept(storing: Callable[..., Steno]) -> None:
    steno = storing()
    first = turns(3, 5)
    post(steno.url, chat(first, conversation_id="tree"))
    edited = [*first[:2], {"role": "user", "content": "Something else."}]
    post(steno.url, chat(edited, conversation_id="tree"))
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "tree")] == edited


def test_deletion_takes_all_and_the_client_may_go_on(storing: Callable[..., Steno], shared_url: str) -> None:
    steno = storing(url=shared_url)
    history = turns(4, 20)
    post(steno.url, chat(history[:-2], conversation_id="gone"))
    assert len(kept(steno, "sk-test", "gone")) == len(history) - 2
    assert get(steno.url, "/context/conversations/gone", method="DELETE").status == 200
    assert get(steno.url, "/context/conversations/gone/messages").status == 404
    post(steno.url, chat(history, conversation_id="gone"))
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "gone")] == history
    assert get(steno.url, "/context/tenant", method="DELETE").status == 200
    assert stored_rows(shared_url)["histories"] == []


def test_what_passes_unread_is_not_kept(storing: Callable[..., Steno], sqlite_url: str) -> None:
    steno = storing(url=sqlite_url)
    post(steno.url, chat(conversation_id="unread").replace(b'"model"', b'"model":"x","model"'))
    post(
        steno.url,
        json.dumps({"model": "gpt-y", "input": "Hello.", "previous_response_id": "resp_1"}).encode(),
        target="/v1/responses",
    )
    post(steno.url, chat(conversation_id="planned"), target="/context/plan")
    get(steno.url, "/context/conversations")  # Answered once all that waits is stored.
    assert stored_rows(sqlite_url)["histories"] == []


def test_nothing_is_kept_or_shown_where_nobody_wants_it(steno: StartSteno, sqlite_url: str) -> None:
    running = steno(storage={"url": sqlite_url})
    post(running.url, chat(conversation_id="one"))
    answered = get(running.url, "/context/conversations/one/messages")
    assert (answered.status, answered.json["error"]["code"]) == (404, "messages_not_kept")
    assert get(running.url, "/context/conversations").json["data"]
    assert stored_rows(sqlite_url)["histories"] == []


def test_requests_are_answered_while_the_database_is_away_and_messages_are_kept_after(
    storing: Callable[..., Steno], gate: FaultProxy
) -> None:
    steno = storing(url=gate.url, timeout_seconds=0.25)
    history = turns(8, 20)
    post(steno.url, chat(history[:3], conversation_id="outage"))
    until(lambda: not steno.services.store.writes.waiting)
    gate.inject("refuse")
    for end in range(5, len(history) + 1, 2):
        assert post(steno.url, chat(history[:end], conversation_id="outage")).status == 200
    assert get(steno.url, "/context/conversations/outage/messages").status == 503
    gate.heal()
    until(lambda: get(steno.url, "/context/conversations/outage/messages").status == 200)
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "outage")] == history

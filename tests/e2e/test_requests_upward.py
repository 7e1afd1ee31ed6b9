"""What the provider receives: the client's own bytes and headers, or as little less as possible."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path

import pytest

from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.e2e.raw import CHAT, Answer, connected, is_closed, post, read_answer, read_until, request_bytes, send
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider, answer

ODD_MEMBERS = b'"seed": 9007199254740993, "temperature" :1.0,"x_new":[1.50, {"a\\/b":123456789012345678901234567890}]'
ODD = b"\n{ " + ODD_MEMBERS + b',\t"messages": [ {"content":"h\\u0065llo", "role":"user"} ] ,"model":"gpt-4o"}\n'


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Headers


def test_headers_pass_except_those_of_the_connection_and_of_proxies(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    kept = [
        (b"OpenAI-Beta", b"assistants=v2"),
        (b"OpenAI-Organization", b"org-1"),
        (b"session_id", b"codex"),
        (b"X_Odd-One", b"passes"),
        (b"X-Twice", b"a"),
        (b"X-Twice", b"b"),
        (b"Idempotency-Key", b"k"),
        (b"x-brand-new", b"1"),
    ]
    dropped = [
        b"cookie: a=b",
        b"forwarded: for=1.2.3.4",
        b"x-forwarded-for: 1.2.3.4",
        b"x-real-ip: 1.2.3.4",
        b"via: 1.1 other",
        b"te: trailers",
        b"keep-alive: timeout=5",
        b"proxy-authorization: Basic eDp5",
        b"x-context-preset: default",
        b"x-only-for-steno: 1",
        b"connection: keep-alive, x-only-for-steno",
    ]
    lines = [name + b": " + value for name, value in kept]
    post(before_scripted().url, chat(), *lines, *dropped)
    [received] = scripted.requests
    ours = {b"host", b"content-length", b"accept-encoding", b"steno-hops"}
    passed = [(name, value) for name, value in received.headers if name.lower() not in ours]
    usual = [(b"content-type", b"application/json"), (b"authorization", b"Bearer sk-test")]
    assert passed == [*usual, *((name.lower(), value) for name, value in kept)]


def test_nothing_is_sent_that_the_client_did_not_send(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """But for the name of the Steno it came through, which is how a circle is found."""
    body = chat()
    send(before_scripted().url, request_bytes(body, b"content-type: application/json", usual=False))
    [received] = scripted.requests
    host = scripted.url.removeprefix("http://").encode()
    [hop] = received.all(b"steno-hops")
    assert re.fullmatch(rb"[0-9a-f]{16}", hop)
    assert sorted((name.lower(), value) for name, value in received.headers) == [
        (b"accept-encoding", b"identity"),
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
        (b"host", host),
        (b"steno-hops", hop),
    ]


def test_client_chooses_the_encoding_of_what_steno_does_not_read(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    steno = before_scripted()
    post(steno.url, chat(), b"accept-encoding: gzip, br")
    send(steno.url, request_bytes(None, b"accept-encoding: gzip, br", method="GET", target="/v1/models"))
    send(steno.url, request_bytes(None, method="GET", target="/v1/models"))
    assert [request.all(b"accept-encoding") for request in scripted.requests] == [[b"identity"], [b"gzip, br"], []]


def test_cookies_of_one_caller_never_reach_another(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.then(answer(b"{}", b"set-cookie: session=first-caller; Path=/"))
    steno = before_scripted()
    assert post(steno.url, chat()).header("set-cookie") == "session=first-caller; Path=/"
    assert post(steno.url, chat()).header("set-cookie") is None
    send(steno.url, request_bytes(None, method="GET", target="/v1/models"))
    assert all(not request.all(b"cookie") for request in scripted.requests)


def test_credentials_pass_and_are_never_stored(
    scripted: ScriptedProvider, before_scripted: StartSteno, sqlite_url: str
) -> None:
    """What the command logs is in `test_endpoints`."""
    steno = before_scripted(storage={"url": sqlite_url})
    canary = b"sk-canary-5d41402abc4b"
    request = request_bytes(chat(), b"authorization: Bearer " + canary, b"user-agent: mine/1", usual=False)
    assert send(steno.url, request).status == 200
    [received] = scripted.requests
    assert received.all(b"authorization") == [b"Bearer " + canary]
    assert received.all(b"user-agent") == [b"mine/1"]
    steno.stop()
    folder = Path(sqlite_url.removeprefix("sqlite:///")).parent
    stored = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"conv_" in stored
    assert canary not in stored


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([b"x-many-%d: 1" % number for number in range(101)], "x-many-97"),  # Three stand before them.
        ([b"x-large: " + b"a" * 33_000], "x-large"),
    ],
    ids=["too many", "too large"],
)
def test_too_many_or_too_large_headers_are_refused(
    scripted: ScriptedProvider, before_scripted: StartSteno, headers: list[bytes], named: str
) -> None:
    refused = post(before_scripted().url, chat(), *headers)
    assert refused.status == 431
    error = refused.json["error"]
    assert (error["code"], error["param"]) == ("headers_too_large", named)
    assert repr(named) in error["message"]
    assert not scripted.requests


@pytest.mark.parametrize("target", [CHAT, "/v1/completions", "/v1/models", "/context/conversations"])
@pytest.mark.parametrize("name", ["x_forwarded_for", "X-Context_Preset", "api_key", "content_length", "x_real-ip"])
def test_header_that_servers_may_take_for_a_known_one_is_refused_by_name(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str, name: str
) -> None:
    refused = post(before_scripted().url, chat(), name.encode() + b": 1", target=target)
    assert refused.status == 400
    error = refused.json["error"]
    assert error["param"] == name.lower()
    assert repr(name.lower()) in error["message"]
    assert repr(name.lower().replace("_", "-")) in error["message"]
    assert not scripted.requests


@pytest.mark.parametrize("target", [CHAT, "/v1/completions", "/v1/models"])
def test_other_headers_with_underscores_pass_as_they_are(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str
) -> None:
    """Such as those of Codex."""
    sent = {b"session_id": b"s-1", b"conversation_id": b"c-1", b"x_y-z": b"1"}
    assert post(before_scripted().url, chat(), *map(b": ".join, sent.items()), target=target).status == 200
    [received] = scripted.requests
    assert {name: received.all(name) for name in sent} == {name: [value] for name, value in sent.items()}


@pytest.mark.parametrize(
    ("request_head", "told"),
    [
        (
            b"GET /livez HTTP/1.1\r\nhost: x\r\nx-odd: \x01\r\n\r\n",
            "Invalid header value char, after the header 'host'",
        ),
        (b"GET /c/caf\xc3\xa9/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", "Invalid char in url path"),
    ],
)
def test_what_is_no_http_is_refused_with_the_place(before_scripted: StartSteno, request_head: bytes, told: str) -> None:
    """In OpenAI's envelope, too."""
    with connected(before_scripted().url) as connection:
        connection.sendall(request_head)
        refused = read_answer(connection)
        assert is_closed(connection)
    assert refused.status == 400
    assert told in refused.json["error"]["message"]
    assert refused.header("x-should-retry") == "false"


@pytest.mark.parametrize(
    "smuggled",
    [
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\nx-a: 1\r\n folded\r\n\r\n",
        b"POST /v1/x HTTP/1.1\nhost: x\n\n",
    ],
    ids=["two lengths", "folded header", "bare line feeds"],
)
def test_requests_that_servers_read_differently_are_refused(
    scripted: ScriptedProvider, before_scripted: StartSteno, smuggled: bytes
) -> None:
    with connected(before_scripted().url) as connection:
        connection.sendall(smuggled)
        assert read_answer(connection).status == 400
    assert not scripted.requests


def test_body_that_does_not_arrive_in_time_is_given_up(before_scripted: StartSteno) -> None:
    steno = before_scripted(limits={"receive_seconds": 0.3})
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat())[:-10])
        late = read_answer(connection)
    assert late.status == 408
    assert late.json["error"]["code"] == "request_timeout"
    assert late.header("x-should-retry") == "false"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", b"POST / HTTP/1.1\r\nhost: x\r\n"])
def test_header_that_does_not_arrive_in_time_closes_the_connection(before_scripted: StartSteno, sent: bytes) -> None:
    steno = before_scripted(limits={"receive_seconds": 0.3})
    with connected(steno.url) as connection:
        began = time.monotonic()
        connection.sendall(sent)
        assert is_closed(connection)
        assert 0.2 < time.monotonic() - began < 8


def test_second_header_on_a_connection_has_a_deadline_too(before_scripted: StartSteno) -> None:
    """And a request that takes longer than that to be answered is not cut by it."""
    steno = before_scripted(limits={"receive_seconds": 1.0})
    with connected(steno.url) as connection:
        for _ in range(2):
            connection.sendall(request_bytes(None, method="GET", target="/livez"))
            assert read_answer(connection, "GET").status == 200
        connection.sendall(b"\r\nGET /livez")
        assert is_closed(connection)


def test_deadline_for_the_header_does_not_cut_a_slow_answer(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.default = (2.0, answer(b'{"slow":1}'))
    assert post(before_scripted(limits={"receive_seconds": 1.0}).url, chat()).json["slow"] == 1


# Bodies


@pytest.mark.parametrize(
    "body",
    [ODD, json.dumps({"model": MODEL, "messages": HELLO, "vendor": {"deep": [None, 1e400]}}).encode()],
    ids=["odd", "infinite"],
)
def test_untouched_request_has_the_clients_bytes(
    scripted: ScriptedProvider, before_scripted: StartSteno, body: bytes
) -> None:
    post(before_scripted().url, body)
    assert sha256(scripted.requests[0].body) == sha256(body)


def test_compacted_request_differs_in_messages_only(simulator: Simulator, steno: StartSteno) -> None:
    """Every other member keeps its bytes and its place, and so does every message that is kept."""
    messages = long_history()
    odd = (
        b'{"content" : [{"type":"text","text":"h\\u0065re","x":1.0}],"role":"user", "n":123456789012345678901234567890}'
    )
    raw_messages = [*(json.dumps(message).encode() for message in messages[:-1]), odd]
    before = b'{"user":"a\\/b", "temperature": 1.0 ,"seed":9007199254740993,"messages" :['
    after = b'] , "model":"gpt-4o", "metadata" : {"k":"1.50"}\n}'
    simulator.lenient_messages = True
    simulator.when(lambda record: record.kind == "chat", body=b'{"id":"c"}')
    served = steno()
    answered = post(served.url, before + b", ".join(raw_messages) + after)
    assert answered.header("x-context-status") == "summarized", answered
    [sent] = simulator.chats
    assert sent.body.startswith(before)
    assert sent.body.endswith(after)
    inner = sent.body[len(before) : -len(after)]
    assert inner.endswith(raw_messages[-2] + b"," + odd)
    assert len(inner) < len(b", ".join(raw_messages)) / 2


def test_same_request_gives_the_same_bytes_also_after_a_restart(
    simulator: Simulator, steno: StartSteno, sqlite_url: str
) -> None:
    body = chat(long_history())
    for _ in range(2):
        served = steno(storage={"url": sqlite_url})
        post(served.url, body)
        post(served.url, body)
        served.stop()
    assert len({sha256(record.body) for record in simulator.chats}) == 1
    assert len(simulator.chats) == 4
    assert len(simulator.summaries) == 1


UNREADABLE = {
    "no JSON": b"{",
    "empty": b"",
    "no object": b"[1]",
    "no messages": b'{"model":"gpt-4o"}',
    "messages are a string": b'{"model":"gpt-4o","messages":"hello"}',
    "messages are null": b'{"model":"gpt-4o","messages":null}',
    "a message is a number": b'{"model":"gpt-4o","messages":[1]}',
    "a message has no role": b'{"model":"gpt-4o","messages":[{"content":"x"}]}',
    "no model": b'{"messages":[{"role":"user","content":"x"}]}',
    "model is a number": b'{"model":4,"messages":[{"role":"user","content":"x"}]}',
    "byte order mark": b"\xef\xbb\xbf" + chat(),
    "NaN": b'{"model":"gpt-4o","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
    "invalid UTF-8 in a message": b'{"model":"gpt-4o","messages":[{"role":"user","content":"\xff"}]}',
    "invalid UTF-8 in the model": b'{"model":"gpt-4o\xff","messages":[{"role":"user","content":"x"}]}',
    "invalid UTF-8 in a key": b'{"model":"gpt-4o","\xff":1,"messages":[{"role":"user","content":"x"}]}',
    "deep nesting": b'{"model":"gpt-4o","messages":[{"role":"user","content":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    "two bodies": chat() + chat(),
    "repeated key": b'{"model":"gpt-4o","messages":[{"role":"user","content":"x"}],"messages":[]}',
    "repeated key, the first value longer": b'{"model":"gpt-4o","messages":[{"role":"user"}],"n":12,"n":1}',
    "repeated key in another spelling": b'{"model":"gpt-4o","messages":[{"role":"user"}],"mod\\u0065l":"x"}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_body_that_steno_cannot_read_is_for_the_provider_to_judge(
    scripted: ScriptedProvider, before_scripted: StartSteno, body: bytes
) -> None:
    judged = answer(b'{"error": {"message":"no","odd":1.0}}', status=b"400 Bad Request")
    scripted.then(judged)
    answered = post(before_scripted().url, body)
    assert sha256(scripted.requests[0].body) == sha256(body)
    assert (answered.status, answered.body) == (400, b'{"error": {"message":"no","odd":1.0}}')
    assert answered.header("x-context-status") == "bypassed"
    assert answered.header("x-context-reason") == "unreadable"


def call_with(arguments: str) -> str:
    """An assistant message that calls a function with these arguments."""
    function = {"name": "f", "arguments": arguments}
    return json.dumps({"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]})


ODD_MESSAGES = {
    "a large number in a message": '{"role":"user","content":"x","n":123456789012345678901234567890}',
    "an infinite number in a message": '{"role":"user","content":"x","n":1e999}',
    "content is an object": '{"role":"user","content":{"type":"text"}}',
    "content is a number": '{"role":"user","content":5}',
    "parts are odd": '{"role":"user","content":[1,null,{"type":5},{"type":"image_url"},{"type":"text","text":null}]}',
    "calls are odd": '{"role":"assistant","tool_calls":[1,{"id":5,"function":"x"},{"function":{"arguments":{"a":1}}}]}',
    "calls are no list": '{"role":"assistant","tool_calls":{"a":1},"function_call":"x"}',
    "arguments are no JSON": call_with("{"),
    "arguments hold large numbers": call_with('{"a":1e999,"b":123456789012345678901234567890}'),
    "arguments hold a lone surrogate": call_with('"\\ud800"'),
    "arguments are deep": call_with("[" * 3_000 + "]" * 3_000),
    "keys are repeated": '{"role":"user","content":"x","role":"assistant"}',
    "a result without a call": '{"role":"tool","tool_call_id":"nobody","content":"x"}',
    "name is a list": '{"role":"user","name":[],"content":"x","refusal":{}}',
    "role is unknown": '{"role":"critic","content":"x"}',
}


@pytest.mark.parametrize("message", ODD_MESSAGES.values(), ids=ODD_MESSAGES)
@pytest.mark.parametrize("beginning", [[], long_history()[:-1]], ids=["short", "long"])
def test_odd_message_is_no_reason_to_fail(
    scripted: ScriptedProvider, before_scripted: StartSteno, message: str, beginning: list[object]
) -> None:
    """An optimisation must not become a validator."""
    others = [json.dumps(other) for other in beginning]
    question = '{"role":"user","content":"And now?"}'
    body = f'{{"model":"gpt-4o","messages":[{",".join([*others, message, question])}]}}'.encode()
    answered = post(before_scripted().url, body)
    assert answered.status == 200, answered
    sent = [request for request in scripted.requests if not request.all(b"x-context-call")]
    assert len(sent) == 1
    if not beginning:
        assert sha256(sent[0].body) == sha256(body)
    assert sent[0].body.endswith(question.encode() + b"]}")


def test_a_body_that_is_not_encoded_as_it_says_passes_as_it_came(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    body = chat(long_history())
    answered = post(before_scripted().url, body, b"content-encoding: gzip")
    assert answered.header("x-context-reason") == "unreadable"
    [received] = scripted.requests
    assert received.body == body
    assert received.all(b"content-encoding") == [b"gzip"]


def test_body_over_the_limit_is_refused(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    steno = before_scripted(limits={"body_bytes": 1_000})
    refused = post(steno.url, chat(padding="x" * 1_000))
    assert refused.status == 413
    assert refused.json["error"]["code"] == "request_too_large"
    assert "1000" in refused.json["error"]["message"]
    assert refused.header("x-should-retry") == "false"
    assert not scripted.requests


def test_body_over_the_limit_is_refused_before_it_is_sent(before_scripted: StartSteno) -> None:
    """A client that asks first is not told to go on."""
    steno = before_scripted(limits={"body_bytes": 1_000})
    with connected(steno.url) as connection:
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 5000000\r\nexpect: 100-continue\r\n\r\n"
        )
        connection.sendall(head)
        assert b"413" in connection.recv(12)


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/context/plan", "/context/conversations/c-1/pins"])
def test_too_many_bytes_in_flight_are_refused_for_now(before_scripted: StartSteno, target: str) -> None:
    """What is still arriving counts too, on the routes of our own as well."""
    steno = before_scripted(limits={"in_flight_bytes": 5_000})
    method = "PUT" if target.endswith("pins") else "POST"
    arriving = request_bytes(chat(padding="x" * 4_500), target=target, method=method)[:-100]
    # The server may be slow to take in what arrives.
    answers = (_answer_beside(steno.url, arriving, seconds) for seconds in (0.3, 1, 3, 10))
    refused = next(answer for answer in answers if answer.status != 200)
    assert refused.status == 503
    assert refused.header("retry-after") == "1"
    assert refused.header("x-should-retry") is None
    assert refused.json["error"]["code"] == "overloaded"
    commands.until(lambda: post(steno.url, chat()).status == 200)


def _answer_beside(url: str, arriving: bytes, seconds: float) -> Answer:
    """The answer to a small request, while another one has been arriving for so long."""
    with connected(url) as held:
        held.sendall(arriving)
        time.sleep(seconds)
        return post(url, chat(padding="x" * 1_000))


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b'{"context":{"preset":"rolling"},%s}', b"{%s}"),
        (b'{%s ,\n"context" : {"pin":[0, 0]} }', b"{%s }"),
        (b'{"conversation_id":"c-1",%s,"context":{}, "n":1.0}', b'{%s,"n":1.0}'),
        (b'{ "context_management": [{"type":"compaction","compact_threshold":9}] , %s}', b"{ %s}"),
    ],
    ids=["first", "last", "both ends", "management"],
)
def test_own_members_are_cut_out_and_the_rest_stays(
    scripted: ScriptedProvider, before_scripted: StartSteno, sent: bytes, received: bytes
) -> None:
    rest = b'"model":"gpt-4o","messages" : [{"role":"user","content":"1.0"}]'
    post(before_scripted().url, sent % rest)
    assert scripted.requests[0].body == received % rest


def test_own_headers_need_no_change_of_the_body(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    steno = before_scripted()
    body = chat(long_history())
    answered = post(steno.url, body, b"x-context-compaction: off", b"x-context-conversation-id: c-9")
    [received] = scripted.requests
    assert received.body == body
    assert not [name for name, _ in received.headers if name.startswith(b"x-context-")]
    assert answered.header("x-context-reason") == "compaction_off"
    assert answered.header("x-context-conversation-id") == "c-9"


def test_switched_off_compaction_in_the_body_leaves_the_messages(simulator: Simulator, steno: StartSteno) -> None:
    messages = long_history()
    answered = post(steno().url, chat(messages, context={"compaction": False}))
    assert answered.json["context"]["reason"] == "compaction_off"
    assert simulator.chats[0].body == chat(messages)
    assert not simulator.summaries


def test_stream_options_are_never_added_to_what_is_not_replaced(simulator: Simulator, steno: StartSteno) -> None:
    """What is replaced: test_estimates.py."""
    proxy = steno(compaction={"enabled": False})
    for messages in (HELLO, turns(10)):
        post(proxy.url, chat(messages, stream=True))
    assert all("stream_options" not in record.payload for record in simulator.chats)


def test_routing_members_of_a_body_route_nothing(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K2"""
    evil = "http://127.0.0.1:9/"
    body = chat(api_base=evil, base_url=evil, api_key="sk-other", user=evil)
    assert post(before_scripted().url, body).status == 200
    assert scripted.requests[0].body == body
    assert scripted.requests[0].all(b"authorization") == [b"Bearer sk-test"]


def test_images_are_never_fetched(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K2: also not to be summarised."""
    with ScriptedProvider() as images:
        picture = {"type": "image_url", "image_url": {"url": f"{images.url}/cat.png"}}
        first = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}
        post(before_scripted().url, chat([first, *turns(15)[1:]]))
        assert len(scripted.requests) > 1
        assert images.connections == 0


def test_summary_call_bears_the_mark_and_the_callers_key_and_nothing_of_the_request(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    of_the_request = (b"idempotency-key: k", b"accept: text/event-stream", b"x-stainless-retry-count: 1")
    post(before_scripted().url, chat(long_history()), b"openai-project: p", *of_the_request)
    summary = scripted.requests[0]
    assert summary.target == CHAT.encode()
    assert summary.all(b"x-context-call") == [b"summary"]
    assert summary.all(b"authorization") == [b"Bearer sk-test"]
    assert summary.all(b"openai-project") == [b"p"]
    assert summary.all(b"accept") == summary.all(b"content-type") == [b"application/json"]
    assert not summary.all(b"idempotency-key")
    assert not re.search(rb"x-stainless", summary.head)
    assert set(json.loads(summary.body)) == {"model", "messages", "max_tokens", "stream", "stream_options"}


def test_pipelined_requests_are_answered_in_order(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    for number in range(3):
        scripted.then(answer(b'{"number":%d}' % number))
    with connected(before_scripted().url) as connection:
        connection.sendall(b"".join(request_bytes(chat(n_th=number)) for number in range(3)))
        received = b""
        while received.count(b'"number"') < 3:
            received += connection.recv(1 << 16)
    assert re.findall(rb'"number":(\d)', received) == [b"0", b"1", b"2"]
    assert [json.loads(request.body)["n_th"] for request in scripted.requests] == [0, 1, 2]


def test_client_that_asks_before_it_sends_is_told_to_go_on(before_scripted: StartSteno) -> None:
    with connected(before_scripted().url) as connection:
        head, _, body = request_bytes(chat(), b"expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_answer(connection).status == 200


def test_reused_connection_gets_an_answer_each_time(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K1: nothing of one request shows in the next."""
    scripted.default = (answer(b'{"plain":true}'),)
    with connected(before_scripted().url) as connection:
        for number in range(3):
            connection.sendall(request_bytes(chat(n_th=number)))
            assert read_answer(connection).json["plain"] is True
        connection.sendall(request_bytes(None, method="GET", target="/livez"))
        assert b'{"status":"ok"}' in read_until(connection, b"}")
    assert [json.loads(request.body)["n_th"] for request in scripted.requests] == [0, 1, 2]
    assert scripted.connections == 1

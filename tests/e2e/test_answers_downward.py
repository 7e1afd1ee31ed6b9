"""What the client receives: the provider's status, headers and bytes, and its errors as they are."""

from __future__ import annotations

import hashlib
import json
import time
from http.client import IncompleteRead
from typing import Any

import openai
import pytest

from lab.simulator import Fault, Simulator
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.e2e.raw import curl, post, request_bytes, send
from tests.e2e.running import StartSteno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, closed_port

COMPLETION = (
    b'{ "id":"chatcmpl-1","x_new":[1.50,123456789012345678901234567890],"usage" : {"prompt_tokens":7},'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"caf\\u00e9 \\/"},"finish_reason":"stop"}] \n}\n'
)
END_TO_END = (
    (b"x-request-id", b"req_1"),
    (b"x-ratelimit-remaining-tokens", b"149984"),
    (b"x-ratelimit-reset-tokens", b"6ms"),
    (b"openai-processing-ms", b"12"),
    (b"openai-version", b"2020-10-01"),
    (b"set-cookie", b"a=1"),
    (b"set-cookie", b"b=2"),
    (b"date", b"Mon, 01 Jan 2024 00:00:00 GMT"),
    (b"server", b"cloudflare"),
    (b"x-odd", b'caf\xe9 "quoted"; q=1'),
)
LINES = tuple(name + b": " + value for name, value in END_TO_END)
FAILURES = {
    "rate limit": (
        b"429 Too Many Requests",
        b'{"error":{"message":"Slow down.","type":"requests","param":null,"code":"rate_limit_exceeded","odd":1.0}}\n',
        b"application/json; charset=utf-8",
    ),
    "overload": (b"503 Service Unavailable", b"upstream connect error", b"text/plain"),
    "page": (b"502 Bad Gateway", b"<html>\xff\xfe</html>", b"text/html"),
    "teapot": (b"418 Short", b"", b"application/json"),
    "overflow": (
        b"400 Bad Request",
        b'{"error": {"code": "context_length_exceeded","message":"too long"}}',
        b"application/json",
    ),
}


def own(headers: tuple[tuple[str, str], ...]) -> set[str]:
    return {name for name, _ in headers if name.startswith("x-context-")}


# Whole answers


def test_end_to_end_headers_are_exact(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Repeats stay repeats, and there is exactly one date and one server."""
    hop_by_hop = (b"keep-alive: timeout=5", b"x-hop: 1", b"connection: keep-alive, X-Hop", b"trailer: x")
    kind = b"application/json; charset=UTF-8"
    scripted.then(answer(COMPLETION, *LINES, *hop_by_hop, kind=kind))
    answered = post(before_scripted().url, chat())
    passed = [pair for pair in answered.headers if pair[0] not in own(answered.headers) | {"content-length"}]
    assert passed == [
        ("content-type", kind.decode()),
        *((name.decode(), value.decode("latin-1")) for name, value in END_TO_END),
    ]
    assert answered.header("content-length") == str(len(answered.body))


def test_answers_without_date_and_server_get_one_each(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.default = (answer(COMPLETION),)
    steno = before_scripted()
    for answered in (
        post(steno.url, chat()),
        post(steno.url, b"{}", b"x_bad: 1"),
        send(steno.url, request_bytes(None, method="GET", target="/livez")),
        send(steno.url, request_bytes(None, method="GET", target="/nowhere")),
        send(steno.url, request_bytes(None, method="GET", target="/context/nowhere")),
    ):
        assert len(answered.all("date")) == 1
        assert answered.all("server") == ["steno"]


def test_plain_answer_is_the_providers_with_two_members_more(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """Taking them out gives the provider's bytes; the usage is the provider's."""
    scripted.then(answer(COMPLETION))
    answered = post(before_scripted().url, chat())
    status = (
        b'"context_status":"full","context":' + json.dumps(answered.json["context"], separators=(",", ":")).encode()
    )
    assert answered.body.count(status) == 1
    assert answered.body.replace(b"," + status, b"") == COMPLETION
    assert answered.json["usage"] == {"prompt_tokens": 7}


def test_plain_answer_tells_of_a_compaction(simulator: Simulator, steno: StartSteno) -> None:
    """The body and the headers agree."""
    answered = post(steno().url, chat(long_history()))
    context = answered.json["context"]
    assert answered.json["context_status"] == context["status"] == "summarized"
    assert context["actions"] == ["summarized"]
    assert len(context["chunks"]) == 1
    tokens = context["tokens"]
    assert tokens["saved"] == tokens["estimated"] - tokens["forwarded"] > 0
    assert {name: value for name, value in answered.headers if name.startswith("x-context-")} == {
        "x-context-request-id": answered.header("x-context-request-id"),
        "x-context-status": "summarized",
        "x-context-actions": "summarized",
        "x-context-conversation-id": context["conversation_id"],
        "x-context-tokens-before": str(tokens["estimated"]),
        "x-context-tokens-after": str(tokens["forwarded"]),
        "x-context-window": "8000",
    }
    assert answered.json["usage"]["prompt_tokens"] == simulator.chats[0].prompt_tokens


def test_members_are_left_out_where_the_operator_says_so(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.default = (answer(COMPLETION),)
    answered = post(before_scripted(events={"body": False}).url, chat())
    assert answered.body == COMPLETION
    assert answered.header("x-context-status") == "full"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[1]", b"application/json"),
        (b'"text"', b"application/json"),
        (b"{broken", b"application/json"),
        (b'{"a":1,"a":2}', b"application/json"),
        (b"", b"application/json"),
        (b'{"a":1}', b"text/plain"),
        (b"\x00\xff", b"application/octet-stream"),
    ],
)
def test_answer_that_is_no_json_object_passes_as_it_is(
    scripted: ScriptedProvider, before_scripted: StartSteno, body: bytes, kind: bytes
) -> None:
    scripted.then(answer(body, kind=kind))
    answered = post(before_scripted().url, chat())
    assert (answered.status, answered.body) == (200, body)
    assert answered.header("x-context-status") == "full"


def test_empty_object_gets_its_members(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.then(answer(b"{ }"))
    assert post(before_scripted().url, chat()).json["context_status"] == "full"


def test_encoded_answer_passes_as_it_is(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """From a provider that compresses although it was not asked to."""
    scripted.then(answer(b"\x1f\x8b not read", b"content-encoding: gzip"))
    answered = post(before_scripted().url, chat())
    assert answered.body == b"\x1f\x8b not read"
    assert answered.header("content-encoding") == "gzip"


@pytest.mark.parametrize("stream", [False, True])
def test_chunked_answer_arrives_whole(scripted: ScriptedProvider, before_scripted: StartSteno, stream: bool) -> None:
    """Hop-by-hop framing is Steno's own."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    scripted.then(head + chunked(COMPLETION[:20]) + chunked(COMPLETION[20:]) + LAST_CHUNK)
    answered = post(before_scripted().url, chat(stream=stream))
    assert answered.json["id"] == "chatcmpl-1"
    assert answered.header("content-length") == str(len(answered.body))


def test_two_answers_are_told_apart_by_their_reasons(simulator: Simulator, steno: StartSteno) -> None:
    """A floor over the window is forwarded, with the reason, and nothing loops."""
    huge = [{"role": "user", "content": "word " * 8_100}]
    answered = post(steno().url, chat([*turns(3)[:-1], *huge]))
    assert answered.status == 400
    assert answered.header("x-context-status") == "full"
    assert (answered.header("x-context-reason") or "").startswith("floor_exceeds_limit")
    assert len(simulator.log) == 1


def test_reason_that_quotes_the_request_breaks_no_header(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """A model's name may hold anything."""
    scripted.default = (answer(b"{}"),)
    body = chat([{"role": "user", "content": "word " * 8_000}], model="gpt\r\nx-evil: 1\x00é")
    answered = post(before_scripted().url, body)
    assert answered.status == 200
    assert answered.header("x-evil") is None
    assert "gpt??x-evil: 1??" in (answered.header("x-context-reason") or "")


def test_tools_and_formats_count_towards_the_floor(simulator: Simulator, steno: StartSteno) -> None:
    url = steno().url
    tool = {"type": "function", "function": {"name": "f", "description": "word " * 8_000}}
    for members in (
        {"tools": [tool]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "description": "word " * 8_000}}},
    ):
        answered = post(url, chat(turns(2), **members))
        assert (answered.header("x-context-reason") or "").startswith("floor_exceeds_limit"), members
    assert not simulator.summaries


# Errors


@pytest.mark.parametrize(("status", "body", "kind"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_providers_errors_pass_to_the_byte(
    scripted: ScriptedProvider, before_scripted: StartSteno, status: bytes, body: bytes, kind: bytes, stream: bool
) -> None:
    """Status, retry headers and bytes, once."""
    advice = (b"retry-after: 7", b"retry-after-ms: 6500", b"x-should-retry: true", b"x-request-id: req_9")
    scripted.default = (answer(body, *advice, status=status, kind=kind),)
    answered = post(before_scripted().url, chat(stream=stream))
    assert (answered.status, answered.body) == (int(status[:3]), body)
    for line in advice:
        name, _, value = line.decode().partition(": ")
        assert answered.all(name) == [value]
    assert answered.header("content-type") == kind.decode()
    assert answered.header("content-length") == str(len(body))
    assert answered.header("x-context-status") == "full"
    assert len(scripted.requests) == 1


def test_rate_limit_is_not_held_back(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.default = (answer(b"{}", b"retry-after: 30", status=b"429 Too Many Requests"),)
    url = before_scripted().url
    began = time.monotonic()
    assert post(url, chat()).status == 429
    assert time.monotonic() - began < 25


def test_compacted_request_that_is_refused_gets_the_refusal(simulator: Simulator, steno: StartSteno) -> None:
    """With what was done to it in the headers."""
    simulator.next_chat(status=429, retry_after=2)
    answered = post(steno().url, chat(long_history()))
    assert answered.status == 429
    assert answered.header("retry-after-ms") == "2000"
    assert answered.header("x-context-status") == "summarized"
    assert answered.json["error"]["code"] == "rate_limit_exceeded"


def test_sdk_retries_as_it_would_without_steno(simulator: Simulator, steno: StartSteno) -> None:
    """Three requests, not nine."""
    simulator.chat_default = Fault(status=503, retry_after=0.01)
    with pytest.raises(openai.InternalServerError):
        steno().sdk(max_retries=2).chat.completions.create(model=MODEL, messages=HELLO)
    assert len(simulator.chats) == 3


def test_provider_that_cannot_be_reached_is_a_502(steno: StartSteno) -> None:
    """In OpenAI's envelope, without addresses or exceptions in it, and repeating may help."""
    port = closed_port()
    url = steno(upstream={"base_url": f"http://127.0.0.1:{port}/v1/secret-path"}).url
    for answered in (post(url, chat()), send(url, request_bytes(None, method="GET", target="/v1/models"))):
        assert answered.status == 502
        error = answered.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "upstream_unreachable"
        assert "Check that it is running, that its base_url in Steno's settings is right" in error["message"]
        assert "secret-path" not in error["message"]
        assert "Traceback" not in error["message"]
        assert answered.header("x-should-retry") is None
        assert answered.header("retry-after") == "1"


def test_provider_that_closes_without_an_answer_is_a_502(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """A request that may have been processed is not sent again."""
    scripted.default = ("close",)
    answered = post(before_scripted().url, chat())
    assert (answered.status, answered.json["error"]["code"]) == (502, "upstream_disconnected")
    assert answered.header("x-context-status") == "full"
    assert len(scripted.requests) == 1


def test_provider_that_is_silent_for_too_long_is_a_504(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.default = ("hang",)
    url = before_scripted(upstream={"first_byte_seconds": 0.3}).url
    answered = post(url, chat())
    assert (answered.status, answered.json["error"]["code"]) == (504, "upstream_timeout")
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)


def test_plain_answer_that_breaks_off_is_no_answer(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """The part that came is not taken for the whole."""
    scripted.then(answer(COMPLETION)[:-10], "close")
    answered = post(before_scripted().url, chat())
    assert (answered.status, answered.json["error"]["code"]) == (502, "upstream_disconnected")


def test_error_that_breaks_off_breaks_off(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """With curl's exit code for a partial file."""
    scripted.default = (answer(b"x" * 100, status=b"500 Oops")[:-10], "close")
    url = f"{before_scripted().url}/v1/chat/completions"
    assert curl(url, "--data", chat().decode(), "-H", "content-type: application/json").returncode == 18
    with pytest.raises(IncompleteRead):
        post(url.removesuffix("/v1/chat/completions"), chat())


def test_providers_patience_begins_anew_with_each_piece(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """Total time is not bounded, the time between two pieces is."""
    half = len(COMPLETION) // 2
    head = answer(COMPLETION)[: -len(COMPLETION)]
    upstream = {"first_byte_seconds": 20, "between_bytes_seconds": 2.5}
    url = before_scripted(upstream=upstream).url
    scripted.then(head, 1.3, COMPLETION[:half], 1.3, COMPLETION[half:])
    assert post(url, chat()).status == 200
    scripted.then(3.0, answer(COMPLETION))
    assert post(url, chat()).status == 200
    scripted.then(head + COMPLETION[:half], "hang")
    assert post(url, chat()).status == 504


def test_redirect_is_the_clients_to_follow(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K1, K2"""
    scripted.default = (answer(b"", b"location: http://127.0.0.1:9/v1", status=b"307 Temporary Redirect"),)
    url = before_scripted().url
    for answered in (post(url, chat()), send(url, request_bytes(None, method="GET", target="/v1/models"))):
        assert (answered.status, answered.header("location")) == (307, "http://127.0.0.1:9/v1")
    assert len(scripted.requests) == 2


def test_informational_answers_are_not_the_answer(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.then(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", 0.05, answer(COMPLETION))
    assert post(before_scripted().url, chat()).json["id"] == "chatcmpl-1"


def test_own_errors_are_openais(steno: StartSteno) -> None:
    """Never 500 for bad input, and an SDK is told not to repeat what cannot succeed."""
    url = steno(limits={"body_bytes": 1_000}).url
    requests: dict[int, list[bytes]] = {
        400: [
            request_bytes(b"{}", b"x_real_ip: 1"),
            request_bytes(None, method="GET", target="/v1/../context/conversations"),
            request_bytes(b"not JSON", target="/context/plan"),
            request_bytes(None, method="GET", target="/context/conversations?limit=1000"),
            request_bytes(None, method="GET", target="/context/conversations?after=nobody"),
        ],
        404: [
            request_bytes(None, method="GET", target="/context/conversations/nobody"),
            request_bytes(None, method="GET", target="/context/nowhere"),
            request_bytes(None, method="GET", target="/nowhere"),
        ],
        405: [request_bytes(None, method="POST", target="/livez")],
        413: [request_bytes(chat(padding="x" * 1_000))],
        431: [request_bytes(b"{}", b"x-large: " + b"a" * 33_000)],
    }
    for status, asked in requests.items():
        for request in asked:
            answered = send(url, request)
            assert answered.status == status, (request, answered)
            assert set(answered.json["error"]) == {"message", "type", "param", "code"}
            assert answered.json["error"]["message"].endswith(".")
            assert answered.header("x-should-retry") == "false"


def test_sdk_reads_own_errors(steno: StartSteno) -> None:
    client = steno(limits={"body_bytes": 1_000}).sdk(max_retries=2)
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 1_000}])
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


@pytest.mark.slow
def test_trouble_of_stenos_own_does_not_fail_a_request(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Whatever goes wrong before the provider is asked, the client's own bytes may still be good."""

    class Broken:
        async def identify(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        async def prepare(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    for part in ("conversations", "compactor"):
        steno = before_scripted()
        setattr(steno.services, part, Broken())
        for stream in (False, True):
            body = chat(long_history(), stream=stream)
            answered = post(steno.url, body)
            assert answered.status == 200
            assert answered.header("x-context-status") == "full"
            assert answered.header("x-context-reason") == "internal_error"
            assert hashlib.sha256(scripted.requests[-1].body).digest() == hashlib.sha256(body).digest()

"""Paths, methods, base URLs, names of conversations, and who may ask."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import openai
import pytest
from structlog.testing import capture_logs

from app.main import create_app
from app.settings import load
from app.wire.format import WireFormat
from app.wire.formats import FORMATS
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import HELLO, MODEL, chat, long_history
from tests.e2e.raw import CHAT, Answer, connected, curl, get, is_closed, post, request_bytes, send
from tests.e2e.running import StartSteno, forget_environment
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, closed_port

BINARY = bytes(range(256)) * 400
LONG = long_history()


# Relayed paths


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_every_method_is_relayed(scripted: ScriptedProvider, before_scripted: StartSteno, method: str) -> None:
    scripted.default = (answer(b"\x00\xff", b"x-a: 1", b"x-a: 2", status=b"207 Multi-Status", kind=b"x/y"),)
    answered = send(before_scripted().url, request_bytes(BINARY, method=method, target="/v1/responses/r_1?a=b"))
    [received] = scripted.requests
    assert received.head.startswith(f"{method} /v1/responses/r_1?a=b HTTP/1.1".encode())
    assert hashlib.sha256(received.body).digest() == hashlib.sha256(BINARY).digest()
    assert (answered.status, answered.body, answered.all("x-a")) == (207, b"\x00\xff", ["1", "2"])
    assert [name for name, _ in answered.headers if name.startswith("x-context-")] == ["x-context-request-id"]


def test_head_has_the_headers_of_a_body_that_does_not_come(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.default = (answer(b"")[:-2].replace(b"length: 0", b"length: 1234") + b"\r\n",)
    answered = get(before_scripted().url, "/v1/models", method="HEAD")
    assert (answered.status, answered.header("content-length"), answered.body) == (200, "1234", b"")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body_pass(scripted: ScriptedProvider, before_scripted: StartSteno, status: bytes) -> None:
    """And the connection stays usable."""
    scripted.default = (
        b"HTTP/1.1 " + status + b"\r\netag: x\r\n" + b"content-length: 99\r\n" * (b"304" in status) + b"\r\n",
    )
    with connected(before_scripted().url) as connection:
        for _ in range(2):
            connection.sendall(request_bytes(None, method="GET", target="/v1/files/f_1"))
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 " + status[:3])
            assert b"etag: x" in received


def test_upload_is_relayed_to_the_byte(simulator: Simulator, steno: StartSteno) -> None:
    """Through the official client, and larger than a chat may be."""
    served = steno(limits={"body_bytes": 1_000})
    uploaded: Any = served.sdk().files.create(file=("a.bin", BINARY * 20), purpose="user_data")
    [record] = simulator.others
    assert BINARY * 20 in record.body
    assert uploaded.sha256 == hashlib.sha256(record.body).hexdigest()
    assert (record.header("content-type") or "").startswith("multipart/form-data; boundary=")


def test_chunked_upload_is_relayed(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    url = before_scripted().url
    head = request_bytes(None, b"transfer-encoding: chunked", target="/v1/files")
    for target in ("/v1/files", CHAT):
        body = chunked(BINARY[:1000]) + chunked(BINARY[1000:]) + LAST_CHUNK
        assert send(url, head.replace(b"/v1/files", target.encode()) + body).status == 200
    assert [request.body for request in scripted.requests] == [BINARY, BINARY]


def test_speech_is_relayed_to_the_byte(steno: StartSteno, provider: Any) -> None:
    arguments: Any = {"model": "tts-1", "voice": "alloy", "input": "Hello."}
    direct = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-test")
    with direct:
        expected = direct.audio.speech.create(**arguments).content
    assert steno().sdk().audio.speech.create(**arguments).content == expected


def test_models_and_embeddings_are_the_providers(simulator: Simulator, steno: StartSteno, provider: Any) -> None:
    served = steno()
    assert get(served.url, "/v1/models").body == get(provider.url, "/v1/models").body
    vector = served.sdk().embeddings.create(model="e", input="x").data[0].embedding
    assert len(vector) == 8
    assert len(simulator.chats) == 0


def test_unknown_paths_get_the_providers_answer(steno: StartSteno, provider: Any) -> None:
    served = steno()
    for target in ("/v1/unheard-of", "/v1", "/v1/", "/v1/chat/completions/c_1"):
        direct, through = get(provider.url, target), get(served.url, target)
        assert (through.status, through.body) == (direct.status, direct.body)


@pytest.mark.parametrize(
    "target", ["/v1/messages/batches", "/v1/responses/compact", "/v1/completions", "/v1/embeddings"]
)
def test_nothing_but_a_formats_own_path_is_compacted(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str
) -> None:
    body = chat(LONG)
    send(before_scripted().url, request_bytes(body, target=target))
    assert [request.body for request in scripted.requests] == [body]


PATHS = ", ".join(format_.path.decode() for format_ in FORMATS)
NOT_COMPACTED = f"path_not_compacted: only POST {PATHS} is compacted"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/v1/responses/compact", "native_compaction"),
        ("/v1/responses/input_tokens", NOT_COMPACTED),
        ("/u/default/v1/messages/count_tokens/?beta=true", NOT_COMPACTED),
        ("/v1/messages/batches", NOT_COMPACTED),
        ("/c/mine/v1/completions", NOT_COMPACTED),
        ("/v1/complete", NOT_COMPACTED),
        ("/v1/conversations", "server_state"),
        ("/v1/conversations/conv_1/items", "server_state"),
        ("/v1/threads", "server_state"),
        ("/v1/threads/runs", "server_state"),
        ("/v1/threads/t_1/messages", "server_state"),
        ("/v1/threads/t_1/runs", "server_state"),
        ("/openai/deployments/mine/chat/completions?api-version=1", NOT_COMPACTED),
        ("/openai/v1/chat/completions", NOT_COMPACTED),
        ("/openai/responses", NOT_COMPACTED),
    ],
)
def test_conversation_that_passes_uncompacted_is_told_so(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str, reason: str
) -> None:
    """Nothing is hidden."""
    url = before_scripted().url
    for status in (b"200 OK", b"429 Too Many Requests"):
        scripted.default = (answer(b'{"a": 1}', status=status),)
        answered = post(url, chat(LONG, input="Hello."), target=target)
        assert (str(answered.status), answered.body) == (status[:3].decode(), b'{"a": 1}')
        assert answered.header("x-context-status") == "bypassed"
        assert answered.header("x-context-reason") == reason


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/responses"),
        ("POST", "/v1/responses/r_1/cancel"),
        ("POST", "/v1/messages/batches/b_1/cancel"),
        ("GET", "/v1/messages/batches"),
        ("POST", "/v1/threads/t_1/runs/r_1/cancel"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
    ],
)
def test_what_carries_no_conversation_is_told_nothing(before_scripted: StartSteno, method: str, target: str) -> None:
    answered = send(before_scripted().url, request_bytes(chat(), method=method, target=target))
    told = [name for name, _ in answered.headers if name.startswith("x-context-")]
    assert told == ["x-context-request-id"]


def test_conversation_that_passes_uncompacted_is_told_also_when_nobody_answers(start_steno: StartSteno) -> None:
    answered = post(start_steno(f"http://127.0.0.1:{closed_port()}").url, chat(LONG), target="/v1/completions")
    assert (answered.status, answered.header("x-context-status")) == (502, "bypassed")


def test_word_of_a_steno_behind_stands_on_what_passes_uncompacted(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """A later release may compact it."""
    scripted.default = (answer(b"{}", b"x-context-status: summarized"),)
    answered = post(before_scripted().url, chat(LONG), target="/v1/completions")
    assert answered.all("x-context-status") == ["summarized"]
    assert answered.header("x-context-reason") is None


def test_conversations_that_pass_uncompacted_are_logged_once_a_minute_for_each_path(
    before_scripted: StartSteno,
) -> None:
    url = before_scripted().url
    with capture_logs() as logged:
        for target in ("/v1/threads", "/v1/completions", "/c/a/v1/threads", "/c/b/v1/threads/", "/v1/embeddings"):
            post(url, chat(LONG), target=target)
        for _ in range(2):
            post(url, b"{")
    lines = [line for line in logged if line["event"] == "conversations passed un-compacted"]
    assert [(line["path"], line["times"]) for line in lines] == [
        ("/v1/threads", 1),
        ("/v1/completions", 1),
        ("/v1/chat/completions", 1),
    ]
    assert [line["reason"].partition(":")[0] for line in lines] == [
        *("server_state", "path_not_compacted", "unreadable")
    ]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/meta%2Fllama%203?x=%zz&y=a+b;c&z=%2F#",
        "/v1//double//slash/",
        "/v1/a;b=c/d:e@f!$&'()*,=~",
    ],
)
def test_target_is_passed_as_received(scripted: ScriptedProvider, before_scripted: StartSteno, target: str) -> None:
    """K3"""
    get(before_scripted().url, target)
    assert scripted.requests[0].target == target.removesuffix("#").encode("latin-1")


def test_clients_v1_is_replaced_by_the_path_of_the_base_url(scripted: ScriptedProvider, steno: StartSteno) -> None:
    for path, expected in (("", b"/models"), ("/", b"/models"), ("/api/v1beta/openai/", b"/api/v1beta/openai/models")):
        get(steno(upstream={"base_url": scripted.url + path}).url, "/v1/models")
        assert scripted.requests[-1].target == expected
    get(steno(upstream={"base_url": scripted.url}).url, "/v1")
    assert scripted.requests[-1].target == b"/"


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../admin",
        "/v1/x/./y",
        "/v1/%2e%2e/admin",
        "/v1/.%2E/admin",
        "/v1/files/..%2f..%2fadmin",
        "/v1/..",
        "/c/x/v1/../../admin",
        "/v1/..?a=b",
    ],
)
def test_dot_segments_are_refused(scripted: ScriptedProvider, before_scripted: StartSteno, target: str) -> None:
    """K3"""
    answered = get(before_scripted().url, target)
    assert (answered.status, answered.json["error"]["code"]) == (400, "invalid_target")
    assert not scripted.requests


def test_dots_elsewhere_are_no_segments(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K3"""
    url = before_scripted().url
    for target in ("/v1/models/gpt-4.1", "/v1/files/..a", "/v1/x?path=../y", "/v1/..."):
        assert get(url, target).status == 200
        assert scripted.requests[-1].target == target.encode()


@pytest.mark.parametrize("target", ["/livez", "/readyz", "/healthz"])
def test_own_paths_stay_out_of_v1(scripted: ScriptedProvider, before_scripted: StartSteno, target: str) -> None:
    """And none of them asks the provider."""
    url = before_scripted().url
    assert get(url, target).status == 200
    assert not scripted.requests
    get(url, f"/v1{target}")
    assert scripted.requests[0].target == f"/v1{target}".encode()


@pytest.mark.parametrize("target", ["/v1x/models", "/V1/models", "//v1/models", "/c//v1/models", "/c/x/v2/models"])
def test_other_paths_are_not_relayed(scripted: ScriptedProvider, before_scripted: StartSteno, target: str) -> None:
    assert get(before_scripted().url, target).status == 404
    assert not scripted.requests


@pytest.mark.parametrize(
    ("written", "format_"),
    list(
        zip(
            (
                *("/v1/{}", "/v1//{}", "//v1/{}", "/v1/v1/{}", "/v1/v1/v1//{}", "//v1//v1/{}/", "/c/mine/v1/v1/{}"),
                *("/u/default//v1/{}", "/u/default/v1//{}", "//c/mine//u/default//v1/v1/{}"),
                *("/v1/{escaped}", "/v1/v1//{escaped}", "/c/mine/v1/{escaped}/"),
            ),
            cycle(FORMATS),
            strict=False,
        )
    ),
)
def test_another_spelling_leads_to_the_path_that_is_meant(
    simulator: Simulator, steno: StartSteno, format_: WireFormat, written: str
) -> None:
    """And is compacted there."""
    member = "input" if format_.name == "responses" else "messages"
    most = {"max_output_tokens": 50, "store": False} if member == "input" else {"max_tokens": 50}
    body = json.dumps({"model": MODEL, member: LONG, **most})
    rest = format_.path.decode().removeprefix("/v1/")
    target = written.format(rest, escaped="".join(f"%{ord(each):02x}" for each in rest))
    answered = post(steno().url, body.encode(), b"x-context-conversation-id: mine", target=target + "?a=%2F%2Fb")
    assert (answered.status, answered.header("x-context-status")) == (200, "summarized")
    [record] = simulator.chats
    assert record.target == f"{format_.path.decode()}?a=%2F%2Fb"


def test_a_doubled_slash_or_v1_elsewhere_passes_as_it_is(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    url = before_scripted().url
    for target in (
        "/v1/v1/models",
        "/v1//models",
        "/v1/v1",
        "/v1/files//v1/v1/messages",
        "/openai//responses",
        "/v1/v1x/messages",
        "/v1/%6Dodels",
        "/v1/%2563hat/completions",
    ):
        assert post(url, chat(), target=target).status == 200
        assert scripted.requests[-1].target == target.encode()
    assert post(url, chat(LONG), target="/c//v1/v1/chat/completions").status == 404


def test_path_that_is_meant_is_counted_and_counts_as_a_providers(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    url = before_scripted().url
    post(url, chat(HELLO), b"origin: http://localhost:5173", target="//v1//messages/count_tokens")
    assert [request.target for request in scripted.requests] == [b"/v1/messages/count_tokens"]


@pytest.mark.parametrize(
    ("target", "base"),
    [
        ("/chat/completions", "/v1"),
        ("//chat/completions?key=secret", "/v1"),
        ("/responses", "/v1"),
        ("/responses/r_1", "/v1"),
        ("/models", "/v1"),
        ("/embeddings", "/v1"),
        ("//v1/models", "/v1"),
        ("/c/mine/chat/completions", "/c/mine/v1"),
        ("/u/default/c/mine/messages", "/u/default/c/mine/v1"),
        ("/messages/count_tokens", "/v1"),
    ],
)
def test_a_path_without_v1_is_answered_with_the_base_url_to_set(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str, base: str
) -> None:
    url = before_scripted().url
    answered, got = post(url, chat(LONG), target=target), get(url, target)
    error = answered.json["error"]
    assert (answered.status, error["code"], scripted.requests) == (404, "unknown_path", [])
    assert (got.status, got.json) == (404, answered.json)
    path = target.partition("?")[0]
    told = f"Steno has no {path}. Set the client's base URL to http://steno.test{base}."
    bare = f"http://steno.test{base.removesuffix('/v1')}"
    if "/messages" in path:
        told += f" A client that adds /v1 itself, as Anthropic's do, needs {bare}, without /v1."
    assert error["message"] == told


def test_base_url_to_set_is_https_behind_a_proxy_that_says_so(before_scripted: StartSteno) -> None:
    answered = post(before_scripted().url, chat(), b"x-forwarded-proto: https", target="/chat/completions")
    assert "to https://steno.test/v1." in answered.json["error"]["message"]


@pytest.mark.parametrize("target", ["/chat", "/modelsx", "/context/models", "/v2/models"])
def test_other_unknown_paths_name_no_base_url(before_scripted: StartSteno, target: str) -> None:
    assert "base URL" not in post(before_scripted().url, chat(), target=target).json["error"]["message"]


# Names of conversations


def name_of(answered: Answer) -> str | None:
    """As it is in JSON; the header has it percent-encoded."""
    name: str | None = answered.json["context"]["conversation_id"]
    assert unquote(answered.header("x-context-conversation-id") or "", errors="strict") == name
    return name


def test_conversation_is_named_by_the_first_place_that_names_it(before_scripted: StartSteno) -> None:
    """In the order that docs/rest.md tells."""
    identity = {"body_names": ["prompt_cache_key", "user"]}
    url = before_scripted(identity=identity).url
    headers = [
        b"x-context-conversation-id: 1",
        b"x-conversation-id: 2",
        b"x-session-id: 3",
        b"x-openwebui-chat-id: 4",
        b"x-claude-code-session-id: 5",
        b"session-id: 6",
        b"session_id: 6b",
    ]
    members: list[dict[str, Any]] = [
        {"conversation_id": "7"},
        {"metadata": {"conversation_id": "8"}},
        {"metadata": {"session_id": "9"}},
    ]
    last: list[dict[str, Any]] = [{"prompt_cache_key": "11"}, {"user": "12"}]
    target = "/c/10/v1/chat/completions"
    for number, header in enumerate(headers):
        named = name_of(post(url, chat(conversation_id="7"), *headers[number:], target=target))
        assert named == header.rpartition(b" ")[2].decode()
    for number, _ in enumerate(members):
        body = chat(
            **{**last[0], **{key: value for member in reversed(members[number:]) for key, value in member.items()}}
        )
        assert name_of(post(url, body, target=target)) == str(number + 7)
    assert name_of(post(url, chat(**last[0], **last[1]), target=target)) == "10"
    assert name_of(post(url, chat(**last[0], **last[1]))) == "11"
    assert name_of(post(url, chat(**last[1]))) == "12"
    assert (name_of(post(url, chat([{"role": "user", "content": "Never heard."}]))) or "").startswith("conv_")


def test_headers_that_the_operator_lists_name_it_in_place_of_those_of_known_tools(before_scripted: StartSteno) -> None:
    url = before_scripted(identity={"session_headers": ["X-Ticket", "x-desk"]}).url
    named = [b"x-session-id: 3", b"x-desk: 2", b"x-ticket: 1"]
    assert name_of(post(url, chat(), *named)) == "1"
    assert name_of(post(url, chat(), *named[:2])) == "2"
    assert name_of(post(url, chat(), *named, b"x-context-conversation-id: 0")) == "0"
    assert (name_of(post(url, chat([{"role": "user", "content": "Another."}]), named[0])) or "").startswith("conv_")


def test_base_url_can_name_the_conversation(simulator: Simulator, steno: StartSteno) -> None:
    """For tools that can only set a URL."""
    served = steno()
    client = served.sdk(base_url=f"{served.url}/c/my%20chat/v1")
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    assert raw.headers["x-context-conversation-id"] == "my chat"
    assert [model.id for model in client.models.list()]
    assert [record.target for record in simulator.log] == [CHAT, "/v1/models"]


@pytest.mark.parametrize("name", ["a/b", "50% of it", "..", "\u5f20\u4f1f \U0001f469\u200d\U0001f469"])
def test_conversation_may_have_any_name(before_scripted: StartSteno, name: str) -> None:
    """The same one in a header, a path and the body, and in the paths of what is stored."""
    steno = before_scripted()
    encoded = quote(name, safe="")
    for answered in (
        post(steno.url, chat(conversation_id=name)),
        post(steno.url, chat(metadata={"session_id": name})),
        post(steno.url, chat(), b"x-context-conversation-id: " + encoded.encode()),
        post(steno.url, chat(), b"session_id: " + encoded.encode()),
        post(steno.url, chat(), target=f"/c/{encoded}{CHAT}"),
    ):
        assert answered.status == 200
        assert name_of(answered) == name
    at = f"/context/conversations/{encoded}"
    assert get(steno.url, at).json["requests"] == 5
    assert get(steno.url, "/context/conversations").json["last_id"] == get(steno.url, at).json["id"] == name
    for below in ("/summaries", "/coverage", "/usage", "/pins"):
        assert get(steno.url, at + below).status == 200
    assert send(steno.url, request_bytes(b'{"indexes":[0]}', method="PUT", target=f"{at}/pins")).status == 200
    forced = send(steno.url, request_bytes(chat(), target=f"{at}/compact"))
    assert forced.json["context"]["conversation_id"] == name
    assert get(steno.url, at, method="DELETE").json["id"] == name
    assert get(steno.url, at).status == 404


def test_a_slash_in_a_name_is_no_part_of_the_path(before_scripted: StartSteno) -> None:
    """The conversation `a/pins` is deleted, and not the pins of `a`."""
    steno = before_scripted()
    post(steno.url, chat(conversation_id="a"))
    post(steno.url, chat([{"role": "user", "content": "Another."}], conversation_id="a/pins"))
    send(steno.url, request_bytes(b'{"indexes":[0]}', method="PUT", target="/context/conversations/a/pins"))
    deleted = get(steno.url, "/context/conversations/a%2Fpins", method="DELETE").json
    assert (deleted["object"], deleted["id"]) == ("conversation.deleted", "a/pins")
    assert len(get(steno.url, "/context/conversations/a/pins").json["data"]) == 1


@pytest.mark.parametrize(
    ("place", "headers", "target"),
    [
        ("x-context-conversation-id", [b"x-context-conversation-id: " + b"x" * 257], CHAT),
        ("/c/{id}/v1", [], f"/c/%ff{CHAT}"),
    ],
)
def test_an_unusable_name_in_a_place_of_stenos_own_is_refused_with_the_rule(
    scripted: ScriptedProvider, before_scripted: StartSteno, place: str, headers: list[bytes], target: str
) -> None:
    refused = post(before_scripted().url, chat(), *headers, target=target)
    assert refused.status == 400
    error = refused.json["error"]
    assert (error["code"], error["param"]) == ("invalid_request", place)
    assert "UTF-8 text of at most 256 characters without control characters" in error["message"]
    assert not scripted.requests


@pytest.mark.parametrize("target", ["/c/%ff/v1/models", "/c/a%00b/v1/responses", "/context/conversations/%ff/pins"])
def test_a_path_with_such_a_name_is_refused_wherever_it_leads(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str
) -> None:
    refused = get(before_scripted().url, target)
    assert refused.status == 400
    assert "at most 256 characters" in refused.json["error"]["message"]
    assert not scripted.requests


def test_an_unusable_name_from_a_header_of_another_tool_is_ignored(before_scripted: StartSteno) -> None:
    """The next place is read, and the log says so once."""
    url = before_scripted().url
    with capture_logs() as logged:
        for header in (b"x-session-id: " + b"x" * 257, b"x-session-id: caf\xe9", b"x-conversation-id: caf\xe9"):
            assert name_of(post(url, chat(conversation_id="mine"), header)) == "mine"
    ignored = [line["reason"] for line in logged if line["event"] == "a conversation's id was ignored"]
    assert [reason.partition(" ")[0] for reason in ignored] == ["x-session-id", "x-conversation-id"]


def test_instructions_may_change_without_a_new_summary(simulator: Simulator, steno: StartSteno) -> None:
    served = steno()
    for day in ("Monday", "Tuesday"):
        post(served.url, chat([{"role": "system", "content": f"It is {day}."}, *LONG]))
    assert len(simulator.summaries) == 1
    assert [record.messages[0]["content"] for record in simulator.chats if record.messages] == [
        "It is Monday.",
        "It is Tuesday.",
    ]


# Who may ask


@pytest.mark.parametrize("target", [CHAT, "/v1/models", "/v1/completions", "/context/conversations"])
@pytest.mark.parametrize(("peer", "status"), [("10.0.0.7", 401), ("127.0.0.1", 502)])
async def test_no_path_serves_other_machines_without_a_key(
    monkeypatch: pytest.MonkeyPatch, target: str, peer: str, status: int
) -> None:
    """An open relay would lend the provider behind it to everybody."""
    forget_environment(monkeypatch)
    app = create_app(load(upstream={"base_url": f"http://127.0.0.1:{closed_port()}"}, storage={"url": "memory"}))
    requests = asyncio.Queue[Any]()
    requests.put_nowait({"type": "http.request", "body": chat(), "more_body": False})
    answer: list[Any] = []

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "method": "GET" if target.startswith("/context") else "POST",
        "path": target,
        "raw_path": target.encode(),
        "query_string": b"",
        "http_version": "1.1",
        "headers": [
            (b"host", b"127.0.0.1:8080"),
            (b"content-type", b"application/json"),
            (b"content-length", b"1"),
        ],
        "client": (peer, 50_000),
    }
    services = app.state.services
    await services.store.start()
    await app(scope, requests.get, send)
    await services.providers.close()
    await services.store.close()
    expected = 200 if status == 502 and target.startswith("/context") else status
    assert answer[0]["status"] == expected
    assert status == 502 or json.loads(answer[1]["body"])["error"]["code"] == "missing_credentials"


# The command


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., commands.Serving]]:
    """Runs `steno serve`."""
    running: list[commands.Serving] = []

    def start(*arguments: str, **variables: Any) -> commands.Serving:
        running.append(commands.serve([*arguments], tmp_path, DATABASE_URL="memory", **variables))
        return running[-1]

    yield start
    for serving in running:
        serving.kill()


def test_key_is_never_in_the_commands_log(scripted: ScriptedProvider, serve: Callable[..., commands.Serving]) -> None:
    """Nor a message's text, whatever goes wrong."""
    key, text = b"sk-canary-5d41402abc4b", "canary words"
    authorization = b"authorization: Bearer " + key
    scripted.then("close").then(answer(b"x" * 10)[:-5], "close").then(b"nonsense\r\n\r\n", "close")
    serving = serve("--upstream", f"{scripted.url}/v1", STENO_LOG__LEVEL="debug")
    question = {"role": "user", "content": text}
    longer = [*LONG[:-1], question]  # Over the trigger of gpt-4's window.
    for body in (chat([question]), chat(longer, model="gpt-4"), chat(longer, model="gpt-4", stream=True)) * 2:
        for request in (
            request_bytes(body, authorization, usual=False),
            request_bytes(body, authorization, target="/v1/completions", usual=False),
        ):
            with connected(serving.url) as connection:
                connection.sendall(request)
                connection.recv(1 << 16)
    serving.terminate()
    assert serving.wait() == 0
    logged = (serving.folder / "stdout").read_bytes() + (serving.folder / "stderr").read_bytes()
    assert b"compaction failed" in logged
    assert key not in logged
    assert text.encode() not in logged


def test_command_closes_connections_that_owe_headers(
    scripted: ScriptedProvider, serve: Callable[..., commands.Serving]
) -> None:
    """What the tests serve is what the command serves."""
    serving = serve("--upstream", f"{scripted.url}/v1", STENO_LIMITS__RECEIVE_SECONDS="0.3")
    with connected(serving.url) as connection:
        connection.sendall(b"GET /liv")
        assert is_closed(connection)


def test_curl_gets_an_answer(steno: StartSteno) -> None:
    done = curl(f"{steno().url}{CHAT}", "--fail", "--data", chat().decode(), "-H", "content-type: application/json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["context_status"] == "full"


def test_azures_own_paths_are_relayed_as_they_are(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """They are not below the base URL's path, so they keep their own; nothing of them is compacted."""
    steno = before_scripted(upstream={"base_url": f"{scripted.url}/openai/v1"})
    path = b"/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    for target in (path, b"/v1/models"):
        get(steno.url, target.decode())
    assert [received.target for received in scripted.requests] == [path, b"/openai/v1/models"]

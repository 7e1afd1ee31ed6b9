"""The simulator over a real socket: the official SDK in front, and raw sockets for what an SDK hides."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from app.runtime.server import RunningServer, serve
from lab.simulator import Fault, Model, Simulator

MODEL = "gpt-4o"
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]


@pytest.fixture
def simulator() -> Simulator:
    return Simulator()


@pytest.fixture
def server(simulator: Simulator) -> Iterator[RunningServer]:
    with simulator.serve() as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url) as client:
        yield client


def post(server: RunningServer, payload: Any, *, headers: str = "") -> socket.socket:
    """A raw request on a connection of its own."""
    body = json.dumps(payload).encode()
    connection = socket.create_connection((server.host, server.port), timeout=5)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


# Plain answers


def test_plain_answer_names_the_turn_and_the_question(simulator: Simulator, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Answer 1: about in my cart?."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    [record] = simulator.chats
    assert (record.status, record.text) == (200, answer.choices[0].message.content)
    assert record.messages == HELLO
    assert record.prompt_tokens == answer.usage.prompt_tokens
    assert record.usage is not None


def test_resent_history_is_reported_as_cached(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=HELLO)
    more: Any = [*HELLO, {"role": "assistant", "content": "A lamp."}, {"role": "user", "content": "And now?"}]
    second = client.chat.completions.create(model=MODEL, messages=more)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 3


def test_reply_can_be_set(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.reply = lambda messages: f"{len(messages)} messages"
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message.content == "1 messages"


def test_answer_is_cut_at_the_callers_token_limit(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(text="word " * 100)
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=10)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 10


def test_refusal_stands_in_place_of_the_text(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.when(lambda _: True, refusal="I will not.")
    message = client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message
    assert (message.content, message.refusal) == (None, "I will not.")
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.refusal or "" for chunk in stream) == "I will not."


def test_fault_fields_reach_the_answer(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(
        text="", finish_reason="content_filter", extra={"provider": "x"}, usage={"prompt_tokens": 1}, headers={"a": "b"}
    )
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    answer = raw.parse()
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "content_filter"
    assert (answer.model_extra or {})["provider"] == "x"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 1
    assert raw.headers["a"] == "b"
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["openai-processing-ms"]


# Streams


def test_stream_is_written_as_the_fault_says(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(text="abcdef", chunk_size=2, role="every", preamble=b": hello\r\n\r\n", newline=b"\r\n")
    body = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": True}).text
    frames = body.split("\r\n\r\n")
    assert frames[0] == ": hello"
    assert frames[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(frame.removeprefix("data: "))["choices"][0]["delta"] for frame in frames[1:-2]]
    assert [delta["content"] for delta in deltas[1:-1]] == ["ab", "cd", "ef"]
    assert [delta.get("role") for delta in deltas] == [*["assistant"] * 4, None]


def test_stream_is_paced(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(text="abcd", chunk_size=1, delay=0.1, first_token_delay=0.1, chunk_delay=0.05)
    started = time.monotonic()
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    times = [time.monotonic() - started, *(time.monotonic() - started for _ in stream)]
    assert times[0] >= 0.1
    assert times[1] >= 0.2
    assert times[-1] >= 0.2 + 0.05 * 5


def test_stream_is_compressed_frame_by_frame_if_asked(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(gzip=True, chunk_delay=0.02)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, stream=True)
    assert raw.headers["content-encoding"] == "gzip"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in raw.parse()) == simulator.chats[0].text


# Errors


def test_overflow_is_the_sdks_bad_request_with_the_providers_code(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.window = 5
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 5 tokens" in caught.value.message
    assert simulator.chats[0].status == 400


def test_unknown_argument_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Unrecognized request argument supplied: context"):
        client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"context": {}})


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"


def test_rate_limit_says_when_to_come_back(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(status=429, retry_after=1.5)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO)
    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1500")
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert caught.value.code == "rate_limit_exceeded"


def test_faults_queue_up_and_a_refused_request_uses_none(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_chat(status=500)
    simulator.next_chat(status=503, error={"message": "busy", "type": "overloaded", "param": None, "code": "busy"})
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    for code in (None, "busy"):
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        assert caught.value.code == code
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices
    assert simulator.script.pending == 0


# Broken connections


def test_reset_and_close_break_the_http_answer(simulator: Simulator, server: RunningServer) -> None:
    payload = {"model": MODEL, "messages": HELLO, "stream": True}
    simulator.next_chat(cut="close", after=2)
    closed = read_all(post(server, payload))
    assert closed.count(b"data: ") == 2
    assert not closed.endswith(b"0\r\n\r\n")
    simulator.next_chat(cut="reset", after=2)
    with pytest.raises(ConnectionResetError):
        read_all(post(server, payload))
    assert [record.disconnected_at for record in simulator.chats] == [None, None]
    assert simulator.wait_for(lambda log: all(record.finished_at for record in log))


def test_clean_end_has_no_done(simulator: Simulator, server: RunningServer) -> None:
    payload = {"model": MODEL, "messages": HELLO, "stream": True}
    simulator.next_chat(cut="end", after=2)
    ended = read_all(post(server, payload, headers="Connection: close\r\n"))
    assert ended.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in ended


def test_answer_that_ends_with_its_connection_has_neither_length_nor_chunks(
    simulator: Simulator, server: RunningServer
) -> None:
    simulator.next_chat(framing="eof", cut="close", after=2)
    head, _, body = read_all(post(server, {"model": MODEL, "messages": HELLO, "stream": True})).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert body.startswith(b"data: {")
    assert body.count(b"data: ") == 2


def test_plain_answer_is_cut_after_so_many_bytes(simulator: Simulator, server: RunningServer) -> None:
    simulator.next_chat(cut="close", after=10)
    _, _, body = read_all(post(server, {"model": MODEL, "messages": HELLO})).partition(b"\r\n\r\n")
    assert len(body) == 10


@pytest.mark.parametrize(
    "fault", [Fault(delay=30), Fault(hang=True), Fault(first_token_delay=30), Fault(chunk_delay=30)]
)
def test_caller_who_leaves_is_noticed_at_once(simulator: Simulator, server: RunningServer, fault: Fault) -> None:
    simulator.next_chat(fault)
    connection = post(server, {"model": MODEL, "messages": HELLO, "stream": True})
    assert simulator.wait_for(lambda log: len(log) == 1)
    time.sleep(0.05)
    left = time.monotonic()
    connection.close()
    assert simulator.wait_for(lambda log: log[0].disconnected_at is not None, timeout=10)
    [record] = simulator.chats
    assert record.disconnected_at is not None
    assert record.disconnected_at - left < 10
    assert record.finished_at is None


def test_caller_who_leaves_before_the_body_is_complete_is_logged(simulator: Simulator, server: RunningServer) -> None:
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    assert simulator.wait_for(lambda log: len(log) == 1 and log[0].disconnected_at is not None)
    assert (simulator.chats[0].body, simulator.chats[0].status) == (b"{", None)


def test_caller_who_stays_is_never_called_disconnected(simulator: Simulator, client: openai.OpenAI) -> None:
    for _ in range(20):
        client.chat.completions.create(model=MODEL, messages=HELLO)
        list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert simulator.wait_for(lambda log: all(record.finished_at for record in log))
    assert not any(record.disconnected_at for record in simulator.log)


# Summaries


def test_summary_call_gets_a_short_extract_with_the_identifiers(simulator: Simulator, client: openai.OpenAI) -> None:
    lines = [f"Order {number} shipped as PKG-{number}X. " + "It was a long way to go. " * 5 for number in range(20)]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "\n".join(lines)}],
        max_completion_tokens=200,
        extra_headers={"x-context-call": "summary"},
    )
    text = answer.choices[0].message.content or ""
    assert len(text.split()) <= 120
    assert all(f"PKG-{number}X" in text for number in range(20))
    assert (len(simulator.summaries), len(simulator.chats)) == (1, 0)


def test_summary_faults_leave_chats_alone(simulator: Simulator, client: openai.OpenAI) -> None:
    simulator.next_summary(text="")
    assert client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message.content
    marked = {"x-context-call": "summary"}
    summary = client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=marked)
    assert summary.choices[0].message.content == ""


# Everything else


def test_models_tell_their_windows(client: openai.OpenAI) -> None:
    assert (client.models.list().data[0].model_extra or {})["context_window"] == 8_000
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_models_keep_their_windows_to_themselves_if_told_so() -> None:
    simulator = Simulator(models=[Model("small", window=100), "large"], announce_window=False)
    with simulator.serve() as server:
        listed = httpx2.get(f"{server.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["small", "large"]
    assert all("context_window" not in model for model in listed)


def test_uploads_speech_and_embeddings(simulator: Simulator, client: openai.OpenAI) -> None:
    file = client.files.create(file=("a.bin", io.BytesIO(bytes(range(256)) * 100)), purpose="user_data")
    body = simulator.log[0].body
    assert (file.filename, file.bytes) == ("a.bin", len(body))
    assert (file.model_extra or {})["sha256"] == hashlib.sha256(body).hexdigest()
    assert client.audio.speech.create(model="tts-1", voice="alloy", input="Hi").content.startswith(b"ID3")
    vectors = client.embeddings.create(model="text-embedding-3-small", input=["a", "b"]).data
    assert [len(vector.embedding) for vector in vectors] == [8, 8]


def test_echo_tells_what_arrived_and_the_log_has_it_raw(simulator: Simulator, server: RunningServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        connection.sendall(
            b"PATCH /v1/echo?a=%2F&b HTTP/1.1\r\nHoSt: x\r\nX-Twice: 1\r\nx-twice: 2\r\nConnection: close\r\n"
            b"Content-Length: 3\r\n\r\nabc"
        )
        _, _, body = read_all(connection).partition(b"\r\n\r\n")
    echo = json.loads(body)
    assert (echo["method"], echo["target"], echo["length"]) == ("PATCH", "/v1/echo?a=%2F&b", 3)
    assert echo["sha256"] == hashlib.sha256(b"abc").hexdigest()
    [record] = simulator.others
    assert record.headers[:3] == ((b"HoSt", b"x"), (b"X-Twice", b"1"), (b"x-twice", b"2"))
    assert (record.target, record.body, record.kind) == ("/v1/echo?a=%2F&b", b"abc", "other")


def test_unknown_paths_and_methods_are_refused_as_openai_does(http: httpx2.Client) -> None:
    unknown = http.post("/v1/nope?x=1")
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (404, "Invalid URL (POST /v1/nope)")
    wrong = http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_supported")


def test_other_endpoints_obey_the_script_too(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_other(status=503)
    assert [http.get("/v1/models").status_code for _ in range(2)] == [503, 200]


def test_json_answers_are_compressed_only_for_callers_who_accept_it(server: RunningServer) -> None:
    with httpx2.Client() as http:
        for accepted in ("gzip", "identity"):
            with http.stream("GET", f"{server.url}/v1/models", headers={"accept-encoding": accepted}) as answer:
                raw = b"".join(answer.iter_raw())
            plain = gzip.decompress(raw) if accepted == "gzip" else raw
            assert json.loads(plain)["object"] == "list"
            assert (answer.headers.get("content-encoding") == "gzip") is (accepted == "gzip")


def test_log_is_readable_over_http_and_can_be_emptied(simulator: Simulator, http: httpx2.Client) -> None:
    http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    [record] = http.get("/__log").json()
    assert (record["kind"], record["status"], json.loads(record["body"])["messages"]) == ("chat", 200, HELLO)
    assert len(http.delete("/__log").json()) == 0
    assert simulator.chats == ()
    http.get("/v1/models")
    assert simulator.log[0].sequence == 2


def test_load_runs_keep_a_short_log_without_bodies() -> None:
    simulator = Simulator(log_limit=2, log_bodies=False)
    with simulator.serve() as server:
        for _ in range(3):
            httpx2.post(f"{server.url}/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    assert [(record.sequence, record.body, record.status) for record in simulator.log] == [(2, b"", 200), (3, b"", 200)]


# The server


def test_any_application_can_be_served_with_its_lifespan() -> None:
    stages = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        stages.append((await receive())["type"])
        await send({"type": "lifespan.startup.complete"})
        stages.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})

    with serve(app, lifespan="on") as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
    assert stages == ["lifespan.startup", "lifespan.shutdown"]


def test_application_that_does_not_start_is_an_error() -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": ""})

    with pytest.raises(RuntimeError, match="did not start"):
        serve(app, lifespan="on")


async def test_without_its_own_server_the_simulator_is_a_plain_asgi_application() -> None:
    simulator = Simulator()
    simulator.next_chat(cut="reset")
    payload = {"model": MODEL, "messages": HELLO}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(simulator), base_url="http://x") as http:
        with pytest.raises(RuntimeError, match=r"Simulator\.serve"):
            await http.post("/v1/chat/completions", json=payload)
        assert (await http.post("/v1/chat/completions?a=1", json=payload)).status_code == 200
    assert simulator.chats[1].target == "/v1/chat/completions?a=1"


@pytest.mark.slow
def test_simulator_runs_standalone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lab.simulator", "--port", str(port), "--window", "20"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 -- a fixed command
        try:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = asyncio.run(answered(url, {"model": "anything", "messages": [*HELLO, *HELLO]}))
        finally:
            process.terminate()
    assert "maximum context length is 20 tokens" in answer["error"]["message"]


async def answered(url: str, payload: Any) -> Any:
    """The JSON answer, once the server accepts connections."""
    async with httpx2.AsyncClient() as http:
        for _ in range(400):
            try:
                return (await http.post(url, json=payload)).json()
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
    raise AssertionError("never accepted a connection")

"""Overflow: a provider that refuses a request for its size gets a smaller one, once; or the client its error."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from app.edge.connection import Exchange
from app.proxy import exchange
from lab.simulator import Fault, Simulator
from tests.e2e.histories import chat, long_history, turns, used
from tests.e2e.raw import Answer, connected, get, post, read_until, request_bytes
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

TRUSTING: Any = [{"match": "*", "context_window": 32_000}]
"""What the operator believes; the simulator's window is 8,000."""
TWICE: Any = [{"match": "*", "context_window": 2 * WINDOW}]
"""As much too large as a refusal corrects: beyond that the operator's word stands."""
TOO_LONG: Any = turns(22)
"""About 9,000 tokens."""
OVERFLOW = {
    "message": "This model's maximum context length is 8000 tokens. However, your messages resulted in 9100 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
ERROR = json.dumps({"error": OVERFLOW}, indent=1).encode()
COMPLETION = json.dumps(
    {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
).encode()


def documents() -> list[Any]:
    """Large tool results that can be cut without a summary: about 11,000 tokens."""
    talk: list[Any] = [{"role": "user", "content": "Read the reports."}]
    for number in range(4):
        talk += used(f"c{number}", "the report says that all is well " * 400)
    return [*talk, {"role": "assistant", "content": "All is well."}, {"role": "user", "content": "Sure?"}]


def actions(answered: Answer) -> list[str]:
    found: list[str] = json.loads(answered.body)["context"]["actions"]
    return found


def test_a_refused_request_is_compacted_and_sent_again(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(models=TWICE).url, chat(TOO_LONG))
    assert answered.status == 200
    assert actions(answered) == ["summarized", "recovered"]
    assert answered.header("x-context-status") == "summarized"
    assert [record.status for record in simulator.chats] == [400, 200]
    assert {record.status for record in simulator.summaries} == {200}
    assert (simulator.chats[1].prompt_tokens or 0) <= 0.6 * simulator.window


def test_what_the_refusal_told_holds_for_the_next_request(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(models=TWICE)
    post(proxy.url, chat(TOO_LONG))
    made = len(simulator.summaries)
    answered = post(proxy.url, chat([*TOO_LONG, {"role": "assistant", "content": "Yes."}, TOO_LONG[0]]))
    assert answered.status == 200
    assert answered.header("x-context-window") == "8000"
    assert [record.status for record in simulator.chats] == [400, 200, 200]
    assert made == len(simulator.summaries)


def test_large_texts_are_shortened_before_a_summary_is_made(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(models=TRUSTING).url, chat(documents()))
    assert answered.status == 200
    assert actions(answered) == ["shortened", "recovered"]
    assert answered.header("x-context-status") == "trimmed"
    assert answered.header("x-context-actions") == "shortened,recovered"
    assert not simulator.summaries


def test_why_there_was_no_summary_is_told_of_the_smaller_prompt_too(simulator: Simulator, steno: StartSteno) -> None:
    simulator.summary_default = Fault(status=400)
    almost: Any = [{"match": "*", "context_window": 15_000}]
    answered = post(steno(models=almost, compaction={"mask": {"enabled": False}}).url, chat(documents()))
    assert actions(answered) == ["shortened", "recovered"]
    assert answered.header("x-context-reason") == "summariser_status_400"


def test_a_stream_is_told_of_the_summary_and_goes_on(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(models=TRUSTING).url, chat(TOO_LONG, stream=True))
    assert (answered.header("x-context-status"), answered.header("x-context-actions")) == ("pending", None)
    events = [f for f in answered.body.split(b"\n\n") if b'"compaction":' in f]
    assert [b"compaction_started" in f for f in events] == [True, False]
    assert b"compaction_completed" in events[1]
    completed = json.loads(events[1].removeprefix(b"data: "))["compaction"]
    assert (completed["status"], completed["actions"]) == ("summarized", ["summarized", "recovered"])
    assert answered.body.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in answered.body
    assert simulator.summaries


def test_a_stream_that_is_shortened_begins_as_any_other(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(models=TRUSTING).url, chat(documents(), stream=True))
    assert answered.status == 200
    assert b'"compaction":' not in answered.body
    assert answered.body.endswith(b"data: [DONE]\n\n")
    assert not simulator.summaries


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_without_compaction_the_refusal_passes_to_the_byte(
    stream: bool, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.default = (answer(ERROR, status=b"400 Bad Request"),)
    steno = before_scripted(models=TRUSTING, compaction={"enabled": False})
    answered = post(steno.url, chat(TOO_LONG, stream=stream))
    assert (answered.status, answered.body) == (400, ERROR)
    assert len(scripted.requests) == 1


def test_a_second_refusal_brings_the_first_one_to_the_client(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.then(answer(ERROR, b"x-request-id: req_1", status=b"400 Bad Request"))
    scripted.default = (answer(ERROR.replace(b"9100", b"8500"), status=b"400 Bad Request"),)
    proxy = before_scripted(models=TRUSTING)
    answered = post(proxy.url, chat(documents()))
    assert (answered.status, answered.body, answered.header("x-request-id")) == (400, ERROR, "req_1")
    assert len(scripted.requests) == 2
    kept = get(proxy.url, f"/context/conversations/{answered.header('x-context-conversation-id')}")
    assert (kept.json["context_status"], answered.header("x-context-status")) == ("full", "full")


REFUSALS: dict[str, tuple[Any, ...]] = {
    "a status": (answer(ERROR, b"x-request-id: req_1", status=b"400 Bad Request"),),
    "an error frame": (stream_head() + chunked(b"data: " + json.dumps({"error": OVERFLOW}).encode() + b"\n\n"), "hang"),
    "a status, and a body without an end": (answer(ERROR + b" " * 100_000, status=b"400 Bad Request")[:-1], "hang"),
}


@pytest.mark.parametrize(
    ("failing", "stream"),
    [
        (("close",), False),
        (("reset",), True),
        ((b"SSH-2.0\r\n\r\n", "close"), False),
        (("hang",), True),
        (REFUSALS["an error frame"], True),
    ],
)
def test_a_second_attempt_that_is_not_answered_brings_the_refusal_to_the_client(
    failing: Any, stream: bool, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """A smaller prompt is our idea: what becomes of it is no answer to the client's own request."""
    scripted.then(*REFUSALS["a status"])
    scripted.default = failing
    steno = before_scripted(models=TRUSTING, upstream={"first_byte_seconds": 0.3})
    answered = post(steno.url, chat(documents(), stream=stream))
    assert (answered.status, answered.body, answered.header("x-request-id")) == (400, ERROR, "req_1")
    assert answered.header("x-context-status") == "full"


def test_a_second_attempt_that_is_not_answered_ends_a_stream_that_has_begun_with_the_refusal(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    notes = {"role": "assistant", "content": "The customer asked about many orders. " * 10}
    summary = json.dumps({"choices": [{"message": notes, "finish_reason": "stop"}]}).encode()
    scripted.then(*REFUSALS["a status"]).then(answer(summary))
    scripted.default = ("close",)
    body = post(before_scripted(models=TRUSTING).url, chat(TOO_LONG, stream=True)).body
    assert b"compaction_completed" in body
    error = json.loads(body.rstrip().rpartition(b"data: ")[2])["error"]
    assert error == OVERFLOW | {"status": 400, "request_id": "req_1"}


def held(steno: Steno, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The provider's answers and what reads them, never forgotten: it is not the collector that closes a connection."""
    upstream = steno.services.providers.default.upstream
    relay = upstream.relay
    kept: list[Any] = []

    async def relayed(*request: Any) -> Any:
        kept.append(await relay(*request))
        return kept[-1]

    def chunks(answering: Any) -> Any:
        kept.append(read(answering))
        return kept[-1]

    read = Exchange.chunks
    monkeypatch.setattr(upstream, "relay", relayed)
    monkeypatch.setattr(Exchange, "chunks", chunks)
    return kept


@pytest.mark.parametrize("refused", list(REFUSALS)[1:])
@pytest.mark.parametrize("messages", [documents(), TOO_LONG], ids=["second attempt", "summary"])
def test_a_client_that_leaves_during_the_second_attempt_leaves_no_connection_open(
    refused: str,
    messages: Any,
    scripted: ScriptedProvider,
    before_scripted: StartSteno,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither that of the answer which refused nor the other."""
    scripted.then(*REFUSALS[refused]).then(0.6, answer(COMPLETION))
    steno = before_scripted(models=TRUSTING)
    held(steno, monkeypatch)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(messages, stream=True), b"x-context-events: off"))
        assert scripted.wait_for(lambda requests: len(requests) >= 2)
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None, 1.5)
    if messages is not TOO_LONG:  # A summary is finished for the next one.
        assert scripted.wait_for(lambda requests: requests[1].closed_at is not None, 1.0)


def test_a_second_attempt_that_is_not_answered_leaves_no_connection_open(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.then(*REFUSALS["an error frame"]).then("close")
    steno = before_scripted(models=TRUSTING)
    held(steno, monkeypatch)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(documents(), stream=True)))
        read_until(connection, b'"context_length_exceeded"}}\n\n')
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None, 1.5)


def test_an_answer_that_begins_while_its_client_leaves_is_closed(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request was still being counted."""
    steno = before_scripted(models=[{"match": "*", "context_window": 2_000_000}])
    counting = threading.Event()

    def counted(*_: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.to_thread(counting.wait, 5))

    monkeypatch.setattr(exchange, "count_meanwhile", counted)
    answers = held(steno, monkeypatch)
    scripted.then(stream_head() + chunked(b": hello\n\n"), "hang")
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(stream=True)))
        while not answers:
            time.sleep(0.01)
    counting.set()
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None, 1.0)


@pytest.mark.parametrize("failing", [b"500 Internal Server Error", b"429 Too Many Requests"])
def test_a_failed_summary_brings_the_refusal_to_the_client(
    failing: bytes, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.then(answer(ERROR, status=b"400 Bad Request"))
    scripted.default = (answer(b"{}", status=failing),)
    answered = post(before_scripted(models=TRUSTING).url, chat(TOO_LONG))
    assert (answered.status, answered.body) == (400, ERROR)


def test_an_output_cap_that_fills_the_window_alone_is_lowered(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno(models=TRUSTING).url, chat(TOO_LONG, max_tokens=8_000))
    assert actions(answered) == ["summarized", "output_capped", "recovered"]
    assert [record.status for record in simulator.chats] == [400, 200]
    assert 2_000 <= simulator.chats[1].payload["max_tokens"] < 8_000


@pytest.mark.parametrize(
    ("message", "requests"),
    [
        ("Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 9100.", 1),
        ("Request too large for gpt-4o on tokens per min (TPM): Limit 8000, Requested 9100.", 2),
    ],
    ids=["busy", "larger than the bucket"],
)
def test_a_busy_account_is_not_an_overflow_and_a_bucket_smaller_than_the_request_is(
    message: str, requests: int, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    error = json.dumps({"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}).encode()
    scripted.then(answer(error, b"retry-after: 3", status=b"429 Too Many Requests"))
    scripted.then(answer(COMPLETION))
    proxy = before_scripted(models=TRUSTING)
    answered = post(proxy.url, chat(documents()))
    assert len(scripted.requests) == requests
    assert answered.status == (429 if requests == 1 else 200)
    if requests == 1:
        assert (answered.body, answered.header("retry-after")) == (error, "3")
    assert windows(proxy) == {32_000}


def test_an_error_that_a_stream_begins_with_counts_like_a_status(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    frame = b"data: " + json.dumps({"error": OVERFLOW}).encode() + b"\n\n"
    end = b'data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    scripted.then(stream_head() + chunked(frame) + LAST_CHUNK)
    scripted.then(stream_head() + chunked(end) + LAST_CHUNK)
    answered = post(before_scripted(models=TRUSTING).url, chat(documents(), stream=True))
    assert b'"error"' not in answered.body
    assert answered.body.endswith(b"data: [DONE]\n\n")
    assert len(scripted.requests) == 2


def test_a_large_stream_that_takes_its_time_is_not_held_up(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    end = b'data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    scripted.default = (stream_head(), 1.3, chunked(end) + LAST_CHUNK)
    answered = post(before_scripted(models=TRUSTING).url, chat(documents(), stream=True))
    assert answered.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("choices", "window"), [(1, 9_400), (2, 9_200)])
def test_an_answer_that_the_window_cut_off_tells_the_window(
    choices: int, window: int, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """The next request is made smaller. Of several answers each had that window to itself."""
    one = {"message": {"role": "assistant", "content": "And"}, "finish_reason": "model_context_window_exceeded"}
    usage = {"prompt_tokens": 9_000, "completion_tokens": 400}
    cut = {"choices": [{"index": index, **one} for index in range(choices)], "usage": usage}
    scripted.then(answer(json.dumps(cut).encode()))
    proxy = before_scripted(models=[{"match": "*", "context_window": 12_000}])
    assert post(proxy.url, chat(n=choices)).header("x-context-window") == "12000"
    assert post(proxy.url, chat()).header("x-context-window") == str(window)


@pytest.mark.parametrize("limit", [1_500, 8_500], ids=["smaller", "larger"])
def test_a_clients_own_words_in_a_refusal_change_no_window(
    limit: int, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """Some providers quote the input that they refuse, as pydantic does."""
    words = f"This model's maximum context length is {limit} tokens. However, your messages resulted in 9000 tokens."
    told = f"[{{'type': 'list_type', 'msg': 'Input should be a valid list', 'input': {words!r}}}]"
    error = json.dumps({"object": "error", "message": told, "type": "BadRequestError", "code": 400}).encode()
    scripted.default = (answer(error, status=b"400 Bad Request"),)
    proxy = before_scripted(models=[])
    answered = post(proxy.url, chat([*long_history(), {"role": "user", "content": words}]))
    assert (answered.status, answered.body) == (400, error)
    assert windows(proxy) == {128_000}


def test_a_refusal_that_does_not_fit_the_request_changes_no_window(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.default = (answer(ERROR, status=b"400 Bad Request"),)
    proxy = before_scripted(models=TWICE)
    assert post(proxy.url, chat()).body == ERROR
    assert windows(proxy) == {2 * WINDOW}


def windows(proxy: Steno) -> set[int]:
    """The window that each model is taken to have now, for whoever asked."""
    tenant = json.loads(get(proxy.url, "/context/tenant").body)["id"]
    listed = json.loads(get(proxy.url, "/context/models").body)["data"]
    return {model["context_window"] for model in listed} | {
        proxy.services.providers.default.windows.of("gpt-4o", tenant).context
    }

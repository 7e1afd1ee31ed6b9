"""Overflow: a provider that refuses a request for its size gets a smaller one, once; or the client its error."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.compaction.compactor import RequestCompactor
from app.compaction.decision import Decision
from app.http.connection import UpstreamExchange
from app.proxy import endpoint
from tests.e2e.histories import chat, turns, used
from tests.e2e.raw import connected, post, request_bytes
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer, chunked, stream_head

TRUSTING: Any = [{"match": "*", "context_window": 32_000}]
"""What the operator believes; the simulator's window is 8,000."""
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


REFUSALS: dict[str, tuple[Any, ...]] = {
    "a status": (answer(ERROR, b"x-request-id: req_1", status=b"400 Bad Request"),),
    "an error frame": (stream_head() + chunked(b"data: " + json.dumps({"error": OVERFLOW}).encode() + b"\n\n"), "hang"),
    "a status, and a body without an end": (answer(ERROR + b" " * 100_000, status=b"400 Bad Request")[:-1], "hang"),
}


def held(steno: Steno, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The provider's answers and what reads them, never forgotten: it is not the collector that closes a connection."""
    upstream = steno.services.providers.default.upstream
    relay = upstream.relay
    kept: list[Any] = []

    async def relayed(*request: Any) -> Any:
        kept.append(await relay(*request))
        return kept[-1]

    def iterated(answering: Any) -> Any:
        kept.append(read(answering))
        return kept[-1]

    read = UpstreamExchange.__aiter__
    monkeypatch.setattr(upstream, "relay", relayed)
    monkeypatch.setattr(UpstreamExchange, "__aiter__", iterated)
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
    # A summary is finished for the next one.
    scripted.then(*REFUSALS[refused]).then(*((0.6, answer(COMPLETION)) if messages is TOO_LONG else ("hang",)))
    steno = before_scripted(models=TRUSTING)
    held(steno, monkeypatch)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(messages, stream=True), b"x-context-events: off"))
        assert scripted.wait_for(lambda requests: len(requests) >= 2)
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)
    if messages is not TOO_LONG:
        assert scripted.wait_for(lambda requests: requests[1].closed_at is not None)


def test_an_answer_that_begins_while_its_client_leaves_is_closed(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request was still being counted."""
    steno = before_scripted(models=[{"match": "*", "context_window": 2_000_000}])
    counting = threading.Event()

    def counted(*_: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.to_thread(counting.wait, 60))

    monkeypatch.setattr(endpoint, "count_meanwhile", counted)
    answers = held(steno, monkeypatch)
    scripted.then(stream_head() + chunked(b": hello\n\n"), "hang")
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(stream=True)))
        while not answers:
            time.sleep(0.01)
    counting.set()
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)


def test_a_recovery_that_fails_after_it_began_the_stream_ends_the_stream_with_the_refusal(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of Steno's own, after the summary was announced."""
    prepare_smaller = RequestCompactor.prepare_smaller

    async def failing(compactor: RequestCompactor) -> Decision:
        await prepare_smaller(compactor)
        raise RuntimeError

    monkeypatch.setattr(RequestCompactor, "prepare_smaller", failing)
    scripted.then(*REFUSALS["a status"][:1]).then(answer(COMPLETION))
    steno = before_scripted(models=TRUSTING)
    with capture_logs():
        answered = post(steno.url, chat(TOO_LONG, stream=True))
    assert answered.status == 200
    assert b"compaction_started" in answered.body
    assert OVERFLOW["message"].encode() in answered.body


def test_trouble_of_stenos_own_does_not_fail_a_request(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Whatever goes wrong before the provider is asked, the client's own bytes may still be good."""
    steno, bodies = before_scripted(), [chat(TOO_LONG, stream=stream) for stream in (False, True)]
    for part in ("conversations", "compactor"):
        with capture_logs(), pytest.MonkeyPatch.context() as patched:
            patched.setattr(steno.services, part, None)
            for body in bodies:
                answered = post(steno.url, body)
                assert (answered.status, answered.header("x-context-status")) == (200, "full")
                assert answered.header("x-context-reason") == "internal_error"
                assert scripted.requests[-1].body == body

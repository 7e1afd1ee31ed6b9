"""Overflow in Messages: recovered from once, however it is reported, or passed on as clients know it."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from lab.simulator import Fault, Simulator
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer
from tests.e2e.thinkers import events_in, message_of

PATH, MODEL = "/v1/messages", "claude-sonnet-4-5"
TWICE: Any = [{"match": "*", "context_window": 2 * WINDOW}]
"""As much too large as a refusal corrects: beyond that the operator's word stands."""
LONG = turns(22)
"""About 9,000 tokens."""
TOO_LONG = "prompt is too long: 9100 tokens > 8000 maximum"
AND_OUTPUT = (
    "input length and `max_tokens` exceed context limit: 7900 + 500 > 8000, decrease input length or `max_tokens` and"
    " try again"
)
REFUSALS = {
    "prompt": (400, "invalid_request_error", TOO_LONG),
    "output": (400, "invalid_request_error", AND_OUTPUT),
    "size": (413, "request_too_large", "Request size exceeds model context window"),
}


def ask(steno: Steno, messages: Any = LONG, *headers: bytes, **members: Any) -> Answer:
    sent = {"model": MODEL, "max_tokens": 500, "messages": messages, **members}
    usual = b"content-type: application/json", b"x-api-key: sk-test", b"anthropic-version: 2023-06-01", *headers
    return send(steno.url, request_bytes(json.dumps(sent).encode(), *usual, target=PATH, usual=False), timeout=30.0)


def told(answered: Answer, *, stream: bool) -> dict[str, Any]:
    message: dict[str, Any] = message_of(events_in(answered.body.decode())) if stream else answered.json
    return message


def refusal(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@STREAM
def test_a_refused_request_is_compacted_and_sent_again(simulator: Simulator, steno: StartSteno, stream: bool) -> None:
    answered = ask(steno(models=TWICE), stream=stream)
    assert answered.status == 200
    assert told(answered, stream=stream)["context"]["actions"] == ["summarized", "recovered"]
    assert [record.status for record in simulator.chats] == [400, 200]


@STREAM
@pytest.mark.parametrize("words", REFUSALS)
def test_where_that_does_not_help_the_provider_has_the_word(
    scripted: ScriptedProvider, before_scripted: StartSteno, words: str, stream: bool
) -> None:
    """To the byte, and in a stream that had begun in the same words."""
    status, kind, message = REFUSALS[words]
    body = json.dumps(refusal(kind, message), indent=1).encode()
    scripted.default = (answer(body, b"request-id: req_1", status=b"%d Refused" % status),)
    # What is too short to be summarised is sent once and no more.
    answered = ask(before_scripted(), turns(1), stream=stream)
    assert (answered.status, answered.body, answered.header("request-id")) == (status, body, "req_1")
    long = ask(before_scripted(), stream=stream)
    if not stream:
        assert (long.status, long.body) == (status, body)
        return
    *_, last = events_in(long.body.decode())
    assert (last["type"], last["error"]["type"], last["error"]["message"]) == ("error", kind, message)


def test_a_stream_that_the_window_cut_is_passed_on_and_the_next_request_is_compacted(
    simulator: Simulator, steno: StartSteno
) -> None:
    """The client has its beginning, and its reason to stop is the provider's."""
    simulator.window = 10 * WINDOW
    running, history = steno(models=TWICE), turns(21)
    simulator.next_chat(finish_reason="model_context_window_exceeded")
    cut = told(ask(running, history, stream=True), stream=True)
    assert (cut["stop_reason"], cut["context_status"]) == ("model_context_window_exceeded", "full")
    assert len(simulator.chats) == 1
    goes_on = [*history, {"role": "assistant", "content": cut["content"]}, {"role": "user", "content": "Go on."}]
    answered = told(ask(running, goes_on, stream=True), stream=True)
    assert (answered["stop_reason"], answered["context_status"]) == ("end_turn", "summarized")


def test_clients_see_the_type_of_a_refusal(simulator: Simulator, steno: StartSteno) -> None:
    simulator.chat_default = Fault(status=400, error={"type": "invalid_request_error", "message": TOO_LONG})
    with (
        anthropic.Anthropic(base_url=steno().url, api_key="sk-test", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError, match=TOO_LONG),
    ):
        client.messages.create(model="claude-x", max_tokens=500, messages=turns(1))

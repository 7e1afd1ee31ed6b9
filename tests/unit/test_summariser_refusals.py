"""What providers say when they refuse a summary call, in their own words, and how it is asked again."""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from app.compaction.chunks import Failure, SummaryAnswer
from app.compaction.prompts import summary_request
from app.compaction.summariser_client import Route, Summariser
from app.conversation.reasons import Code, because
from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.http.upstream import Upstream
from tests.unit.providers import MockedUpstream, answer

if TYPE_CHECKING:
    from app.telemetry.traces import Tracer

CHAT = "/v1/chat/completions"
DONE = b'data: {"choices":[{"delta":{"content":"Notes."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
FIRST = {"model", "messages", "max_tokens", "stream", "stream_options"}
FIRST_OF_REASONING = FIRST - {"max_tokens"} | {"max_completion_tokens", "reasoning_effort"}


async def ask(upstream: Upstream, model: str = "m", tracer: Tracer | None = None) -> SummaryAnswer | Failure:
    request = summary_request("Do.", "said", 300, 300)
    return await Summariser(5.0, {}, tracer=tracer).ask(
        request, [Route(model, upstream, CHAT_COMPLETIONS.summaries, [])], None, monotonic() + 10.0, "t"
    )


@pytest.mark.parametrize(("status", "ended"), [(200, "used"), (403, "failed")])
async def test_a_span_says_that_it_is_a_summarys_and_how_it_ended(status: int, ended: str) -> None:
    upstream = MockedUpstream({CHAT: answer(status, DONE)})
    span = Mock()
    span.parent_of = lambda headers: headers
    await ask(upstream, tracer=Mock(begins=lambda *_: span))
    assert [name for name, *_ in span.method_calls] == ["names", "says", ended, "ends"]
    span.says.assert_called_once_with("steno.summary_call", value=True)


def sent(upstream: MockedUpstream) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in upstream.asked]


@pytest.mark.parametrize(
    ("model", "status", "refusal", "without", "instead"),
    [
        (
            "m",
            400,
            {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
                       " 'max_completion_tokens' instead.", "param": "max_tokens", "code": "unsupported_parameter"}},
            "max_tokens",
            {"max_completion_tokens": 300},
        ),
        (
            "o3",
            400,
            {"error": {"message": "Unrecognized request argument supplied: max_completion_tokens"}},
            "max_completion_tokens",
            {"max_tokens": 8_492},
        ),
        ("o3", 400, {"error": {"message": "property 'reasoning_effort' is unsupported"}}, "reasoning_effort", {}),
        (
            "m",
            422,
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
                         "msg": "Extra inputs are not permitted", "input": {"include_usage": True}}]},
            "stream_options",
            {},
        ),
        ("m", 400, {"message": "stream_options: unknown field"}, "stream_options", {}),
    ],
)  # fmt: skip
async def test_what_a_provider_does_not_know_is_left_out(
    model: str,
    status: int,
    refusal: dict[str, Any],
    without: str,
    instead: dict[str, Any],
) -> None:
    refused = answer(status, json.dumps(refusal).encode())
    answers = iter([refused, answer(200, DONE, content_type="text/event-stream")])
    upstream = MockedUpstream({CHAT: lambda *_: next(answers)})
    assert isinstance(await ask(upstream, model), SummaryAnswer)
    first, second = sent(upstream)
    assert first.keys() == (FIRST_OF_REASONING if model == "o3" else FIRST)
    assert second == {name: first[name] for name in first if name != without} | instead


@pytest.mark.parametrize(
    ("status", "headers", "calls"),
    [
        (429, {"retry_after_ms": "20"}, 2),
        (429, {"retry_after": "0.02"}, 2),
        (503, {"retry_after": "0"}, 2),
        (429, {"retry_after_ms": "5001"}, 1),
        (429, {"retry_after": "Sat, 22 Nov 2098 06:00:00 GMT"}, 1),
        (429, {"retry_after": "Sat, 21 Nov 2026 06:00:00 GMT"}, 2),
        (429, {}, 1),
        (503, {}, 1),
        (500, {}, 2),
    ],
)
async def test_a_pause_is_waited_for_as_the_provider_words_it(status: int, headers: dict[str, str], calls: int) -> None:
    upstream = MockedUpstream({CHAT: answer(status, b'{"error":{"message":"Slow down."}}', **headers)})
    assert await ask(upstream) == Failure(because(Code.SUMMARISER_STATUS, str(status)))
    assert len(upstream.asked) == calls


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 300. This model supports at most 200 completion tokens.",
        "Missing required parameter: 'messages[0].content'.",
        "Invalid 'model': unknown.",
    ],
)
async def test_a_refusal_that_teaches_nothing_is_not_answered_with_the_same_question(
    said: str,
) -> None:
    upstream = MockedUpstream({CHAT: answer(400, json.dumps({"error": {"message": said}}).encode())})
    assert await ask(upstream) == Failure(because(Code.SUMMARISER_STATUS, "400"))
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("status", "counts", "is_overflow"),
    [
        (400, "9000 tokens", True),
        (200, "9000 tokens", True),
    ],
)
async def test_a_refusal_for_size_is_one_that_a_smaller_request_may_escape(
    status: int, counts: str, is_overflow: bool
) -> None:
    said = f"This model's maximum context length is 8192 tokens. However, you requested {counts}."
    body = json.dumps({"error": {"message": said, "code": 400}}).encode()
    upstream = MockedUpstream({CHAT: answer(status, body if status != 200 else b"data: %b\n\n" % body)})
    failure = await ask(upstream)
    assert isinstance(failure, Failure)
    assert failure.overflow is is_overflow

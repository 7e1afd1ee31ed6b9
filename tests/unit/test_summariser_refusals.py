"""What providers say when they refuse a summary call, in their own words, and how it is asked again."""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from app.compaction.chunks import Failure, SummaryAnswer
from app.compaction.prompts import summary_request
from app.compaction.summariser_client import Route, Summariser
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


def sent(upstream: MockedUpstream) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in upstream.asked]


@pytest.mark.parametrize(
    ("model", "status", "refusal", "without", "instead"),
    [
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

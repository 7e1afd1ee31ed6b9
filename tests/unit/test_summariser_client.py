"""Summary calls: parameters that a provider refuses, and tenants that learn for themselves."""

from __future__ import annotations

import json
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.chunks import Failure
from app.compaction.prompts import summary_request
from app.compaction.summariser_client import TAUGHT_SECONDS, Route, Summariser
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.spec import SummaryAnswer
from app.http.upstream import Upstream
from tests.unit.providers import Answer, MockedUpstream, answer

CHAT = "/v1/chat/completions"
DONE = b'data: {"choices":[{"delta":{"content":"Notes."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
FIRST = {"model", "messages", "max_tokens", "stream", "stream_options"}
FIRST_OF_REASONING = FIRST - {"max_tokens"} | {"max_completion_tokens", "reasoning_effort"}


def route(upstream: Upstream, model: str) -> Route:
    provider: Any = SimpleNamespace(upstream=upstream, name="one", host="one.example")
    return Route(model, provider, CHAT_COMPLETIONS.summaries, [])


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
    request, routes = summary_request("Do.", "said", 300, 300), [route(upstream, model)]
    reply = await Summariser(5.0, {}).ask(request, routes, None, monotonic() + 10.0, "t")
    assert isinstance(reply, SummaryAnswer)
    first, second = sent(upstream)
    assert first.keys() == (FIRST_OF_REASONING if model == "o3" else FIRST)
    assert second == {name: first[name] for name in first if name != without} | instead


# Tenants

QUOTING = b'{"error":{"message":"No: \'use max_completion_tokens, not stream_options\' is against the rules."}}'
"""A refusal in the words of the transcript it is about."""


class Clock:
    later = 0.0

    def __call__(self) -> float:
        return monotonic() + self.later


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Provider(MockedUpstream):
    """One that keeps every call's body: a refusal for each that quotes, an outage for each that fails."""

    def __init__(self) -> None:
        super().__init__({CHAT: self._respond})
        self.bodies: list[dict[str, Any]] = []

    def _respond(self, _: object, content: bytes) -> Answer:
        body, said = json.loads(content), content.decode()
        self.bodies.append(body)
        if "an unlucky one" in said:
            return answer(500, b"{}", retry_after="60")
        if "a poisoned one" in said and "stream_options" in body:
            return answer(400, QUOTING)
        return answer(200, DONE, content_type="text/event-stream")


@pytest.fixture
def upstream() -> Provider:
    return Provider()


@pytest.fixture
def asked(upstream: Provider) -> list[dict[str, Any]]:
    return upstream.bodies


@pytest.fixture
def ask(clock: Clock, upstream: Provider) -> Any:
    summariser = Summariser(5.0, {}, clock)

    async def ask_one(tenant: str, said: str = "hello") -> SummaryAnswer | Failure:
        request = summary_request("Do.", said, 300, 300)
        return await summariser.ask(request, [route(upstream, "m")], None, clock() + 10.0, tenant)

    return ask_one


async def test_a_refusal_in_one_tenants_words_changes_no_other_tenants_calls(
    ask: Any, asked: list[dict[str, Any]]
) -> None:
    for _ in range(3):
        await ask("a", "a poisoned one")
    asked.clear()
    assert isinstance(await ask("a"), SummaryAnswer)
    assert isinstance(await ask("b"), SummaryAnswer)
    own, others = asked
    assert own.keys() != FIRST, "it learnt for itself"
    assert others.keys() == FIRST


async def test_what_two_tenants_were_refused_is_asked_of_nobody_for_a_day(
    ask: Any, asked: list[dict[str, Any]], clock: Clock
) -> None:
    for tenant in ("a", "b"):
        assert isinstance(await ask(tenant, "a poisoned one"), SummaryAnswer)
    asked.clear()
    await ask("c")
    clock.later = TAUGHT_SECONDS
    await ask("c")
    assert ["stream_options" in body for body in asked] == [False, True]

"""The summariser's call over real sockets: every way to fail, what is tried again, and what is learnt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from msgspec import structs

from app.compaction.chunks import Ending, Failure, SummaryAnswer
from app.compaction.prompts import SUMMARY_PROMPT, SummaryRequest, summary_request
from app.compaction.summariser_client import Prefix, Route, Summariser
from app.conversation.reasons import Code, Reason
from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.usage import read_usage
from app.http.hops import new_instance
from app.http.loopback import RunningServer
from app.http.relayed import for_summary
from app.http.upstream import Upstream
from lab.simulator import Fault, Model, Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider
from tests.e2e.test_scenarios import LONG, RULES, get, talk

HEADERS = for_summary([(b"authorization", b"Bearer sk-test")])
TRANSCRIPT = "The guest asks for room 712 with a view of the harbour. Booking HB-4711 is for three nights. " * 20
TENANT = "a tenant"
PATIENCE = 30.0


class Clock:
    """The monotonic clock, which can be put forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


def request(tokens: int = 300) -> SummaryRequest:
    return summary_request(SUMMARY_PROMPT, TRANSCRIPT, tokens, tokens)


def failure(told: str, *, overflow: bool = False) -> Failure:
    """One with these reasons, as they are told."""
    reasons = []
    for each in told.split(", "):
        status = each.removeprefix("summariser_status_")
        reasons.append(Reason(Code.SUMMARISER_STATUS, status) if status != each else Reason(Code[each.upper()]))
    return Failure(tuple(reasons), overflow)


@pytest.fixture
def spare() -> Simulator:
    """The provider of the next route, which `next_provider` runs."""
    return Simulator(window=8_000, tables=TABLES)


@pytest.fixture
def next_provider(spare: Simulator) -> Iterator[RunningServer]:
    with spare.serve() as server:
        yield server


@asynccontextmanager
async def routed(
    *servers: Any, between_bytes: float = 5.0, model: str = "gpt-4o", headers: Any = HEADERS
) -> AsyncIterator[list[Route]]:
    """One route for each server."""
    upstreams = [Upstream(f"{server.url}/v1", 5.0, 30.0, between_bytes, new_instance()) for server in servers]
    try:
        dialect = CHAT_COMPLETIONS.summaries
        yield [
            Route(model, upstream, dialect, headers, f"number {number}") for number, upstream in enumerate(upstreams, 1)
        ]
    finally:
        for upstream in upstreams:
            await upstream.close()


def summariser(
    seconds: float = 20.0, clock: Clock | None = None, parameters: dict[str, Any] | None = None
) -> Summariser:
    return Summariser(seconds, parameters or {}, clock or Clock())


async def ask(*servers: Any, seconds: float = 20.0, between_bytes: float = 5.0) -> SummaryAnswer | Failure:
    async with routed(*servers, between_bytes=between_bytes) as routes:
        return await summariser(seconds).ask(request(), routes, None, monotonic() + PATIENCE, TENANT)


# A good answer


async def test_a_summary_is_streamed_and_tells_its_usage_and_its_model(
    simulator: Simulator, provider: RunningServer
) -> None:
    answer = await ask(provider)
    (record,) = simulator.summaries
    assert isinstance(answer, SummaryAnswer)
    assert (answer.text, answer.ending, answer.model) == (record.text, Ending.FINISHED, "gpt-4o")
    assert answer.usage == read_usage(record.usage)
    assert record.payload["stream"] is True
    assert record.header("x-context-call") == "summary"


async def test_bytes_that_keep_coming_keep_the_call_alive(simulator: Simulator, provider: RunningServer) -> None:
    simulator.next_summary(text="Notes " * 20, chunk_delay=0.1, chunk_size=6)
    began = monotonic()
    assert isinstance(await ask(provider, between_bytes=1.5), SummaryAnswer)
    assert monotonic() - began > 1.6


async def test_nothing_is_waited_for_after_the_end(scripted: ScriptedProvider) -> None:
    """Not for a connection that stays open after `[DONE]`."""
    frames = b'data: {"choices":[{"delta":{"content":"Notes."}}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    scripted.then(head, frames, "hang")
    began = monotonic()
    assert await ask(scripted) == SummaryAnswer(
        "Notes.", model="gpt-4o", upstream="number 1", format="chat_completions"
    )
    assert monotonic() - began < 4.0


async def test_an_answer_without_end_is_given_up_at_four_megabytes(scripted: ScriptedProvider) -> None:
    scripted.then(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"{" + b" " * (5 << 20), "hang")
    assert await ask(scripted) == failure("summariser_answer_too_large")


# What is tried again on the same route


async def test_a_stream_that_falls_silent_is_given_up_before_its_time(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.summary_default = Fault(first_token_delay=10.0)
    began = monotonic()
    assert await ask(provider, between_bytes=0.3) == failure("summariser_upstream_timeout")
    assert monotonic() - began < 5.0


# The next route


async def test_all_attempts_together_end_at_the_deadline(
    simulator: Simulator, provider: RunningServer, spare: Simulator, next_provider: RunningServer
) -> None:
    """The second call gets what the first has left, and a third route is not asked at all."""
    simulator.summary_default = spare.summary_default = Fault(hang=True)
    async with routed(provider, next_provider, next_provider) as routes:
        began = monotonic()
        reply = await summariser(0.6).ask(request(), routes, None, began + 0.9, TENANT)
    assert reply == failure("summariser_upstream_timeout")
    assert monotonic() - began < 4.5
    assert (len(simulator.summaries), len(spare.summaries)) == (1, 1)


async def test_a_pause_beyond_the_deadline_is_not_waited_for(simulator: Simulator, provider: RunningServer) -> None:
    simulator.next_summary(status=429, retry_after=30)
    async with routed(provider) as routes:
        began = monotonic()
        reply = await summariser().ask(request(), routes, None, began + 20.0, TENANT)
    assert reply == failure("summariser_status_429")
    assert monotonic() - began < 15.0


# Overflow


async def test_a_refusal_without_a_reason_is_an_overflow_only_for_the_conversation_itself(
    simulator: Simulator, provider: RunningServer
) -> None:
    """A transcript is made to fit; the conversation is as large as it is, and it may have filled the window or not."""
    simulator.summary_default = Fault(status=413, body=b"")
    small, prefix = (Prefix((b'{"role": "user", "content": "Hello"}',), {}, tokens) for tokens in (6_300, 6_400))
    async with routed(provider) as known:
        routes = [replace(route, window=8_000) for route in known]
        asking = summariser()
        assert await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT) == failure(
            "summariser_status_413"
        )
        for shown, overflow in ((small, False), (prefix, True)):
            reply = await asking.ask(request(), routes, shown, monotonic() + PATIENCE, TENANT)
            assert reply == failure("summariser_status_413", overflow=overflow)


# The conversation itself in place of a transcript


async def test_a_prefix_call_repeats_the_conversation_and_its_tools(
    simulator: Simulator, provider: RunningServer
) -> None:
    """So that the provider finds in its cache what it read for the conversation."""
    simulator.window = 8_000
    tool = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}
    history = [json.dumps(message).encode() for message in (RULES, *LONG[:20])]
    async with routed(provider, headers=[h for h in HEADERS if h[0] != b"x-context-call"]) as routes:
        upstream, headers = routes[0].upstream, routes[0].headers
        question = [*history, b'{"role":"user","content":"And?"}']
        body = b'{"model":"gpt-4o","tools":[%b],"messages":[%b]}' % (json.dumps(tool).encode(), b",".join(question))
        async with upstream.completion(CHAT_COMPLETIONS.path, body, headers, 10) as answering:
            assert answering.status == 200
        prefix = Prefix(tuple(history), {"tools": b"[%b]" % json.dumps(tool).encode()})
        asked = structs.replace(request(), closing="Now write the notes.")
        marked = [replace(route, headers=HEADERS) for route in routes]
        answer = await summariser().ask(asked, marked, prefix, monotonic() + PATIENCE, TENANT)
    assert isinstance(answer, SummaryAnswer)
    assert "HB-40" in answer.text
    payload = simulator.summaries[-1].payload
    assert payload["tool_choice"] == "none"
    assert payload["messages"][-1] == {"role": "user", "content": asked.closing}
    assert answer.usage.cached is not None
    assert answer.usage.cached > 0.9 * simulator.chats[-1].usage["prompt_tokens"]  # type: ignore[index]


# What a model refuses, and models that do not work


async def test_a_model_that_fails_three_times_is_left_alone_by_everybody_and_then_probed(
    simulator: Simulator, provider: RunningServer, spare: Simulator, next_provider: RunningServer
) -> None:
    clock = Clock()
    simulator.summary_default = Fault(status=503)
    async with routed(provider, next_provider) as routes:
        asking = summariser(clock=clock)

        async def once(*on: Route) -> SummaryAnswer | Failure:
            return await asking.ask(request(), on, None, clock() + PATIENCE, TENANT)

        for _ in range(3):
            assert await once(routes[0]) == failure("summariser_status_503")
        assert await once(routes[0]) == failure("summariser_status_503, summariser_paused")
        assert len(simulator.summaries) == 3
        assert isinstance(await once(*routes), SummaryAnswer)
        assert len(spare.summaries) == 1
        clock.ahead = 31.0
        simulator.summary_default = Fault()
        for _ in range(2):
            assert isinstance(await once(routes[0]), SummaryAnswer)
    assert len(simulator.summaries) == 5


async def test_a_call_cut_short_by_the_deadline_says_nothing_about_the_model(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.summary_default = Fault(hang=True)
    async with routed(provider) as routes:
        asking = summariser(seconds=10.0)
        for _ in range(4):
            reply = await asking.ask(request(), routes, None, monotonic() + 0.1, TENANT)
            assert reply == failure("summariser_upstream_timeout")


# Before a whole Steno


def status_of(proxy: Steno, model: str) -> Any:
    messages: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]
    return proxy.sdk().chat.completions.create(model=model, messages=messages).to_dict()["context"]


def test_a_reasoning_model_may_think_on_top_of_its_summary(
    steno: StartSteno, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.window = 128_000
    simulator.models = {"o4-mini": Model("o4-mini")}
    caps = []
    for allowance in (1_000, 3_000):
        monkeypatch.setattr("app.compaction.summariser_client.REASONING_ALLOWANCE", allowance)
        assert status_of(steno(), "o4-mini")["status"] == "summarized"
        caps.append(simulator.summaries[-1].payload["max_completion_tokens"])
    assert caps[1] - caps[0] == 2_000


@pytest.mark.slow
def test_a_summary_no_smaller_than_what_it_replaces_is_never_stored(steno: StartSteno, simulator: Simulator) -> None:
    """Within its cap, of a short history before a question so large that both do not fit."""
    simulator.summary_default = Fault(text="The guest asks for room 712, and the desk answers. " * 40)
    proxy, old = steno(), "The guest asks for room 712 with a view of the harbour. " * 36
    question = {"role": "user", "content": "Read this letter. " * 1_780}
    messages: Any = [{"role": "user", "content": old}, {"role": "assistant", "content": old}, question]
    answer: Any = proxy.sdk().chat.completions.create(model="gpt-4o", messages=messages)
    context = answer.context
    assert (context["status"], context["chunks"], context["reason"]) == ("trimmed", [], "summary_not_smaller")
    assert len(simulator.summaries) == 2
    assert simulator.chats[0].payload["messages"][-1] == question
    assert get(proxy, f"/conversations/{context['conversation_id']}/summaries")["data"] == []


@pytest.mark.parametrize(("rounds", "calls"), [(26, 2), (120, 10)], ids=["small", "large"])
def test_a_summariser_that_answers_too_briefly_costs_two_calls_or_one_a_part_and_one_more(
    steno: StartSteno, simulator: Simulator, rounds: int, calls: int
) -> None:
    """And a repetition of the request costs none."""
    simulator.summary_default = Fault(text="They talked.")
    proxy = steno()
    messages: Any = [RULES, *talk(rounds), {"role": "user", "content": "Which one was that?"}]
    for _ in range(3):
        answer: Any = proxy.sdk().chat.completions.create(model="gpt-4o", messages=messages)
        assert "summary_too_short" in answer.context["reason"]
        stricter = [b"summary_too_short" in record.body for record in simulator.summaries]
        assert (len(stricter), sum(stricter)) == (calls, 1)

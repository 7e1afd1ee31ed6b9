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
from structlog.testing import capture_logs

from app.compaction.summariser import Prefix, Route, Summariser
from app.core.reasons import Code, Reason
from app.core.summary.flow import Failure
from app.core.summary.gate import Ending, SummaryAnswer
from app.core.summary.prompts import SUMMARY_PROMPT, SummaryRequest, summary_request
from app.core.tokens.usage import Tokens
from app.edge.hops import new_instance
from app.edge.relayed import for_summary
from app.edge.upstream import Upstream
from app.runtime.server import RunningServer
from app.wire.chat_completions.format import CHAT_COMPLETIONS
from app.wire.usage import read_usage
from lab.simulator import Fault, Model, Simulator
from lab.simulator.script import ScriptedCall
from tests.e2e.conftest import TABLES
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, closed_port
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


def statuses(simulator: Simulator) -> list[int | None]:
    return [record.status for record in simulator.summaries]


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


async def test_a_provider_that_answers_in_one_piece_is_understood(
    simulator: Simulator, provider: RunningServer
) -> None:
    choice = {"message": {"role": "assistant", "content": "Notes."}, "finish_reason": "stop"}
    simulator.next_summary(body=json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7}}).encode())
    assert await ask(provider) == SummaryAnswer(
        "Notes.", usage=Tokens(7), model="gpt-4o", upstream="number 1", format="chat_completions"
    )


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


LONG_SUMMARY = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}' % (b"word " * 60_000)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, retry_after=0.2),
        Fault(status=503, retry_after=0.2),
        Fault(status=500),
        Fault(cut="reset", after=3),
        Fault(cut="close", after=3),
        Fault(cut="end", after=3),
        Fault(cut="close", after=3, framing="eof"),
        Fault(error_frame={"message": "The server had an error.", "type": "server_error"}, after=0),
        Fault(error_frame={"message": "The server had an error.", "type": "server_error"}, after=3),
    ],
    ids=lambda fault: fault.cut or str(fault.status),
)
async def test_an_accident_is_tried_again_once(simulator: Simulator, provider: RunningServer, fault: Fault) -> None:
    simulator.next_summary(fault)
    assert isinstance(await ask(provider), SummaryAnswer)
    assert len(simulator.summaries) == 2


@pytest.mark.parametrize(
    ("fault", "reason", "calls"),
    [
        (Fault(status=500), "summariser_status_500", 2),
        (Fault(status=429, retry_after=0.1), "summariser_status_429", 2),
        (Fault(status=429, retry_after=30), "summariser_status_429", 1),
        (Fault(status=429), "summariser_status_429", 1),
        (Fault(status=503), "summariser_status_503", 1),
        (Fault(status=500, retry_after=30), "summariser_status_500", 1),
        (Fault(status=401), "summariser_status_401", 1),
        (Fault(cut="reset", after=3), "summariser_upstream_disconnected", 2),
        (Fault(cut="end", after=3), "summariser_answer_cut", 2),
        (Fault(error_frame={"message": "The server had an error."}, after=3), "summariser_error_frame", 2),
        (Fault(body=b"<html>"), "summariser_answer_cut", 2),
        (Fault(body=b"{}"), "summariser_answer_unreadable", 1),
        (Fault(body=LONG_SUMMARY), "summariser_answer_too_large", 1),
        (Fault(body=b'{"a": "' + b"a" * (5 << 20) + b'"}'), "summariser_answer_too_large", 1),
    ],
)
async def test_what_goes_wrong_is_a_reply_with_its_reason(
    simulator: Simulator, provider: RunningServer, fault: Fault, reason: str, calls: int
) -> None:
    simulator.summary_default = fault
    assert await ask(provider) == failure(reason)
    assert len(simulator.summaries) == calls


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(delay=5.0), Fault(first_token_delay=5.0)])
async def test_silence_is_given_up_in_time_and_not_tried_again(
    simulator: Simulator, provider: RunningServer, fault: Fault
) -> None:
    simulator.summary_default = fault
    began = monotonic()
    assert await ask(provider, seconds=0.5) == failure("summariser_upstream_timeout")
    assert monotonic() - began < 4.5
    assert len(simulator.summaries) == 1


async def test_a_stream_that_falls_silent_is_given_up_before_its_time(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.summary_default = Fault(first_token_delay=10.0)
    began = monotonic()
    assert await ask(provider, between_bytes=0.3) == failure("summariser_upstream_timeout")
    assert monotonic() - began < 5.0


async def test_a_drip_does_not_prolong_the_call(simulator: Simulator, provider: RunningServer) -> None:
    simulator.summary_default = Fault(text="Notes " * 50, chunk_delay=0.1, chunk_size=6)
    began = monotonic()
    assert await ask(provider, seconds=0.8) == failure("summariser_upstream_timeout")
    assert monotonic() - began < 4.5


# The next route


@pytest.mark.parametrize(
    "fault", [Fault(status=500), Fault(status=503), Fault(status=429), Fault(status=404), Fault(cut="end", after=2)]
)
async def test_the_next_route_answers_where_the_first_does_not(
    simulator: Simulator, provider: RunningServer, spare: Simulator, next_provider: RunningServer, fault: Fault
) -> None:
    simulator.summary_default = fault
    answer = await ask(provider, next_provider)
    assert isinstance(answer, SummaryAnswer)
    assert answer.upstream == "number 2"
    assert statuses(spare) == [200]


async def test_an_unreachable_provider_is_tried_twice_and_then_the_next_one(next_provider: RunningServer) -> None:
    class Nowhere:
        url = f"http://127.0.0.1:{closed_port()}"

    assert await ask(Nowhere) == failure("summariser_upstream_unreachable")
    assert isinstance(await ask(Nowhere, next_provider), SummaryAnswer)


async def test_where_all_are_down_the_last_reason_is_given(
    simulator: Simulator, provider: RunningServer, spare: Simulator, next_provider: RunningServer
) -> None:
    simulator.summary_default = Fault(status=500)
    spare.summary_default = Fault(status=503)
    assert await ask(provider, next_provider) == failure("summariser_status_503")


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

OVERFLOW = {
    "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
}
BUCKET = {
    "message": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41000. The input or output"
    " tokens must be reduced in order to run successfully.",
    "type": "tokens",
    "code": "rate_limit_exceeded",
}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=400, error=OVERFLOW), "summariser_status_400"),
        (Fault(status=413, error=OVERFLOW), "summariser_status_413"),
        (Fault(status=422, error=OVERFLOW), "summariser_status_422"),
        (Fault(status=429, error=BUCKET, retry_after=0.1), "summariser_status_429"),
        (Fault(error_frame=OVERFLOW, after=0), "summariser_error_frame"),
        (Fault(body=json.dumps({"error": OVERFLOW}).encode()), "summariser_error_frame"),
    ],
)
async def test_an_overflow_is_never_repeated_unchanged(
    simulator: Simulator,
    provider: RunningServer,
    spare: Simulator,
    next_provider: RunningServer,
    fault: Fault,
    reason: str,
) -> None:
    simulator.summary_default = fault
    assert await ask(provider, next_provider) == failure(reason, overflow=True)
    assert len(simulator.summaries) == 1
    assert spare.summaries == ()


async def test_an_error_in_the_middle_of_an_answer_is_no_overflow(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.summary_default = Fault(error_frame=OVERFLOW, after=3)
    assert await ask(provider) == failure("summariser_error_frame")


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


async def test_a_model_that_takes_no_users_message_behind_results_is_quoted_the_transcript_and_remembered(
    simulator: Simulator, provider: RunningServer
) -> None:
    learnt: list[bool] = []
    async with routed(provider) as known:
        routes = [replace(route, alternates=lambda: learnt.append(True)) for route in known]
        simulator.next_summary(status=400, error={"message": "Unexpected role 'user' after role 'tool'"})
        prefix, asked = Prefix((b'{"role": "user", "content": "Hello"}',), {}), request()
        answer = await summariser().ask(asked, routes, prefix, monotonic() + PATIENCE, TENANT)
    assert isinstance(answer, SummaryAnswer)
    assert learnt == [True]
    assert simulator.summaries[-1].payload["messages"][-1] == {"role": "user", "content": asked.transcript}


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


async def test_what_a_model_refuses_is_left_out_and_remembered(simulator: Simulator, provider: RunningServer) -> None:
    refused = frozenset({"stream", "stream_options", "reasoning_effort", "max_completion_tokens"})
    simulator.models = {"o9": Model("o9", unsupported=refused)}
    simulator.window = 128_000
    async with routed(provider, model="o9") as routes:
        asking = summariser()
        for _ in range(2):
            assert isinstance(await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT), SummaryAnswer)
    # Without a stream it has no options either, if that was refused first.
    assert statuses(simulator)[-2:] == [200, 200]
    assert statuses(simulator)[:-2] in ([400] * 3, [400] * 4)
    assert set(simulator.summaries[-1].payload) == {"model", "messages", "max_tokens"}


async def test_the_operators_parameters_go_with_each_call(simulator: Simulator, provider: RunningServer) -> None:
    given = {"temperature": 0, "seed": 7, "reasoning_effort": "high", "stop": ["###"]}
    simulator.window = 128_000
    async with routed(provider, model="o9") as routes:
        asking = summariser(parameters=given)
        assert isinstance(await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT), SummaryAnswer)
        prefix = Prefix((b'{"role": "user", "content": "Hello"}', b'{"role": "assistant", "content": "Hello."}'), {})
        await asking.ask(request(), routes, prefix, monotonic() + PATIENCE, TENANT)
    for record in simulator.summaries:
        assert {name: record.payload[name] for name in given} == given


async def test_a_parameter_that_a_model_refuses_is_left_out_remembered_and_told(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.models = {"gpt-4o": Model("gpt-4o", unsupported=frozenset({"stream_options", "max_tokens"}))}
    given = {"temperature": 3, "top_k": 5, "seed": 7}
    asking = summariser(parameters=given)
    async with routed(provider) as routes:
        with capture_logs() as lines:
            for _ in range(2):
                assert isinstance(
                    await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT), SummaryAnswer
                )
    assert statuses(simulator) == [400, 400, 400, 400, 200, 200]
    assert set(simulator.summaries[-1].payload) == {"model", "messages", "max_completion_tokens", "stream", "seed"}
    assert sorted(line["parameter"] for line in lines) == ["temperature", "top_k"]
    assert {(line["log_level"], line["model"], line["upstream"]) for line in lines} == {
        ("warning", "gpt-4o", "number 1")
    }


async def test_a_parameter_is_only_given_up_where_the_refusal_names_it(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.next_summary(status=400, error={"message": "Your top_pick and user_id are not known here."})
    asking = summariser(parameters={"top_p": 0.5, "user": "steno"})
    async with routed(provider) as routes:
        assert await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT) == failure(
            "summariser_status_400"
        )
    assert len(simulator.summaries) == 1


async def test_usage_is_done_without_where_it_cannot_be_asked_for(
    simulator: Simulator, provider: RunningServer
) -> None:
    simulator.models = {"gpt-4o": Model("gpt-4o", unsupported=frozenset({"stream_options"}))}
    answer = await ask(provider)
    assert isinstance(answer, SummaryAnswer)
    assert answer.usage == Tokens()
    assert simulator.summaries[-1].payload["stream"] is True


async def test_a_cap_that_is_too_large_would_be_so_by_any_name(simulator: Simulator, provider: RunningServer) -> None:
    error = {"message": "'max_tokens' or 'max_completion_tokens' is too large: 300. This model supports at most 200."}
    simulator.summary_default = Fault(status=400, error=error)
    assert await ask(provider) == failure("summariser_status_400")
    assert len(simulator.summaries) == 1


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


@pytest.mark.parametrize("status", [401, 404, 429])
async def test_one_callers_account_does_not_close_a_model_to_the_others(
    simulator: Simulator, provider: RunningServer, status: int
) -> None:
    simulator.summary_default = Fault(status=status)
    async with routed(provider) as routes:
        asking = summariser()
        for _ in range(4):
            reply = await asking.ask(request(), routes, None, monotonic() + PATIENCE, TENANT)
            assert reply == failure(f"summariser_status_{status}")


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


@pytest.mark.parametrize(
    ("model", "unsupported"),
    [("gpt-5-chat-latest", "reasoning_effort"), ("o4-mini", "max_tokens"), ("mine", "max_tokens"), ("old", "stream")],
)
def test_a_parameter_the_provider_refuses_is_dropped_or_swapped_and_remembered(
    steno: StartSteno, simulator: Simulator, model: str, unsupported: str
) -> None:
    simulator.window = 128_000  # A reasoning model needs room to think, too.
    simulator.models = {model: Model(model, unsupported=frozenset({unsupported}))}
    proxy = steno()
    assert status_of(proxy, model)["status"] == "summarized"
    assert unsupported not in simulator.summaries[-1].payload
    asked = len(simulator.summaries)
    messages: Any = [RULES, *LONG[2:], {"role": "user", "content": "And that?"}]
    proxy.sdk().chat.completions.create(model=model, messages=messages)
    later = simulator.summaries[asked:]
    assert later
    assert {record.status for record in later} == {200}


def test_a_reasoning_model_may_think_on_top_of_its_summary(
    steno: StartSteno, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.window = 128_000
    simulator.models = {"o4-mini": Model("o4-mini")}
    caps = []
    for allowance in (1_000, 3_000):
        monkeypatch.setattr("app.compaction.summariser.REASONING_ALLOWANCE", allowance)
        assert status_of(steno(), "o4-mini")["status"] == "summarized"
        caps.append(simulator.summaries[-1].payload["max_completion_tokens"])
    assert caps[1] - caps[0] == 2_000


LONG_WINDED = json.dumps({"choices": [{"message": {"content": "The guest asks. " * 1_000}}]}).encode()
THOUGHT = b'data: {"choices":[{"delta":{"reasoning_content":"Hm."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(text=""), "summary_empty"),
        (Fault(text="<think>They talk about rooms.</think>"), "summary_empty"),
        (Fault(body=THOUGHT), "summary_empty"),
        (Fault(refusal="I'm sorry, I can't help with that."), "summary_not_finished:refusal"),
        (Fault(text="I'm sorry, but I cannot help with that."), "summary_refused"),
        (Fault(tool_calls=(ScriptedCall(name="book"),)), "summary_is_a_tool_call"),
        (Fault(text="Notes.", tool_calls=(ScriptedCall(name="book"),)), "summary_is_a_tool_call"),
        (Fault(words=5_000), "summary_not_finished:length"),
        (Fault(finish_reason="length"), "summary_not_finished:length"),
        (Fault(finish_reason="content_filter"), "summary_not_finished:content_filter"),
        (Fault(text="Too short."), "summary_too_short"),
        (Fault(body=LONG_WINDED), "summary_too_long"),
    ],
)
def test_a_bad_summary_is_asked_for_once_more_and_never_stored(
    steno: StartSteno, simulator: Simulator, fault: Fault, reason: str
) -> None:
    simulator.summary_default = fault
    proxy = steno()
    context = status_of(proxy, "gpt-4o")
    assert (context["status"], context["chunks"]) == ("full", [])
    assert context["reason"] == reason
    assert len(simulator.summaries) > 1
    assert get(proxy, f"/conversations/{context['conversation_id']}/summaries")["data"] == []


@pytest.mark.slow
def test_a_summary_no_smaller_than_what_it_replaces_is_never_stored(steno: StartSteno, simulator: Simulator) -> None:
    """Within its cap, of a short history before a question so large that both do not fit."""
    simulator.summary_default = Fault(text="The guest asks for room 712, and the desk answers. " * 40)
    proxy, old = steno(), "The guest asks for room 712 with a view of the harbour. " * 24
    question = {"role": "user", "content": "Read this letter. " * 1_780}
    messages: Any = [{"role": "user", "content": old}, {"role": "assistant", "content": old}, question]
    answer: Any = proxy.sdk().chat.completions.create(model="gpt-4o", messages=messages)
    context = answer.context
    assert (context["status"], context["chunks"], context["reason"]) == ("trimmed", [], "summary_not_smaller")
    assert len(simulator.summaries) == 2
    assert simulator.chats[0].payload["messages"][-1] == question
    assert get(proxy, f"/conversations/{context['conversation_id']}/summaries")["data"] == []


FAILING: dict[str, Fault] = {
    "429": Fault(status=429, retry_after=0.1),
    "500": Fault(status=500),
    "503": Fault(status=503),
    "no answer": Fault(hang=True),
    "slow first byte": Fault(first_token_delay=5.0),
    "drip": Fault(text="Notes " * 50, chunk_delay=0.1, chunk_size=6),
    "reset": Fault(cut="reset", after=3),
    "cut": Fault(cut="end", after=3),
    "error in the stream": Fault(error_frame={"message": "The server had an error."}, after=3),
    "empty": Fault(text=""),
    "refusal": Fault(refusal="I'm sorry, I can't help with that."),
    "tool call": Fault(tool_calls=(ScriptedCall(name="book"),)),
    "too long": Fault(words=5_000),
}


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("zone", ["soft", "hard"])
@pytest.mark.parametrize("fault", FAILING.values(), ids=FAILING)
def test_whatever_goes_wrong_the_request_is_answered_and_nothing_is_stored(
    steno: StartSteno, simulator: Simulator, fault: Fault, zone: str
) -> None:
    """What fits goes as it came; what does not is trimmed without a summary. Either says why."""
    simulator.summary_default = fault
    proxy = steno(summary={"timeout_seconds": 0.5})
    messages: Any = [RULES, *(LONG if zone == "soft" else talk(40)), {"role": "user", "content": "Which one was that?"}]
    answer: Any = proxy.sdk().chat.completions.create(model="gpt-4o", messages=messages)
    context, sent = answer.context, list(simulator.chats[0].messages or ())
    assert (context["status"], context["chunks"]) == ("full" if zone == "soft" else "trimmed", [])
    assert context["reason"].startswith(("summary_", "summariser_"))
    assert context["actions"] == ([] if zone == "soft" else ["pruned", "stub"])
    assert (sent == messages) == (zone == "soft")
    assert (sent[0], sent[-1]) == (messages[0], messages[-1])
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

"""Several wire formats behind one Steno: where each goes, who writes its summaries, and what is kept apart.

The second format here is a stand-in: it is written as the first one is, and stands at another path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app import main
from app.core.reasons import Code, Reason
from app.wire.beginnings import Beginnings
from app.wire.chat_completions.format import ChatCompletions
from app.wire.chat_completions.summaries import ChatSummaries
from app.wire.formats import FORMATS
from app.wire.types import BOUNDS, BodyBounds, Headers, WireRequest
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import CHAT, Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import Received, ScriptedProvider, answer

MESSAGES = "/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
KEY = b"x-api-key: sk-callers"
VERSION = (b"anthropic-version", b"2023-06-01")
LONG = long_history()
SAID = "The customer asked about orders ORD-0001 to ORD-0015, and each was answered as it is in the notes."
WIDE = 200_000


class OtherSummaries(ChatSummaries):
    target = MESSAGES.encode()
    headers = (VERSION,)


class OtherFormat(ChatCompletions):
    name = "messages"
    path = MESSAGES.encode()
    summaries = OtherSummaries()

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> WireRequest:
        request = super().read(body, bounds, beginnings)
        return replace(request, hands_off=Reason(Code.SERVER_STATE)) if "thread" in request.source else request

    def window_asked(self, headers: Headers) -> int | None:
        return WIDE if (b"anthropic-beta", b"wide") in headers else None


@pytest.fixture(autouse=True)
def _two_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "FORMATS", (FORMATS[0], OtherFormat()))


@pytest.fixture
def other() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(default=(completion(),)) as provider:
        yield provider


@pytest.fixture
def steno(before_scripted: StartSteno, scripted: ScriptedProvider) -> StartSteno:
    scripted.default = (completion(),)
    return before_scripted


def completion(text: str = SAID) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return answer(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode())


def ask(running: Steno, body: bytes, *headers: bytes, target: str = MESSAGES, method: str = "POST") -> Answer:
    usual = (b"content-type: application/json", KEY, *headers)
    return send(running.url, request_bytes(body, *usual, target=target, method=method, usual=False), timeout=30.0)


def asked(provider: ScriptedProvider) -> list[tuple[str, bool]]:
    """Where each request went, and whether it was for a summary."""
    return [(request.target.decode(), bool(request.all(b"x-context-call"))) for request in provider.requests]


def at(provider: ScriptedProvider, **settings: Any) -> dict[str, Any]:
    return {"base_url": f"{provider.url}/v1", "discover_windows": False, **settings}


def first(provider: ScriptedProvider) -> Received:
    return provider.requests[0]


# Summaries


def test_a_summary_is_asked_for_in_the_conversations_format_with_its_headers_and_the_callers_key(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    answered = ask(steno(), chat(LONG))
    assert answered.header("x-context-status") == "summarized"
    assert asked(scripted) == [(MESSAGES, True), (MESSAGES, False)]
    assert first(scripted).all(VERSION[0]) == [VERSION[1]]
    assert first(scripted).all(b"x-api-key") == [b"sk-callers"]


def test_the_callers_own_version_is_sent_as_it_came(steno: StartSteno, scripted: ScriptedProvider) -> None:
    ask(steno(), chat(LONG), b"anthropic-version: 2099-01-01", b"anthropic-beta: some-beta")
    for request in scripted.requests:
        assert request.all(b"anthropic-version") == [b"2099-01-01"]
        assert request.all(b"anthropic-beta") == [b"some-beta"]


def test_another_upstream_is_asked_for_summaries_in_the_format_that_it_speaks_and_without_the_callers_key(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    upstreams = {"writer": at(other, formats=["chat_completions"])}
    answered = ask(steno(upstreams=upstreams, summary={"upstream": "writer"}), chat(LONG))
    assert answered.header("x-context-status") == "summarized"
    assert (asked(other), asked(scripted)) == ([(CHAT, True)], [(MESSAGES, False)])
    assert b"sk-callers" not in first(other).head


@pytest.mark.slow
def test_a_summariser_in_another_format_reads_a_transcript_where_the_conversation_would_be_shown(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    summary = {"upstream": "writer", "style": "prefix"}
    upstreams = {"writer": at(other, formats=["chat_completions"])}
    ask(steno(upstreams=upstreams, summary=summary), chat(LONG))
    ask(steno(summary={"style": "prefix"}), chat(LONG))
    quoted, shown = (json.loads(first(provider).body)["messages"] for provider in (other, scripted))
    [continued] = [json.loads(r.body)["messages"] for r in scripted.requests if r.all(b"x-context-call")]
    assert LONG[0] not in quoted
    assert LONG[0] in continued
    assert shown


def test_a_fallback_in_another_format_reads_a_transcript_of_what_the_first_was_shown(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    for _ in range(2):  # The call is made once more.
        scripted.then(answer(b"{}", status=b"500 Internal Server Error"))
    upstreams = {"writer": at(other, formats=["chat_completions"])}
    ask(steno(upstreams=upstreams, summary={"style": "prefix", "fallbacks": [{"upstream": "writer"}]}), chat(LONG))
    shown, quoted = (json.loads(first(provider).body)["messages"] for provider in (scripted, other))
    assert LONG[0] in shown
    assert LONG[0] not in quoted
    assert asked(other) == [(CHAT, True)]


def test_a_summariser_whose_path_is_not_there_is_asked_in_another_format_the_next_time(
    steno: StartSteno, other: ScriptedProvider
) -> None:
    other.then(answer(b'{"detail":"Not Found"}', status=b"404 Not Found"))
    running = steno(upstreams={"writer": at(other)}, summary={"upstream": "writer"})
    for history in (LONG, [{"role": "user", "content": "Another one."}, *LONG[1:]]):
        ask(running, chat(history))
    assert asked(other) == [(MESSAGES, True), (CHAT, True)]


# Where requests go


def test_a_path_that_is_not_there_is_the_providers_own_answer_and_makes_another_upstream_the_next(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    refusal = answer(b'{"detail":"Not Found"}', status=b"404 Not Found")
    scripted.then(refusal)
    running = steno(upstreams={"claude": at(other, formats=["messages"])})
    with capture_logs() as logged:
        refused = ask(running, chat())
        assert (refused.status, refused.body) == (404, b'{"detail":"Not Found"}')
        assert ask(running, chat()).status == 200
    assert (asked(scripted), asked(other)) == ([(MESSAGES, False)], [(MESSAGES, False)])
    [line] = [line for line in logged if line["event"] == "upstream does not speak a format"]
    assert (line["upstream"], line["format"]) == ("default", "messages")
    assert ask(running, chat(), target=CHAT).status == 200
    assert asked(scripted)[1:] == [(CHAT, False)]


def test_a_path_that_is_spelt_otherwise_says_nothing_of_it(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    scripted.then(answer(b'{"detail":"Not Found"}', status=b"404 Not Found"))
    running = steno(upstreams={"claude": at(other, formats=["messages"])})
    assert ask(running, chat(), target=MESSAGES + "/").status == 404
    assert ask(running, chat()).status == 200
    assert (asked(scripted), asked(other)) == ([(MESSAGES + "/", False), (MESSAGES, False)], [])


def test_a_model_that_is_not_there_says_nothing_of_the_path(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider
) -> None:
    told = b'{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}'
    scripted.then(answer(told, status=b"404 Not Found"))
    running = steno(upstreams={"claude": at(other, formats=["messages"])})
    assert ask(running, chat()).body == told
    ask(running, chat())
    assert (len(scripted.requests), len(other.requests)) == (2, 0)


@pytest.mark.parametrize("target", [MESSAGES, COUNT, f"{MESSAGES}/batches"])
def test_a_format_that_nobody_speaks_is_refused_without_asking_anybody(
    steno: StartSteno, scripted: ScriptedProvider, target: str
) -> None:
    answered = ask(steno(upstream={"formats": ["chat_completions"]}), chat(), target=target)
    assert (answered.status, answered.json["error"]["code"]) == (404, "format_not_spoken")
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("method", "target", "headers", "goes_to_other"),
    [
        ("POST", COUNT, (), True),
        ("POST", f"{MESSAGES}/batches?a=b", (), True),
        ("GET", f"{MESSAGES}/batches/b_1/results", (), True),
        ("GET", "/v1/models", (b"anthropic-version: 2023-06-01",), True),
        ("GET", "/v1/models/claude-5", (b"anthropic-version: 2023-06-01",), True),
        ("GET", "/v1/models", (), False),
        ("GET", "/v1/responses/r_1", (), False),
        ("POST", "/v1/embeddings", (), False),
    ],
)
def test_other_paths_go_where_their_api_is(
    steno: StartSteno,
    scripted: ScriptedProvider,
    other: ScriptedProvider,
    method: str,
    target: str,
    headers: tuple[bytes, ...],
    goes_to_other: bool,
) -> None:
    upstream = {"formats": ["chat_completions", "responses"]}
    running = steno(upstream=upstream, upstreams={"claude": at(other, formats=["messages"])})
    assert ask(running, b"{}", *headers, target=target, method=method).status == 200
    chosen, not_chosen = (other, scripted) if goes_to_other else (scripted, other)
    assert ([target for target, _ in asked(chosen)], asked(not_chosen)) == ([target], [])


def test_an_operators_key_stands_where_the_format_wants_it(
    steno: StartSteno, scripted: ScriptedProvider, other: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-own")
    gateway = {"api_key_env": "OWN_KEY"}
    running = steno(upstream=gateway, upstreams={"claude": at(other, formats=["messages"], api_key_env="OWN_KEY")})
    for target in (CHAT, MESSAGES, f"/u/claude{MESSAGES}"):
        ask(running, chat(), b"authorization: Bearer sk-callers", target=target)
    sent = [(r.all(b"authorization"), r.all(b"x-api-key")) for r in (*scripted.requests, *other.requests)]
    assert sent == [([b"Bearer sk-own"], []), ([b"Bearer sk-own"], [b"sk-own"]), ([], [b"sk-own"])]


# What is kept apart


def test_a_window_that_headers_ask_for_holds_for_that_request_alone(steno: StartSteno) -> None:
    running = steno(models=[])
    model = "claude-instant-1.2"
    asking = ask(running, chat(model=model), b"anthropic-beta: wide")
    plain = ask(running, chat(model=model))
    assert asking.header("x-context-window") == str(WIDE)
    assert int(plain.header("x-context-window") or 0) < WIDE


def test_no_request_asks_for_more_than_the_operator_set(steno: StartSteno) -> None:
    answered = ask(steno(), chat(), b"anthropic-beta: wide")
    assert answered.header("x-context-window") == "8000"


# What passes


def test_a_request_whose_history_somebody_else_keeps_passes_and_says_why(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    body = chat(LONG, thread="t_1")
    with capture_logs() as logged:
        answered = ask(steno(), body)
    assert [request.body for request in scripted.requests] == [body]
    told = answered.header("x-context-status"), answered.header("x-context-reason")
    assert told == ("bypassed", "server_state")
    [line] = [line for line in logged if line["event"] == "conversations passed un-compacted"]
    assert (line["path"], line["reason"], line["times"]) == (MESSAGES, "server_state", 1)


def test_what_is_handed_off_goes_without_stenos_own_members(steno: StartSteno, scripted: ScriptedProvider) -> None:
    ask(steno(), chat(LONG, thread="t_1", conversation_id="mine"))
    assert json.loads(first(scripted).body) == json.loads(chat(LONG, thread="t_1"))


# Counting


def test_a_request_to_count_is_about_what_would_be_forwarded_where_that_is_asked_for(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    running = steno()
    ask(running, chat(LONG))
    forwarded = scripted.requests[-1].body
    counted = ask(running, chat(LONG), b"x-context-count: forwarded", target=COUNT)
    assert counted.status == 200
    assert asked(scripted)[2:] == [(COUNT, False)]
    assert scripted.requests[-1].body == forwarded
    assert counted.header("x-context-status") == "summarized"
    assert scripted.requests[-1].all(b"x-context-count") == []


def test_counting_makes_no_summary(steno: StartSteno, scripted: ScriptedProvider) -> None:
    counted = ask(steno(), chat(LONG), b"x-context-count: forwarded", target=COUNT)
    assert counted.status == 200
    assert asked(scripted) == [(COUNT, False)]


def test_counting_leaves_no_trace(steno: StartSteno) -> None:
    """Neither in the store nor in what later histories are recognised by."""
    running = steno()
    ask(running, chat(LONG), b"x-context-count: forwarded", target=COUNT)
    assert len(running.services.conversations._heads) == 0
    listed = ask(running, b"", target="/context/conversations", method="GET").json
    assert listed["data"] == []


def test_a_request_to_count_passes_as_it_came_without_the_header(steno: StartSteno, scripted: ScriptedProvider) -> None:
    running = steno()
    ask(running, chat(LONG))
    counted = ask(running, chat(LONG), target=COUNT)
    assert scripted.requests[-1].body == chat(LONG)
    assert counted.header("x-context-status") == "bypassed"


def test_what_cannot_be_asked_of_a_count_is_refused(steno: StartSteno) -> None:
    refused = ask(steno(), chat(), b"x-context-count: everything", target=COUNT)
    assert (refused.status, refused.json["error"]["param"]) == (400, "x-context-count")


# REST


def test_a_format_that_does_not_exist_is_refused_with_those_that_do(steno: StartSteno) -> None:
    refused = ask(steno(), chat(format="telex"), target="/context/plan")
    assert refused.status == 400
    message = "format must be one of chat_completions, messages; it is 'telex'."
    assert (refused.json["error"]["param"], refused.json["error"]["message"]) == ("format", message)

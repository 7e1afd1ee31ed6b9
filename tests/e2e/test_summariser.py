"""The summariser's call over real sockets: its bounds in bytes and seconds, what a model may think, and its cache."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.chunks import Failure
from app.compaction.prompts import SUMMARY_PROMPT, summary_request
from app.compaction.summariser_client import Route, Summariser
from app.conversation.reasons import Code, Reason
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.spec import SummaryAnswer
from app.http.headers import for_summary, new_instance
from app.http.loopback import RunningServer
from app.http.upstream import Upstream
from lab.simulator import Fault, Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

HEADERS = for_summary([(b"authorization", b"Bearer sk-test")])
TRANSCRIPT = "The guest asks for room 712 with a view of the harbour. Booking HB-4711 is for three nights. " * 20


@pytest.fixture
def spare() -> Simulator:
    """The provider of the next route, which `next_provider` runs."""
    return Simulator(window=8_000, tables=TABLES)


@pytest.fixture
def next_provider(spare: Simulator) -> Iterator[RunningServer]:
    with spare.serve() as server:
        yield server


async def ask(*servers: Any, seconds: float, deadline: float) -> SummaryAnswer | Failure:
    """One call may take so many seconds, and all of them until the deadline; there is one route for each server."""
    upstreams = [Upstream(f"{server.url}/v1", 5.0, 30.0, 5.0, new_instance()) for server in servers]
    request = summary_request(SUMMARY_PROMPT, TRANSCRIPT, 300, 300)
    providers: Any = [SimpleNamespace(upstream=each, name="one", host="one.example") for each in upstreams]
    routes = [Route("gpt-4o", each, CHAT_COMPLETIONS.summaries, HEADERS) for each in providers]
    try:
        return await Summariser(seconds, {}).ask(request, routes, None, monotonic() + deadline, "a tenant")
    finally:
        for upstream in upstreams:
            await upstream.close()


async def test_an_answer_without_end_is_given_up_at_four_megabytes(scripted: ScriptedProvider) -> None:
    scripted.then(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"{" + b" " * (5 << 20), "hang")
    failed = await ask(scripted, seconds=20.0, deadline=30.0)
    assert failed == Failure((Reason(Code.SUMMARISER_ANSWER_TOO_LARGE),))


async def test_all_attempts_together_end_at_the_deadline(
    simulator: Simulator, provider: RunningServer, spare: Simulator, next_provider: RunningServer
) -> None:
    """The second call gets what the first has left, and a third route is not asked at all."""
    simulator.summary_default = spare.summary_default = Fault(hang=True)
    failed = await ask(provider, next_provider, next_provider, seconds=1.1, deadline=2.0)
    assert failed == Failure((Reason(Code.SUMMARISER_UPSTREAM_TIMEOUT),))
    assert (len(simulator.summaries), len(spare.summaries)) == (1, 1)


def test_a_summary_of_the_conversations_own_model_rides_the_cached_prompt(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno(compaction={"background": {"enabled": False}})
    # Over the trigger with the last one.
    answers = [post(proxy.url, chat(turns(n), conversation_id="c-1", prompt_cache_key="k")) for n in range(11, 14)]
    assert answers[-1].header("x-context-status") == "summarized"
    [summary] = simulator.summaries
    assert summary.usage is not None
    prompt, cached = summary.usage["prompt_tokens"], summary.usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.8 * prompt
    assert summary.payload["prompt_cache_key"] == "k"
    told = get(proxy.url, "/context/usage").json["totals"]["summary"]
    assert (told["prompt"], told["cached"], told["cached_share"]) == (prompt, cached, round(cached / prompt, 4))

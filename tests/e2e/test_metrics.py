"""Metrics of a real server: each thing that happens is counted where docs/metrics.md says, and nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import get, post
from tests.e2e.running import WINDOW, Steno
from tests.e2e.scripted import closed_port

Numbers = dict[str, float]


def numbers(steno: Steno) -> Numbers:
    rows = (line.rpartition(" ") for line in get(steno.url, "/metrics").body.decode().splitlines() if line[0] != "#")
    return {series: float(number) for series, _, number in rows}


def counted(after: Numbers, before: Numbers) -> Numbers:
    """What changed, but for times and what the process itself is like."""
    return {
        series: number - before.get(series, 0.0)
        for series, number in after.items()
        if number != before.get(series, 0.0) and not series.startswith("process_") and "_seconds_" not in series
    }


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator(window=WINDOW, tables=TABLES)


@pytest.fixture(scope="module")
def steno(simulator: Simulator) -> Iterator[Steno]:
    with pytest.MonkeyPatch.context() as patch, simulator.serve() as provider:
        running.forget_environment(patch)
        away = {"base_url": f"http://127.0.0.1:{closed_port()}/v1", "discover_windows": False}
        prices = [{"match": "*", "prompt": 1.0, "completion": 2.0}]
        steno = running.start(provider.url, {"upstreams": {"away": away}, "prices": prices})
        yield steno
        steno.stop()


def test_an_untouched_chat_is_a_request_a_payload_and_its_tokens(steno: Steno) -> None:
    before = numbers(steno)
    answered = post(steno.url, chat(conversation_id="untouched"))
    assert answered.status == 200
    told = counted(after := numbers(steno), before)
    assert told['steno_requests_total{route="chat",status="2xx"}'] == 1
    assert told['steno_payloads_total{context_status="full"}'] == 1
    tokens = answered.json["usage"]["prompt_tokens"]
    assert told['steno_tokens_total{kind="prompt",purpose="message"}'] == tokens
    assert told["steno_estimate_ratio_count"] == 1
    assert told['steno_cost_total{purpose="message"}'] > 0
    for kind in ("steno_request_duration_seconds", "steno_request_first_byte_seconds"):
        chats = f'{kind}_count{{route="chat"}}'
        assert after[chats] - before[chats] == 1
    assert after["steno_upstream_first_byte_seconds_count"] - before["steno_upstream_first_byte_seconds_count"] == 1
    assert not [series for series in told if "compaction" in series or "reason" in series or "chunks" in series]


def test_the_first_byte_comes_no_later_than_the_last_and_the_providers_no_later_than_ours(steno: Steno) -> None:
    post(steno.url, chat())
    told = numbers(steno)
    own, whole = (told[f'steno_request_{each}_seconds_sum{{route="chat"}}'] for each in ("first_byte", "duration"))
    assert 0 < told["steno_upstream_first_byte_seconds_sum"] < own <= whole


def test_a_compaction_is_counted_with_its_summary_its_wait_and_what_it_saved(steno: Steno) -> None:
    before = numbers(steno)
    post(steno.url, chat(long_history(), conversation_id="compacted"))
    context = post(steno.url, chat(long_history(), conversation_id="compacted")).json["context"]
    told = counted(after := numbers(steno), before)
    assert told['steno_compactions_total{outcome="made",purpose="summary"}'] == 1
    assert told['steno_summary_calls_total{result="answered"}'] >= 1
    assert told['steno_chunks_total{result="new"}'] == len(context["chunks"])
    assert told['steno_chunks_total{result="reused"}'] == len(context["chunks"])
    assert told['steno_payloads_total{context_status="summarized"}'] == 2
    tokens = {kind: told[f'steno_tokens_total{{kind="{kind}",purpose="message"}}'] for kind in ("estimated", "saved")}
    assert tokens == {"estimated": 2 * context["tokens"]["estimated"], "saved": 2 * context["tokens"]["saved"]}
    assert told['steno_tokens_total{kind="completion",purpose="summary"}'] > 0
    assert told['steno_cost_total{purpose="summary"}'] > 0
    for series in ('steno_compaction_duration_seconds_count{purpose="summary"}', "steno_summary_wait_seconds_count"):
        assert after[series] - before[series] == 1
    assert after["steno_database_call_seconds_count"] > before["steno_database_call_seconds_count"]


def test_what_is_quoted_back_is_counted(steno: Steno) -> None:
    said = [
        {"role": "user", "content": "The spare key of my boat Albatross hangs behind the blue buoy in the marina."},
        {"role": "assistant", "content": "Noted: the Albatross key hangs behind the blue buoy."},
    ]
    asked = {"role": "user", "content": "Where in the marina does the spare key of the Albatross hang?"}
    history = [*said, *turns(15, first=300), {"role": "assistant", "content": "I see."}, asked]
    before = numbers(steno)
    context = post(steno.url, chat(history, conversation_id="recalled")).json["context"]
    recalled = context.get("recalled", {}).get("tokens", 0)
    assert recalled > 0
    assert counted(numbers(steno), before)["steno_recalled_tokens_total"] == recalled


def test_a_failed_compaction_is_counted_by_its_reason_and_so_is_its_payload(steno: Steno, simulator: Simulator) -> None:
    before = numbers(steno)
    for _ in range(4):
        simulator.next_summary(status=500)
    post(steno.url, chat(turns(15, first=100), conversation_id="failed"))
    simulator.script.clear()  # What was not needed is not for other tests.
    told = counted(numbers(steno), before)
    assert told['steno_compactions_total{outcome="failed",purpose="summary"}'] == 1
    assert told['steno_compaction_failures_total{reason="summariser_status"}'] == 1
    assert told['steno_payload_reasons_total{reason="summariser_status"}'] == 1
    assert told['steno_summary_calls_total{result="summariser_status"}'] >= 1


def test_a_provider_that_is_away_and_a_refused_request_are_errors_of_their_routes(steno: Steno) -> None:
    before = numbers(steno)
    assert post(steno.url, chat(), target="/u/away/v1/chat/completions").status == 502
    assert get(steno.url, "/v1/../admin").status == 400
    told = counted(numbers(steno), before)
    assert told['steno_upstream_errors_total{code="upstream_unreachable"}'] == 1
    assert told['steno_requests_total{route="chat",status="5xx"}'] == 1
    assert told['steno_requests_total{route="refused",status="4xx"}'] == 1


def test_the_state_of_database_and_caches_is_that_of_the_moment(steno: Steno) -> None:
    post(steno.url, chat(turns(15, first=600)))
    told = numbers(steno)
    assert told["steno_database_up"] == 1
    assert told["steno_summarisers_paused"] == 0
    assert told['steno_cache_bytes{cache="histories"}'] > 10_000
    assert told["steno_in_flight_bytes"] == 0


def test_no_label_is_made_up_by_a_request(steno: Steno) -> None:
    """Neither a model nor a conversation, tenant, key or path: the list of series is the same for ever."""
    before = set(numbers(steno))
    odd = b"authorization: Bearer sk-canary", b"x-conversation-id: canary-talk", b"x-context-preset: default"
    post(steno.url, chat(model="canary-model"), *odd)
    get(steno.url, "/v1/canary-path", *odd)
    assert set(numbers(steno)) == before
    assert not re.search("canary|gpt-4o", json.dumps(sorted(before)))

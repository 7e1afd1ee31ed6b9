"""The ledger: what `GET .../usage` tells adds up to what the provider reported, by call, by turn and in all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import pytest

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import CHAT, connected, get, post, read_until, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head
from tests.e2e.test_three_formats import ALL, Written
from tests.e2e.test_three_formats import CHAT as CHAT_COMPLETIONS

MODEL = "gpt-4o"
NAMED: Any = {"x-conversation-id": "c-1"}
PRICES: Any = [{"match": "gpt-4o", "prompt": 15, "completion": 75}]
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]
LONG: Any = turns(15)


def usage(steno: Steno, query: str = "", conversation: str = "c-1") -> Any:
    told = get(steno.url, f"/context/conversations/{conversation}/usage?{query}")
    assert told.status == 200, told.body
    return told.json


def say(steno: Steno, messages: Any = HELLO, **options: Any) -> Any:
    return steno.sdk().chat.completions.create(model=MODEL, messages=messages, extra_headers=NAMED, **options)


def stream(steno: Steno, messages: Any = HELLO, **options: Any) -> None:
    for _ in say(steno, messages, stream=True, **options):
        pass


def reported(records: Iterable[Record], name: str) -> int:
    """What the provider's own log says, added up."""
    return sum(record.usage[name] for record in records if record.usage)


def test_an_answer_is_recorded_as_the_provider_reported_it(steno: StartSteno) -> None:
    proxy = steno()
    answered = say(proxy)
    [record] = usage(proxy)["data"]
    assert record["tokens"]["prompt"] == answered.usage.prompt_tokens
    assert record["tokens"]["completion"] == answered.usage.completion_tokens
    assert (record["tokens"]["cached"], record["tokens"]["reasoning"]) == (0, 0)
    assert record["tokens"]["forwarded"] == record["tokens"]["estimated"] == answered.usage.prompt_tokens
    shown = ("object", "turn", "purpose", "upstream", "model", "status", "context_status")
    assert [record[name] for name in shown] == ["usage", 1, "message", "default", MODEL, 200, "full"]
    assert record["created_at"].endswith("Z")


def test_a_record_says_what_was_decided_and_a_summarys_what_it_made(steno: StartSteno) -> None:
    """All that a graph of the conversation needs, before and after the compaction."""
    proxy = steno()
    say(proxy)
    say(proxy, LONG)
    summary, message, first = sorted(usage(proxy)["data"], key=lambda record: record["purpose"], reverse=True)
    if message["turn"] == 1:
        message, first = first, message
    assert (first["actions"], first["reason"], first["waited_seconds"]) == ([], None, None)
    sizes = message["tokens"]
    assert sizes["estimated"] > sizes["trigger"] > sizes["forwarded"]
    assert sizes["trigger"] < sizes["limit"] < sizes["window"] == 8_000
    assert (message["actions"], message["summary_id"], message["seconds"]) == (["summarized"], None, None)
    assert (sizes["replaced"], sizes["summary"], summary["tokens"]["window"]) == (None, None, None)
    assert message["waited_seconds"] >= summary["seconds"] > 0
    [made] = get(proxy.url, "/context/conversations/c-1/summaries").json["data"]
    assert (summary["summary_id"], summary["tokens"]["summary"]) == (made["id"], made["token_count"])
    assert sizes["saved"] == summary["tokens"]["replaced"] - summary["tokens"]["summary"]
    assert (summary["actions"], summary["waited_seconds"]) == ([], None)


def test_an_answer_that_is_not_kept_made_nothing(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_summary(text="Too short.")
    proxy = steno()
    say(proxy, LONG)
    refused, kept = [record for record in usage(proxy, "order=asc")["data"] if record["purpose"] == "summary"]
    assert (refused["summary_id"], refused["tokens"]["summary"]) == (None, None)
    assert refused["tokens"]["replaced"] == kept["tokens"]["replaced"] > kept["tokens"]["summary"]
    assert kept["summary_id"] is not None


def test_without_prices_a_call_costs_what_the_list_says_and_is_marked_so(steno: StartSteno) -> None:
    proxy = steno()
    answered = say(proxy).usage
    told = usage(proxy)
    [record], totals = told["data"], told["totals"]
    assert (record["price_source"], totals["list_priced"]) == ("registry", 1)
    assert record["cost"] == pytest.approx((answered.prompt_tokens * 2.5 + answered.completion_tokens * 10) / 1e6)
    own = steno(prices=PRICES)
    say(own)
    assert (usage(own)["data"][0]["price_source"], usage(own)["totals"]["list_priced"]) == ("settings", 0)
    neither = steno(prices=None)
    say(neither)
    [record] = usage(neither)["data"]
    assert (record["price_source"], record["cost"]) == (None, None)


def test_only_what_has_a_price_has_a_cost(steno: StartSteno) -> None:
    proxy = steno(prices=PRICES)
    say(proxy)
    post(proxy.url, chat(HELLO, model="gpt-4o-mini"), b"x-conversation-id: c-1")
    told = usage(proxy)
    assert [record["cost"] is None for record in told["data"]] == [True, False]
    assert told["totals"]["cost"] == told["data"][1]["cost"]
    assert told["totals"]["unpriced"] == 1
    assert [row["value"] for row in told["data"][0]["rows"]] == [None, None]


def test_a_stream_that_tells_its_usage_is_recorded_with_it(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    stream(proxy, stream_options={"include_usage": True})
    told = usage(proxy)
    assert told["totals"]["prompt"] == reported(simulator.chats, "prompt_tokens") > 0
    assert told["totals"]["completion"] == reported(simulator.chats, "completion_tokens") > 0


def test_a_stream_that_does_not_keeps_its_estimate(steno: StartSteno) -> None:
    """Steno changes nothing in a request just to know what it took."""
    proxy = steno()
    stream(proxy)
    told = usage(proxy)
    tokens = told["data"][0]["tokens"]
    assert (tokens["prompt"], tokens["completion"]) == (None, None)
    assert tokens["forwarded"] == told["turns"][0]["first_forwarded"] > 0
    assert told["turns"][0]["first_prompt"] is None
    assert (told["totals"]["prompt"], told["totals"]["unreported"], told["data"][0]["rows"]) == (0, 1, [])


def test_a_summary_is_counted_apart_from_the_request_it_was_made_for(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(prices=PRICES)
    answered = say(proxy, LONG)
    told = usage(proxy, "order=asc")
    totals, [*summaries, message] = told["totals"], told["data"]
    assert len(simulator.summaries) == len(summaries) == totals["summary"]["calls"] > 0
    assert {summary["purpose"] for summary in summaries} == {"summary"}
    assert {record["request_id"] for record in told["data"]} == {message["request_id"]}
    assert {(summary["upstream"], summary["model"], summary["context_status"]) for summary in summaries} == {
        ("default", MODEL, None)
    }
    for kind, records in (("prompt", simulator.chats), ("completion", simulator.chats)):
        assert totals[kind] == reported(records, f"{kind}_tokens")
        assert totals["summary"][kind] == reported(simulator.summaries, f"{kind}_tokens") > 0
    tokens = answered.to_dict()["context"]["tokens"]
    assert message["context_status"] == "summarized"
    assert [message["tokens"][name] for name in ("estimated", "forwarded", "saved")] == [
        tokens[name] for name in ("estimated", "forwarded", "saved")
    ]
    assert totals["saved"] == tokens["saved"] > 0
    assert totals["cost"] == pytest.approx(sum(record["cost"] for record in told["data"]))
    assert told["turns"][0]["first_prompt"] == message["tokens"]["prompt"]


def test_records_are_listed_in_pages(steno: StartSteno) -> None:
    proxy = steno()
    for number in range(5):
        say(proxy, [{"role": "user", "content": f"Question {number}?"}])
    found: list[str] = []
    query = "limit=2"
    while True:
        page = usage(proxy, query)
        found += [record["id"] for record in page["data"]]
        assert (page["object"], page["totals"]["calls"]) == ("list", 5)
        if not page["has_more"]:
            break
        query = f"limit=2&after={page['last_id']}"
    assert len(found) == 5
    assert found == sorted(set(found), reverse=True)
    told = get(proxy.url, "/context/conversations/c-1/usage?after=use_none")
    assert (told.status, told.json["error"]["param"]) == (400, "after")


def test_all_calls_of_a_caller_add_up_to_what_the_provider_reported(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(prices=PRICES)
    for conversation in ("c-1", "c-1", "c-2", "c-2"):
        post(proxy.url, chat(LONG), f"x-conversation-id: {conversation}".encode())
    told = get(proxy.url, "/context/usage?by=model").json
    totals, summary = told["totals"], told["totals"]["summary"]
    for name in ("prompt", "completion"):
        assert totals[name] == reported(simulator.chats, f"{name}_tokens")
        assert summary[name] == reported(simulator.summaries, f"{name}_tokens") > 0
    cached = sum(record.usage["prompt_tokens_details"]["cached_tokens"] for record in simulator.chats if record.usage)
    assert totals["cached"] == cached > 0
    assert totals["cached_share"] == round(cached / totals["prompt"], 4)
    per_conversation = [usage(proxy, conversation=name)["totals"] for name in ("c-1", "c-2")]
    for name in ("calls", "prompt", "cached", "saved"):
        assert totals[name] == sum(each[name] for each in per_conversation)
    assert totals["cost"] == pytest.approx(sum(each["cost"] for each in per_conversation))
    [group] = told["groups"]
    assert (group["model"], group["prompt"], group["day"]) == (MODEL, totals["prompt"], None)
    [today] = get(proxy.url, "/context/usage?by=day").json["groups"]
    assert (today["prompt"], today["model"]) == (totals["prompt"], None)


def test_what_passes_as_it_came_adds_up_too(simulator: Simulator, steno: StartSteno) -> None:
    """In every format, in one piece and as a stream. Its conversation is not known."""
    proxy = steno(prices=PRICES, upstream={"formats": [written.name for written in ALL]})
    for written in ALL:
        for stream in (False, True):
            members: Any = {"stream": stream, "model": MODEL}
            if written is CHAT_COMPLETIONS and stream:
                members["stream_options"] = {"include_usage": True}
            twice = json.dumps(written.body(HELLO, **members)).encode()[:-1] + b',"model":"gpt-4o"}'
            answered = send(proxy.url, request_bytes(twice, target=written.path))
            assert (answered.status, answered.header("x-context-status")) == (200, "bypassed")
    totals = get(proxy.url, "/context/usage").json["totals"]
    assert totals["calls"] == 6
    names = (("prompt", ("prompt_tokens", "input_tokens")), ("completion", ("completion_tokens", "output_tokens")))
    for name, told in names:
        assert totals[name] == sum((record.usage or {}).get(each, 0) for record in simulator.chats for each in told) > 0
    assert totals["cost"] == pytest.approx((totals["prompt"] * 15 + totals["completion"] * 75) / 1e6)
    assert totals["saved"] == 0
    assert get(proxy.url, "/context/conversations").json["data"] == []


@pytest.mark.parametrize("written", ALL)
def test_a_stream_that_the_provider_cuts_is_recorded_without_usage(
    written: Written, simulator: Simulator, steno: StartSteno
) -> None:
    """What the beginning of a message says of its answer is no count."""
    simulator.next_chat(cut="reset", after=4, words=60)
    proxy = steno(prices=PRICES, upstream={"formats": [each.name for each in ALL]})
    raw = json.dumps(written.body(HELLO, stream=True, model=MODEL)).encode()
    send(proxy.url, request_bytes(raw, b"x-conversation-id: c-1", target=written.path))
    [record], totals = usage(proxy)["data"], usage(proxy)["totals"]
    assert (record["tokens"]["prompt"], record["tokens"]["completion"], record["cost"]) == (None, None, None)
    assert totals["unreported"] == 1


def test_a_report_is_of_the_callers_own_calls_in_the_period_asked_for(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    assert get(proxy.url, "/context/usage").json["totals"]["calls"] == 1
    for query in ("until=2025-01-01T00:00:00Z", "model=another", "since=2024-01-01&until=2024-12-01T00:00:00%2B02:00"):
        assert get(proxy.url, f"/context/usage?{query}").json["totals"]["calls"] == 0
    target = "/context/usage"
    told = send(proxy.url, request_bytes(None, b"authorization: Bearer sk-b", method="GET", target=target, usual=False))
    assert told.json["totals"]["calls"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z",
        "since=2020-01-01T00:00:00Z",
        "since=9999-12-31T23:59:59-12:00",
        "until=0001-01-01T00:00:00%2B14:00",
        "since=yesterday",
        "by=week",
    ],
)
def test_a_period_that_is_none_or_too_long_is_refused(steno: StartSteno, query: str) -> None:
    assert get(steno().url, f"/context/usage?{query}").status == 400


def test_a_refusal_of_a_period_names_the_times_that_were_sent(steno: StartSteno) -> None:
    url = steno().url
    for sent in (
        {"since": "9999-12-31T23:59:59+00:00"},
        {"until": "0001-01-01T00:00:00+00:00"},
        {"since": "9998-01-01T00:00:00+00:00", "until": "9999-01-01T00:00:00+00:00"},
    ):
        error = get(url, f"/context/usage?{urlencode(sent)}").json["error"]
        assert error["message"].endswith(f"not {', '.join(f'{name}={time}' for name, time in sent.items())}.")
        assert error["param"] == next(iter(sent))


def test_another_tenants_usage_is_not_found(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    target = "/context/conversations/c-1/usage"
    told = send(proxy.url, request_bytes(None, b"authorization: Bearer sk-b", method="GET", target=target, usual=False))
    assert (told.status, told.json["error"]["code"]) == (404, "conversation_not_found")
    assert get(proxy.url, target).status == 200


def test_a_deleted_conversation_leaves_no_records(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy, LONG)
    assert get(proxy.url, "/context/conversations/c-1", method="DELETE").status == 200
    assert get(proxy.url, "/context/conversations/c-1/usage").status == 404
    say(proxy)
    assert usage(proxy)["totals"]["calls"] == 1


def test_a_refused_call_is_recorded_and_saves_nothing(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(status=500)
    proxy = steno()
    post(proxy.url, chat(LONG), b"x-conversation-id: c-1")
    told = usage(proxy)
    assert (told["data"][0]["status"], told["data"][0]["rows"], told["data"][0]["tokens"]["saved"]) == (500, [], 0)
    assert (told["totals"]["calls"], told["totals"]["saved"], told["totals"]["unreported"]) == (1, 0, 0)
    assert told["turns"][0]["first_prompt"] is None


def test_a_request_that_is_sent_twice_has_two_records(simulator: Simulator, steno: StartSteno) -> None:
    """The refusal for its size, and the answer to the smaller prompt."""
    proxy = steno(models=[{"match": "*", "context_window": 32_000}])
    post(proxy.url, chat(turns(22)), b"x-conversation-id: c-1")
    told = usage(proxy, "order=asc")
    messages = [record for record in told["data"] if record["purpose"] == "message"]
    assert sorted(record["status"] for record in messages) == [200, 400]
    assert len({record["request_id"] for record in told["data"]}) == 1
    assert told["totals"]["requests"] == 1
    answered = next(record for record in messages if record["status"] == 200)
    assert answered["tokens"]["prompt"] == reported(simulator.chats, "prompt_tokens")
    assert told["turns"][0]["first_prompt"] == answered["tokens"]["prompt"]


def test_a_stream_that_begins_with_a_refusal_counts_as_refused(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    message = "This model's maximum context length is 8000 tokens. However, your messages resulted in 9100 tokens."
    error = {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    scripted.default = (stream_head() + chunked(b"data: " + json.dumps(error).encode() + b"\n\n") + LAST_CHUNK,)
    proxy = before_scripted(models=[{"match": "*", "context_window": 32_000}])
    post(proxy.url, chat(turns(22), stream=True), b"x-conversation-id: c-1")
    assert {record["status"] for record in usage(proxy)["data"] if record["purpose"] == "message"} == {400}


def test_an_answer_without_usage_is_recorded_without(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(omit_usage=True)
    proxy = steno()
    say(proxy)
    told = usage(proxy)
    assert [(record["status"], record["tokens"]["prompt"]) for record in told["data"]] == [(200, None)]
    assert told["totals"]["unreported"] == 1


def test_an_answer_that_is_no_json_is_recorded_without(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.default = (answer(b"not json at all"),)
    proxy = before_scripted()
    post(proxy.url, chat(HELLO), b"x-conversation-id: c-1")
    assert [(record["status"], record["tokens"]["prompt"]) for record in usage(proxy)["data"]] == [(200, None)]


def test_a_client_that_leaves_in_the_middle_leaves_a_record(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(chunk_delay=0.2, words=200)
    proxy = steno()
    with connected(proxy.url) as connection:
        connection.sendall(request_bytes(chat(HELLO, stream=True), b"x-conversation-id: c-1", target=CHAT))
        read_until(connection, b"data: ")
    assert simulator.wait_for(lambda records: any(record.disconnected_at for record in records))
    records: list[Any] = []
    for _ in range(100):
        told = get(proxy.url, "/context/conversations/c-1/usage")
        records = told.json["data"] if told.status == 200 else []
        if records:
            break
        time.sleep(0.05)
    assert [(record["status"], record["tokens"]["prompt"]) for record in records] == [(200, None)]


def test_a_call_that_was_never_answered_has_no_record(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.default = ("close",)
    proxy = before_scripted()
    assert post(proxy.url, chat(HELLO), b"x-conversation-id: c-1").status == 502
    assert usage(proxy)["data"] == []


@pytest.mark.slow
def test_a_ledger_that_does_not_work_fails_no_request(steno: StartSteno) -> None:
    proxy = steno()
    broken: Any = None
    proxy.services.ledger = broken
    assert say(proxy).usage.prompt_tokens > 0
    stream(proxy)
    assert usage(proxy)["data"] == []

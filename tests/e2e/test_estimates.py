"""Estimates: one number everywhere, learnt from what the provider reports, and never in a request's way."""

from __future__ import annotations

import json
import random
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from app.core.tokens.estimate import Count
from app.core.tokens.rules import rules_for
from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, long_history, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

LONG: Any = long_history()
LARGE = [{"match": "*", "context_window": 1_000_000}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_parcel",
            "description": "Where a parcel is.",
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
        },
    }
]


def estimated(steno: Steno, messages: list[Any], **members: Any) -> tuple[int, int]:
    """What Steno said a request would cost, and what the provider reported."""
    answered = post(steno.url, chat(messages, **members), timeout=60.0)
    assert answered.status == 200, answered.body
    return int(answered.header("x-context-tokens-before") or 0), json.loads(answered.body)["usage"]["prompt_tokens"]


def close(estimate: float, reported: int, percent: float) -> bool:
    return abs(estimate - reported) <= reported * percent / 100


# What is learnt


SIZES = {
    "all about 80,000": [196, 197, 198, 199, 200],
    "growing to 80,000": [5, 25, 60, 110, 160],
    "3,000 to 4,000": [8, 8, 9, 9, 10],
}
"""Turns of about 400 tokens."""


@pytest.mark.sampled(0.1)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("offset", [0, 400, 1_000])
@pytest.mark.parametrize("skew", [0.9, 1.0, 1.25, 1.6])
@pytest.mark.parametrize("model", [MODEL, "house-model"])
def test_after_five_requests_an_estimate_of_80_000_tokens_is_right_within_3_percent(
    model: str, skew: float, offset: int, sizes: list[int], simulator: Simulator, steno: StartSteno
) -> None:
    simulator.window = 1_000_000
    simulator.skew, simulator.offset = skew, offset
    proxy = steno(models=LARGE)
    for number in sizes:
        estimated(proxy, turns(number), model=model)
    estimate, reported = estimated(proxy, turns(200), model=model)
    assert close(estimate, reported, 3), f"{estimate} for {reported}"


def test_what_one_replica_learnt_the_next_one_knows(simulator: Simulator, steno: StartSteno, tmp_path: Any) -> None:
    simulator.window, simulator.skew = 1_000_000, 1.6
    storage = {"url": f"sqlite:///{tmp_path}/steno.db"}
    first = steno(models=LARGE, storage=storage)
    for number in (20, 40, 60):
        estimated(first, turns(number))
    first.stop()
    estimate, reported = estimated(steno(models=LARGE, storage=storage), turns(80))
    assert close(estimate, reported, 3)


def test_streams_that_pass_untouched_teach_what_they_report(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.skew = 1_000_000, 1.6
    proxy = steno(models=LARGE)
    for number in (20, 40, 60):
        post(proxy.url, chat(turns(number), stream=True, stream_options={"include_usage": True}))
    estimate, reported = estimated(proxy, turns(80))
    assert close(estimate, reported, 3)


def test_what_was_learnt_can_be_read(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.skew = 1_000_000, 1.25
    proxy = steno(models=LARGE)
    estimated(proxy, turns(100))
    estimated(proxy, turns(10), tools=TOOLS)
    listed = json.loads(get(proxy.url, "/context/calibration").body)["data"]
    by_tools = {entry["tools"]: entry for entry in listed}
    assert by_tools[False]["model"] == by_tools[True]["model"] == MODEL
    assert by_tools[False]["ratio"] == pytest.approx(1.25, abs=0.05)
    assert by_tools[False]["source"] == "learnt"
    assert by_tools[False]["samples"] == 1


def test_calibration_can_be_switched_off(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.skew = 1_000_000, 1.6
    proxy = steno(models=LARGE, calibration={"enabled": False})
    for number in (20, 40, 60):
        estimated(proxy, turns(number))
    estimate, reported = estimated(proxy, turns(80))
    assert close(estimate * 1.6, reported, 2)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 9, "cache_read_input_tokens": 3_000},
        {"prompt_tokens": "many"},
        [],
        7,
    ],
)
def test_a_usage_that_says_nothing_teaches_nothing_and_passes_as_it_came(
    usage: object, scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    completion = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
    proxy = before_scripted(models=LARGE)
    body = json.dumps({**completion, "usage": usage}).encode()
    scripted.then(answer(body))
    first = post(proxy.url, chat(LONG))
    assert json.loads(first.body)["usage"] == usage
    scripted.then(answer(body))
    again = post(proxy.url, chat(LONG))
    assert again.header("x-context-tokens-before") == first.header("x-context-tokens-before")


# Pictures

GIF = b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little") + bytes(40)
PHOTO = {"type": "image_url", "image_url": {"url": "data:image/gif;base64," + b64encode(GIF).decode()}}
SHOWN: Any = [{"role": "user", "content": [{"type": "text", "text": "What is in these?"}, PHOTO, PHOTO]}]


def costing(simulator: Simulator, tokens: int) -> None:
    simulator.next_chat(usage={"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1})


def test_pictures_teach_their_own_cost_once_texts_are_counted_exactly(simulator: Simulator, steno: StartSteno) -> None:
    proxy, by_rule = steno(models=LARGE), 0
    for _ in range(4):
        costing(simulator, 1_700)
        by_rule, _ = estimated(proxy, SHOWN)
    assert by_rule < 1_000, "the text beside them was not known yet"
    for number in (1, 2, 3):
        estimated(proxy, turns(number))
    for _ in range(4):
        costing(simulator, by_rule + 850)
        estimate, _ = estimated(proxy, SHOWN)
    estimate, _ = estimated(proxy, SHOWN)
    assert close(estimate, by_rule + 850, 4)
    text, reported = estimated(proxy, turns(3))
    assert text == reported
    entries = json.loads(get(proxy.url, "/context/calibration").body)["data"]
    assert {entry["formula"].rpartition("/")[2]: entry["samples"] for entry in entries} == {
        "o200k_base": 4,
        "pictures": 5,
    }


def test_media_of_unknown_cost_teach_nothing(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(models=LARGE)
    for number in (1, 2, 3):
        estimated(proxy, turns(number))
    remote = {"type": "image_url", "image_url": {"url": "https://harbour.example/gull.png"}}
    file = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0x", "filename": "a.pdf"}}
    before, _ = estimated(proxy, SHOWN)
    for part in (remote, file) * 3:
        costing(simulator, 9_000)
        estimated(proxy, [{"role": "user", "content": [{"type": "text", "text": "And this?"}, PHOTO, part]}])
    assert estimated(proxy, SHOWN)[0] == before


# Streams whose usage nobody asked for


@pytest.mark.slow
def test_the_usage_of_a_stream_is_asked_for_where_messages_are_replaced_and_taken_out_again(
    simulator: Simulator, steno: StartSteno
) -> None:
    """Once it was seen that none comes unasked: so nothing is taken out that would have come anyhow."""
    proxy = steno()
    post(proxy.url, chat(stream=True))
    answered = post(proxy.url, chat(LONG, stream=True))
    assert json.loads(simulator.chats[-1].body)["stream_options"] == {"include_usage": True}
    assert b"usage" not in answered.body
    assert b"[DONE]" in answered.body
    assert json.loads(get(proxy.url, "/context/calibration").body)["data"][0]["samples"] == 1


@pytest.mark.parametrize("asks", [True, False])
def test_what_a_client_asks_for_teaches_nothing_of_what_comes_unasked(
    simulator: Simulator, steno: StartSteno, asks: bool
) -> None:
    proxy = steno()
    asking = chat(stream=True, stream_options={"include_usage": asks})
    post(proxy.url, asking)
    post(proxy.url, chat(LONG, stream=True))
    assert b"stream_options" not in simulator.chats[-1].body, "nothing is known yet"
    post(proxy.url, chat(stream=True))
    post(proxy.url, asking)
    post(proxy.url, chat(LONG, stream=True))
    assert b"stream_options" in simulator.chats[-1].body


@pytest.mark.parametrize("end", ["close", "reset", chunked(b'data: {"error":{"message":"Broken."}}\n\n') + LAST_CHUNK])
def test_a_stream_that_breaks_off_teaches_nothing(
    scripted: ScriptedProvider, before_scripted: StartSteno, end: Any
) -> None:
    """Some providers tell a usage with every chunk: that of a cut answer is not the whole."""
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":%d}}\n\n'
    proxy = before_scripted(models=LARGE)
    scripted.then(stream_head() + chunked(piece % 4_000), 0.05, end)
    assert b'"error"' in post(proxy.url, chat(LONG, stream=True)).body
    assert json.loads(get(proxy.url, "/context/calibration").body)["data"] == []


def test_an_untouched_stream_is_not_asked_for_its_usage(simulator: Simulator, steno: StartSteno) -> None:
    post(steno().url, chat(stream=True))
    assert b"stream_options" not in simulator.chats[-1].body


def test_a_provider_that_refuses_the_question_is_asked_once(simulator: Simulator, steno: StartSteno) -> None:
    refusal = json.dumps({"error": {"message": "Unknown parameter: stream_options", "type": "invalid_request_error"}})
    simulator.when(lambda record: b"stream_options" in record.body, status=400, body=refusal.encode())
    proxy = steno()
    for _ in range(4):
        answered = post(proxy.url, chat(LONG, stream=True))
        assert answered.status == 200
        assert b"[DONE]" in answered.body
    asked = [b"stream_options" in record.body for record in simulator.chats]
    assert asked == [False, True, False, False, False]


NOTES = {"role": "assistant", "content": "The customer asked about many orders. " * 10}
SUMMARY = json.dumps({"choices": [{"message": NOTES, "finish_reason": "stop"}]}).encode()


def test_a_provider_that_tells_the_usage_unasked_is_not_asked_and_goes_on_telling_it(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}\n\n'
    stream = stream_head() + chunked(end + b"data: [DONE]\n\n") + LAST_CHUNK
    proxy = before_scripted()
    scripted.then(stream)
    post(proxy.url, chat(stream=True))
    scripted.then(answer(SUMMARY))
    scripted.then(stream)
    answered = post(proxy.url, chat(LONG, stream=True))
    assert b"compaction_completed" in answered.body
    assert b'"usage":{"prompt_tokens":9}' in answered.body
    assert b"stream_options" not in scripted.requests[-1].body


def test_a_plain_answer_says_nothing_about_the_usage_of_streams(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """Some gateways answer a short request for a stream in one piece."""
    silent = stream_head() + chunked(b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\n') + LAST_CHUNK
    proxy = before_scripted()
    scripted.then(silent).then(answer(b'{"choices":[],"usage":{"prompt_tokens":9}}'))
    for _ in range(2):
        post(proxy.url, chat(stream=True))
    scripted.then(answer(SUMMARY)).then(silent)
    post(proxy.url, chat(LONG, stream=True))
    assert b"include_usage" in scripted.requests[-1].body


# Off the request's path

SERVING_THREAD = "uvicorn"


class Watched:
    """A text counter that notes in which thread it is asked, and may hold the answer back."""

    def __init__(self, counter: Count, hold: Callable[[], object] = lambda: None) -> None:
        self.threads: set[str] = set()
        self._counter, self._hold = counter, hold

    def __call__(self, text: str) -> int:
        self.threads.add(threading.current_thread().name)
        self._hold()
        return self._counter(text)


def watch(steno: Steno, monkeypatch: pytest.MonkeyPatch, hold: Callable[[], object] = lambda: None) -> Watched:
    estimator = steno.services.estimator
    watched = Watched(estimator.counter(rules_for(MODEL)), hold)
    monkeypatch.setattr(estimator, "counter", lambda _: watched)
    return watched


@pytest.mark.slow
def test_a_request_that_cannot_reach_the_trigger_is_counted_while_the_provider_works(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.window = 128_000
    proxy = steno(models=[{"match": "*", "context_window": 128_000}])
    arrived = []
    watch(proxy, monkeypatch, lambda: arrived.append(simulator.wait_for(bool)))
    estimate, reported = estimated(proxy, turns(30))
    assert arrived
    assert all(arrived), "counted before the provider had the request"
    assert estimate == reported


@pytest.mark.parametrize("window", [128_000, 2_000_000], ids=["counted before", "counted meanwhile"])
def test_long_text_is_counted_in_another_thread_than_the_one_that_serves(
    window: int, simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.window = 2_000_000
    proxy = steno(models=[{"match": "*", "context_window": window}])
    watched = watch(proxy, monkeypatch)
    text = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=200_000))
    post(proxy.url, chat([{"role": "user", "content": text}]))
    assert watched.threads
    assert SERVING_THREAD not in watched.threads


def test_a_second_request_with_the_same_history_tokenises_nothing(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    first = post(proxy.url, chat(turns(8)))
    watched = watch(proxy, monkeypatch)
    again = post(proxy.url, chat(turns(8)))
    assert again.header("x-context-tokens-before") == first.header("x-context-tokens-before")
    assert not watched.threads


@pytest.mark.parametrize(
    "text",
    [
        " " * 1_000_000,
        "a" * 1_000_000,
        "<|endoftext|>" * 10,
        "\0" * 1_000,
        pytest.param("x" * 10_000_000, marks=pytest.mark.release),
    ],
    ids=["blanks", "letters", "special", "nul", "10 MB"],
)
def test_no_text_makes_a_request_fail(text: str, simulator: Simulator, steno: StartSteno) -> None:
    simulator.window = 10_000_000
    proxy = steno(models=[{"match": "*", "context_window": 10_000_000}])
    estimate, reported = estimated(proxy, [{"role": "user", "content": text}])
    assert close(estimate, reported, 1)


def test_half_a_surrogate_pair_is_for_the_provider_to_judge(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    scripted.then(answer(b"{}"))
    answered = post(before_scripted().url, chat([{"role": "user", "content": "\ud83d"}]))
    assert answered.status == 200
    assert answered.header("x-context-reason") is None
    assert scripted.requests[0].body == chat([{"role": "user", "content": "\ud83d"}])


# One number


@pytest.mark.parametrize("members", [{}, {"tools": TOOLS, "tool_choice": "auto"}], ids=["text", "tools"])
def test_every_place_tells_the_same_number(members: dict[str, Any], simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.skew, simulator.offset = 1_000_000, 1.3, 100
    proxy = steno(models=LARGE)
    for number in (20, 40, 60):
        estimated(proxy, turns(number), **members)
    body = chat(turns(80), conversation_id="one", **members)
    planned = json.loads(post(proxy.url, body, target="/context/plan").body)
    answered = post(proxy.url, body)
    told = json.loads(answered.body)["context"]["tokens"]
    header = int(answered.header("x-context-tokens-before") or 0)
    stored = json.loads(get(proxy.url, "/context/conversations/one").body)["tokens"]
    assert planned["context"]["tokens"] == told
    assert told["estimated"] == told["forwarded"] == header == stored["estimated"]
    parts = json.loads(get(proxy.url, "/context/conversations/one/coverage").body)["parts"]
    assert sum(part["tokens"] for part in parts) == told["estimated"]


def test_a_request_far_below_the_trigger_is_told_its_tokens_all_the_same(
    simulator: Simulator, steno: StartSteno
) -> None:
    estimate, reported = estimated(steno(), [{"role": "user", "content": "What is in my cart?"}])
    assert estimate == reported == simulator.chats[-1].prompt_tokens


def test_tools_that_may_not_be_called_are_not_counted_where_the_provider_does_not_charge_for_them(
    steno: StartSteno,
) -> None:
    proxy = steno()
    plain = estimated(proxy, turns(3), model="deepseek-chat")
    assert estimated(proxy, turns(3), model="deepseek-chat", tools=TOOLS, tool_choice="none") == plain
    charged, _ = estimated(proxy, turns(3), model="deepseek-chat", tools=TOOLS)
    assert charged > plain[0] + 280

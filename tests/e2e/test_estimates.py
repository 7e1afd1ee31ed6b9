"""Estimates: one number everywhere, learnt from what the provider reports, and never in a request's way."""

from __future__ import annotations

import json
import random
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from app.tokens.estimate import Count
from app.tokens.rules import rules_for
from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno

LARGE = [{"match": "*", "context_window": 1_000_000}]


def estimated(steno: Steno, messages: list[Any], **members: Any) -> tuple[int, int]:
    """What Steno said a request would cost, and what the provider reported."""
    answered = post(steno.url, chat(messages, **members), timeout=60.0)
    assert answered.status == 200, answered.body
    return int(answered.header("x-context-tokens-before") or 0), json.loads(answered.body)["usage"]["prompt_tokens"]


def close(estimate: float, reported: int, percent: float) -> bool:
    return abs(estimate - reported) <= reported * percent / 100


# What is learnt


def test_what_one_replica_learnt_the_next_one_knows(simulator: Simulator, steno: StartSteno, tmp_path: Any) -> None:
    simulator.window, simulator.skew = 1_000_000, 1.6
    storage = {"url": f"sqlite:///{tmp_path}/steno.db"}
    first = steno(models=LARGE, storage=storage)
    for number in (20, 40, 60):
        estimated(first, turns(number))
    first.stop()
    estimate, reported = estimated(steno(models=LARGE, storage=storage), turns(80))
    assert close(estimate, reported, 3)


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


# Off the request's path

SERVING_THREAD = "uvicorn"


class Watched:
    """A count of texts that notes in which thread it is asked, and may hold the answer back."""

    def __init__(self, count: Count, hold: Callable[[], object]) -> None:
        self.threads: set[str] = set()
        self._count, self._hold = count, hold

    def __call__(self, text: str) -> int:
        self.threads.add(threading.current_thread().name)
        self._hold()
        return self._count(text)


def watch(steno: Steno, monkeypatch: pytest.MonkeyPatch, hold: Callable[[], object] = lambda: None) -> Watched:
    counter = steno.services.estimator.counter(rules_for(MODEL).encoding)
    watched = Watched(counter._count, hold)
    monkeypatch.setattr(counter, "_count", watched)
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

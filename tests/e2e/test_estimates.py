"""Estimates: one number everywhere, learnt from what the provider reports, and never in a request's way."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.tokens.estimate import Count
from app.tokens.rules import rules_for
from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno, Steno


def estimated(steno: Steno, messages: list[Any], **members: Any) -> tuple[int, int]:
    """What Steno said a request would cost, and what the provider reported."""
    answered = post(steno.url, chat(messages, **members), timeout=60.0)
    assert answered.status == 200, answered.body
    return int(answered.header("x-context-tokens-before") or 0), json.loads(answered.body)["usage"]["prompt_tokens"]


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

"""Estimates: one number everywhere, learnt from what the provider reports, and never in a request's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.tokens.rules import rules_for
from app.tokens.tokenizer import Counter
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


def watch(steno: Steno, monkeypatch: pytest.MonkeyPatch, hold: Callable[[], object] = lambda: None) -> set[str]:
    """Names of the threads in which texts are counted. `hold` may hold each count back."""
    threads: set[str] = set()

    class Watched(Counter):
        def __call__(self, text: str) -> int:
            threads.add(threading.current_thread().name)
            hold()
            return super().__call__(text)

    monkeypatch.setattr(steno.services.estimator.counter(rules_for(MODEL).encoding), "__class__", Watched)
    return threads


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

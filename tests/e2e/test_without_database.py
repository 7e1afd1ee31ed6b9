"""What a request gets while the database is away: summaries this process remembers; else it is trimmed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.store import StoreUnavailable
from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import Answer, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.store_calls import intercept

TOO_LONG = turns(30)
"""About 12,600 tokens, in a window of 8,000."""


async def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


def take_away(steno: Steno, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
    for name in calls or ("read_prefix", "keep_mask", "take_lease", "await_lease", "keep_chunks"):
        intercept(monkeypatch, steno.services.store, name, lambda _: away)


def context(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return json.loads(answered.body)["context"]


def test_what_another_process_deleted_is_not_remembered_once_the_store_was_asked(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    proxy, other = (steno(storage={"url": sqlite_url}) for _ in range(2))
    body = chat(TOO_LONG, conversation_id="one")
    assert context(post(proxy.url, body))["actions"] == ["summarized"]
    target = "/context/conversations/one"
    assert send(proxy.url, request_bytes(None, method="GET", target=target)).status == 200, "it is stored"
    assert send(other.url, request_bytes(None, method="DELETE", target=target)).status == 200
    take_away(proxy, monkeypatch, "take_lease")
    for _ in range(2):
        assert post(proxy.url, body).header("x-context-status") == "trimmed"
        take_away(proxy, monkeypatch)


def test_summaries_that_were_read_before_are_used(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = steno()
    context(post(proxy.url, chat(long_history())))
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history())))
    assert (told["actions"], told["reason"]) == (["summarized", "user_words"], "storage")
    assert len(simulator.summaries) == 1
    first, second = simulator.chats
    assert first.payload == second.payload


def test_another_tenant_gets_nothing_of_what_is_remembered(steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = steno()
    context(post(proxy.url, chat(long_history())))
    take_away(proxy, monkeypatch)
    told = context(post(proxy.url, chat(long_history()), b"authorization: Bearer sk-other"))
    assert told["actions"] == []

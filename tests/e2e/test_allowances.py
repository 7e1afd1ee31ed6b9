"""Limits of a tenant: told in each format's own words, counted by all processes, and nothing is lost by them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from lab.simulator import Fault, Simulator
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_quotas import as_other, long, outcome

FORMATS = ["chat_completions", "messages", "responses"]
PRICES = [{"match": "*", "prompt": 1_000_000, "completion": 0}]
"""One currency unit for each token of a prompt."""
SAID: Any = [{"role": "user", "content": "Hello."}]

Ask = Callable[[Steno], Any]


def chat_completions(steno: Steno) -> Any:
    return steno.sdk().chat.completions.create(model="gpt-x", messages=SAID)


def responses(steno: Steno) -> Any:
    return steno.sdk().responses.create(model="gpt-x", input="Hello.")


def messages(steno: Steno) -> Any:
    with anthropic.Anthropic(base_url=steno.url, api_key="sk-test", max_retries=0) as client:
        return client.messages.create(model="claude-x", max_tokens=100, messages=SAID)


ASKS = pytest.mark.parametrize("ask", [chat_completions, messages, responses], ids=FORMATS)


Refusal = openai.APIStatusError | anthropic.APIStatusError


def refused(ask: Ask, steno: Steno) -> Refusal:
    """The refusal that comes once what was used is known."""
    found: list[Refusal] = []

    def is_refused() -> bool:
        try:
            ask(steno)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            found.append(error)
        return bool(found)

    until(is_refused)
    return found[0]


def started(steno: StartSteno, **sections: Any) -> Steno:
    return steno(upstream={"formats": FORMATS}, **sections)


@ASKS
def test_too_many_requests_are_refused_as_a_rate_limit(ask: Ask, steno: StartSteno) -> None:
    running = started(steno, limits={"requests_per_minute": 2})
    error = refused(ask, running)
    assert isinstance(error, openai.RateLimitError | anthropic.RateLimitError)
    assert 1 <= int(error.response.headers["retry-after"]) <= 60
    told = error.response.json()["error"]
    assert (told["type"], told["code"]) == ("rate_limit_error", "limit_reached")
    assert "limits.requests_per_minute" in told["message"]


@ASKS
def test_tokens_that_a_provider_reported_are_counted_in_each_format(ask: Ask, steno: StartSteno) -> None:
    error = refused(ask, started(steno, limits={"tokens_per_day": 1}))
    assert error.status_code == 429
    assert "1 tokens a day" in error.response.json()["error"]["message"]


@ASKS
def test_whose_money_is_spent_gets_402_and_is_not_retried(ask: Ask, steno: StartSteno) -> None:
    error = refused(ask, started(steno, limits={"money_per_day": 0.5}, prices=PRICES))
    assert error.status_code == 402
    assert error.response.headers["x-should-retry"] == "false"
    assert error.response.json()["error"]["type"] == "billing_error"


def test_a_stream_that_tells_no_usage_is_counted_as_it_was_estimated(simulator: Simulator, steno: StartSteno) -> None:
    simulator.when(lambda record: record.kind == "chat", omit_usage=True)

    def streamed(running: Steno) -> None:
        list(running.sdk().chat.completions.create(model="gpt-x", messages=SAID, stream=True))

    assert refused(streamed, started(steno, limits={"tokens_per_day": 1})).status_code == 429


def test_other_paths_of_the_provider_and_compactions_on_demand_are_requests_too(steno: StartSteno) -> None:
    url = started(steno, limits={"requests_per_minute": 2}).url
    until(lambda: get(url, "/v1/models").status == 429)
    assert post(url, chat(turns(2)), target="/context/compact").status == 429
    assert get(url, "/context/conversations").status == 200
    assert as_other(url, chat(turns(2))).status == 200


def test_a_conversation_that_was_refused_goes_on_with_its_summaries(
    simulator: Simulator, steno: StartSteno, sqlite_url: str
) -> None:
    storage = {"url": sqlite_url}
    limited = started(steno, storage=storage, limits={"tokens_per_day": 1})
    assert outcome(post(limited.url, chat(long(1), conversation_id="c1"))) == ("summarized", None)
    until(lambda: post(limited.url, chat(long(1), conversation_id="c1")).status == 429)
    made = len(simulator.summaries)
    limited.stop()
    again = started(steno, storage=storage)
    assert outcome(post(again.url, chat(long(1), conversation_id="c1"))) == ("summarized", None)
    assert len(simulator.summaries) == made


def test_what_one_process_lets_in_counts_for_all_others(steno: StartSteno, shared_url: str) -> None:
    """Each knows within a second, so that all together let in a few more than they may."""
    sections = {"storage": {"url": shared_url}, "limits": {"requests_per_minute": 30}}
    running = [started(steno, **sections) for _ in range(3)]
    answered = 0
    for _ in range(40):
        answered += post(running[0].url, chat(turns(1))).status == 200
    assert answered >= 30  # A minute may have ended meanwhile.
    for other in running[1:]:
        until(lambda: post(other.url, chat(turns(1))).status == 429)  # noqa: B023 - called at once


def test_money_is_one_sum_of_all_processes(steno: StartSteno, shared_url: str) -> None:
    sections: Any = {"storage": {"url": shared_url}, "limits": {"money_per_day": 0.5}, "prices": PRICES}
    one, other = (started(steno, **sections) for _ in range(2))
    assert post(one.url, chat(turns(1))).status == 200
    until(lambda: post(other.url, chat(turns(1))).status == 402)
    assert as_other(other.url, chat(turns(1))).status == 200


def test_without_the_database_each_process_counts_alone(steno: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    running = started(steno, limits={"tokens_per_day": 1})
    monkeypatch.setattr(running.services.store.readiness, "reason", "away")
    assert post(running.url, chat(turns(1))).status == 200
    until(lambda: post(running.url, chat(turns(1))).status == 429)


def test_a_tenant_compacts_so_many_conversations_at_once_at_all_replicas(
    simulator: Simulator, steno: StartSteno, shared_url: str
) -> None:
    sections: Any = {"storage": {"url": shared_url}, "limits": {"compactions_per_tenant": 1}}
    one, other = (started(steno, **sections) for _ in range(2))
    simulator.summary_default = Fault(delay=2.0)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(post, one.url, chat(long(1), conversation_id="c1"), timeout=60)
        until(lambda: simulator.summaries)
        second = post(other.url, chat(long(2), conversation_id="c2"), timeout=60)
        assert outcome(first.result()) == ("summarized", None)
    assert outcome(second) == ("full", "too_many_compactions")

"""The cost gate: a warm prompt is left alone while that is cheaper and there is room; a summary may ride the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.compaction.budget import COST_GATE_SHARE
from app.http.loopback import RunningServer
from lab.simulator import Record, Simulator
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import NOTHING_RECALLED, StartSteno, Steno
from tests.e2e.test_masks import TOOL, steps

DEAR: Any = [{"match": "*", "prompt": 10, "completion": 40, "cached": 1}]
"""As many models of today: what the cache has costs a tenth."""
QUOTED: Any = {"model": "another"}
"""The dearer style: what it costs is read anew."""
LIMIT = 7_600
"""Of a window of 8,000: 5 % are the answer's."""
DUE, FORCED = 13, 17
"""Turns of about 420 tokens that are over the trigger, and over what a request may have without a compaction."""


def ask(proxy: Steno, number: int) -> Answer:
    return post(proxy.url, chat(turns(number)), b"x-conversation-id: c-1")


def talk(proxy: Steno, last: int, first: int = 11) -> Answer:
    """A conversation as it grows, turn by turn; the last answer."""
    return [ask(proxy, number) for number in range(first, last + 1)][-1]


def context(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return json.loads(answered.body)["context"]


def reported(record: Record) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them came from the provider's cache."""
    assert record.usage is not None
    return record.usage["prompt_tokens"], record.usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    "settings",
    [
        {"prices": DEAR},
        {"prices": [{**DEAR[0], "match": "another"}]},
        {"prices": None},
    ],
    ids=["prices that are set", "no price of the model", "no prices"],
)
def test_a_compaction_of_a_warm_prompt_is_put_off_while_there_is_room(
    simulator: Simulator, steno: StartSteno, settings: Any
) -> None:
    """Where nobody knows a price a common ratio decides: a cached token costs a tenth, one of an answer five times."""
    proxy = steno(**settings, summary=QUOTED, compaction={"background": {"enabled": False}})
    for number in range(11, FORCED):
        answered = ask(proxy, number)
        told = context(answered)
        assert (told["status"], told["actions"]) == ("full", [])
        assert answered.header("x-context-reason") == ("put_off_for_cost" if number >= DUE else None)
        assert json.loads(simulator.chats[-1].body) == json.loads(chat(turns(number)))
    assert not simulator.summaries
    assert max(reported(record)[0] for record in simulator.chats) <= COST_GATE_SHARE * LIMIT
    assert context(ask(proxy, FORCED))["status"] == "summarized"
    assert simulator.summaries


def test_a_prompt_that_is_not_warm_is_compacted_when_it_is_due(simulator: Simulator, steno: StartSteno) -> None:
    assert context(ask(steno(prices=DEAR), DUE))["status"] == "summarized"
    assert len(simulator.summaries) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"compaction": {"preset": "rolling"}},
        {"prices": [{"match": "*", "prompt": 10, "completion": 40}]},
        {"prices": [{"match": "*", "prompt": 10, "completion": 40, "cached": 9}]},
    ],
    ids=[
        "a system that others know",
        "no price of the cache",
        "a cache that hardly pays",
    ],
)
def test_a_warm_prompt_is_compacted_when_it_is_due(simulator: Simulator, steno: StartSteno, settings: Any) -> None:
    proxy = steno(**{"prices": DEAR, "summary": QUOTED, **settings})
    assert context(talk(proxy, DUE))["status"] == "summarized"
    assert len(simulator.summaries) == 1


def test_a_request_that_says_when_it_is_due_is_compacted_then(steno: StartSteno) -> None:
    proxy = steno(prices=DEAR)
    talk(proxy, DUE - 1)
    own = [{"type": "compaction", "compact_threshold": 4_000}]
    body = chat(turns(DUE), context_management=own)
    assert context(post(proxy.url, body, b"x-conversation-id: c-1"))["status"] == "summarized"


def test_a_summariser_that_costs_more_than_it_spares_is_put_off_also_where_nothing_is_warm(
    simulator: Simulator, steno: StartSteno
) -> None:
    prices = [{"match": "best", "prompt": 500, "completion": 2_000}, *DEAR]
    answered = ask(steno(prices=prices, summary={"model": "best"}), DUE)
    assert answered.header("x-context-reason") == "put_off_for_cost"
    assert not simulator.summaries


def test_list_prices_do_where_the_operator_sets_none(steno: StartSteno) -> None:
    """What the cache has costs a tenth of gpt-5's prompts, and half of gpt-4o's."""
    proxy = steno(summary=QUOTED)
    for model, status in (("gpt-5", "full"), ("gpt-4o", "summarized")):
        bodies = (chat(turns(number), model=model) for number in range(11, DUE + 1))
        answers = [post(proxy.url, body, f"x-conversation-id: {model}".encode()) for body in bodies]
        assert context(answers[-1])["status"] == status


def test_a_dry_run_puts_off_what_a_request_would(steno: StartSteno) -> None:
    proxy = steno(prices=DEAR, summary=QUOTED)
    talk(proxy, DUE)
    body = chat(turns(DUE + 1), conversation_id="c-1")
    planned = json.loads(post(proxy.url, body, target="/context/plan").body)
    assert planned["summaries_to_make"] == 0
    assert planned["context"]["reason"] == "put_off_for_cost"
    forced = json.loads(post(proxy.url, chat(turns(FORCED), conversation_id="c-1"), target="/context/plan").body)
    assert forced["summaries_to_make"]


# Masks


def agent(number: int) -> bytes:
    return chat([*steps(number), {"role": "user", "content": f"And report {number}?"}], tools=[TOOL])


def work(proxy: Steno, last: int) -> dict[int, Answer]:
    """An agent's conversation as it grows, result by result: over the trigger with 7 of them, too large with 9."""
    return {number: post(proxy.url, agent(number), b"x-conversation-id: c-1") for number in range(5, last + 1)}


def test_a_mask_that_would_break_a_warm_prompt_for_too_little_is_put_off_while_there_is_room(
    simulator: Simulator, steno: StartSteno
) -> None:
    told = work(steno(prices=DEAR, summary=QUOTED, compaction=NOTHING_RECALLED), 9)
    assert [context(answered)["actions"] for answered in told.values()] == [[], [], [], [], ["masked"]]
    assert {number for number, answered in told.items() if answered.header("x-context-reason")} == {7, 8}
    assert not simulator.summaries


@pytest.mark.parametrize("cached", [3, 10])
def test_a_mask_that_saves_what_it_costs_is_made_when_it_is_due(steno: StartSteno, cached: int) -> None:
    told = work(steno(prices=[{**DEAR[0], "cached": cached}], compaction=NOTHING_RECALLED), 7)
    assert context(told[7])["actions"] == ["masked"]


# The conversation's own cached prompt


def test_a_summary_in_the_style_of_a_prefix_rides_the_cached_prompt(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    assert context(talk(proxy, DUE))["status"] == "summarized"
    [summary] = simulator.summaries
    prompt, cached = reported(summary)
    assert cached > 0.8 * prompt
    told = get(proxy.url, "/context/usage").json["totals"]["summary"]
    assert (told["prompt"], told["cached"]) == (prompt, cached)
    assert told["cached_share"] == round(cached / prompt, 4)


@pytest.mark.parametrize("settings", [{"summary": {"model": "another"}}, {}], ids=["another model", "not warm"])
def test_by_itself_it_is_a_transcript_for_whoever_has_nothing_in_the_cache(
    simulator: Simulator, steno: StartSteno, settings: Any
) -> None:
    proxy = steno(**settings, compaction={"background": {"enabled": False}})
    assert context(talk(proxy, FORCED, 11 if settings else FORCED))["status"] == "summarized"
    assert all(len(summary.messages or ()) <= 2 for summary in simulator.summaries)


def test_tools_do_not_keep_it_from_that(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    for number in range(11, DUE + 1):
        post(proxy.url, chat(turns(number), tools=[TOOL], tool_choice="auto"), b"x-conversation-id: c-1")
    [summary] = simulator.summaries
    prompt, cached = reported(summary)
    assert cached > 0.8 * prompt


def test_it_is_led_to_the_cache_as_the_conversation_is_and_no_other_provider_is(
    simulator: Simulator, steno: StartSteno, provider: RunningServer
) -> None:
    """OpenAI and Mistral choose the machine by the client's `prompt_cache_key`; others may refuse it."""
    body = chat(turns(DUE), prompt_cache_key="key-1")
    post(steno().url, body)
    other = {"base_url": f"{provider.url}/v1", "models": ["nothing"], "discover_windows": False}
    post(steno(summary={"upstream": "other"}, upstreams={"other": other}).url, body)
    own, elsewhere = simulator.summaries
    assert own.payload["prompt_cache_key"] == "key-1"
    assert "prompt_cache_key" not in elsewhere.payload


def test_what_is_put_off_is_not_made_in_the_background_either(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the history does not grow beyond the limit before a summary could be made."""
    monkeypatch.setattr("app.compaction.background.LIKELY_TOKENS_PER_HOUR", 0)
    monkeypatch.setattr("app.compaction.background.FIRST_SUMMARY_SECONDS", 0.001)
    proxy = steno(prices=DEAR, summary=QUOTED)
    for number in range(11, FORCED - 2):
        assert context(ask(proxy, number))["status"] == "full"
        until(lambda: not len(proxy.services.background._room))
    assert not simulator.summaries


def test_what_may_be_needed_soon_is_made_in_the_background_before_a_request_has_to_wait(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.compaction.background.LIKELY_TOKENS_PER_HOUR", 0)
    proxy = steno(prices=DEAR, summary=QUOTED)
    talk(proxy, FORCED - 1)
    until(lambda: simulator.summaries)

"""The cost gate: a warm prompt is left alone while that is cheaper and there is room; a summary may ride the cache."""

from __future__ import annotations

import json
from typing import Any

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno, Steno

QUOTED: Any = {"model": "another"}
"""The dearer style: what it costs is read anew."""
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


def test_list_prices_do_where_the_operator_sets_none(steno: StartSteno) -> None:
    """What the cache has costs a tenth of gpt-5's prompts, and half of gpt-4o's."""
    proxy = steno(summary=QUOTED)
    for model, status in (("gpt-5", "full"), ("gpt-4o", "summarized")):
        bodies = (chat(turns(number), model=model) for number in range(11, DUE + 1))
        answers = [post(proxy.url, body, f"x-conversation-id: {model}".encode()) for body in bodies]
        assert context(answers[-1])["status"] == status


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

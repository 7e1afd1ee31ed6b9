"""The simulated window: what a prompt costs, what is refused for its size, and what counts as cached."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lab.simulator.chat_completions.format import ChatCompletions
from lab.simulator.counting import Block, BreakpointCache, Cached
from lab.simulator.format import Accepted
from lab.simulator.log import Record
from lab.simulator.refusals import Refused
from lab.simulator.rules import Rules

RULES = Rules(100)


def one_each(text: str) -> int:
    """A tokenizer whose tokens are words."""
    return len(text.split())


def user(words: int) -> dict[str, Any]:
    return {"role": "user", "content": "word " * words}


def read(reader: ChatCompletions, messages: list[Any], **arguments: Any) -> Accepted:
    body = msgspec.json.encode({"model": "m", "messages": messages, **arguments})
    return reader.read(Record(1, 0.0, "POST", reader.path, (), body, "chat"), RULES, lambda _: None)


def refusal(messages: list[Any], **arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        read(ChatCompletions(one_each), messages, **arguments)
    return caught.value


def test_prompt_that_fills_the_window_is_accepted_and_one_more_word_is_not() -> None:
    assert read(ChatCompletions(one_each), [user(93)]).prompt_tokens == 100
    refused = refusal([user(94)])
    assert refused.body == {
        "error": {
            "message": "This model's maximum context length is 100 tokens. However, your messages resulted in "
            "101 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


def test_requested_output_counts_against_the_window() -> None:
    assert read(ChatCompletions(one_each), [user(43)], max_tokens=50).prompt_tokens == 50
    assert refusal([user(43)], max_completion_tokens=51).message == (
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens (50 in the messages, "
        "51 in the completion). Please reduce the length of the messages or completion."
    )


def blocks(*texts: str) -> list[Block]:
    """Blocks of one token each; `*` behind a text marks it."""
    return [Block(text.rstrip("*").encode(), 1, text.endswith("*")) for text in texts]


def test_an_entry_is_found_where_a_mark_stood_and_as_many_blocks_back_as_are_looked_at() -> None:
    cache = BreakpointCache(lookback=3)
    assert cache.look_up(blocks("a", "b*", "c")) == Cached(read=0, written=2)
    assert cache.look_up(blocks("a", "b", "c*")) == Cached(read=2, written=1), "two blocks back"
    assert cache.look_up(blocks("a", "x*", "c")) == Cached(read=0, written=2), "no part of an entry is found"
    assert cache.look_up(blocks("a", "b", "c", "d", "e", "f*")) == Cached(read=0, written=6), "three blocks back"
    assert cache.look_up(blocks("a", "b", "c")) == Cached(read=0, written=0), "nothing is marked"

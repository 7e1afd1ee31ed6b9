"""What a provider says a prompt cost, in the shapes that are seen."""

import pytest

from app.wire.usage import prompt_tokens


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 120, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 100}},
        {"prompt_tokens": 120, "prompt_cache_hit_tokens": 100, "prompt_cache_miss_tokens": 20},
        {"prompt_tokens": 120, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None},
        {"input_tokens": 120, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 100}},
        {"input_tokens": 20, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 30},
    ],
    ids=["openai", "deepseek", "no cache used", "responses", "anthropic"],
)
def test_cached_tokens_are_part_of_the_prompt(usage: object) -> None:
    assert prompt_tokens(usage) == 120


def test_a_prompt_that_came_from_the_cache_alone_still_cost_its_tokens() -> None:
    assert prompt_tokens({"input_tokens": 0, "cache_read_input_tokens": 70}) == 70


def test_the_largest_prompt_that_is_believed_has_a_hundred_million_tokens() -> None:
    assert prompt_tokens({"prompt_tokens": 100_000_000}) == 100_000_000


@pytest.mark.parametrize(
    "usage",
    [
        None,
        7,
        [],
        {},
        {"prompt_tokens": 0},
        {"prompt_tokens": -3},
        {"prompt_tokens": "120"},
        {"prompt_tokens": True},
        {"prompt_tokens": None, "input_tokens": 3},
        {"prompt_tokens": 20, "cache_read_input_tokens": 100},
        {"prompt_tokens": 10**30},
        {"prompt_tokens": 100_000_001},
        {"input_tokens": 2**63},
        {"input_tokens": 20, "cache_read_input_tokens": 10**30},
        {"input_tokens": 60_000_000, "cache_read_input_tokens": 60_000_000},
    ],
)
def test_a_usage_that_says_nothing_clear_is_not_used(usage: object) -> None:
    assert prompt_tokens(usage) is None

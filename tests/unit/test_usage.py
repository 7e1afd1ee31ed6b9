"""What a provider says a call took, in the shapes that are seen."""

import json

import pytest

from app.formats.chat_completions import CompletionEditor
from app.formats.spec import says_window_full
from app.formats.usage import prompt_tokens, read_usage, usage_of
from app.tokens.costs import Tokens


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
        {"input_tokens": 60_000_000, "cache_read_input_tokens": 60_000_000},
    ],
)
def test_a_usage_that_says_nothing_clear_is_not_used(usage: object) -> None:
    assert prompt_tokens(usage) is None


@pytest.mark.parametrize(
    "usage",
    [
        None,
        7,
        {},
        {"prompt_tokens": -3, "completion_tokens": "3"},
        {"prompt_tokens": 10**30, "completion_tokens": 100_000_001},
        {"prompt_tokens": 90_000_000, "cache_read_input_tokens": 95_000_000},
        {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": [7]},
    ],
)
def test_the_ledger_believes_nothing_that_cannot_be(usage: object) -> None:
    assert read_usage(usage) == Tokens()


def test_more_written_tokens_than_the_cache_left_of_the_prompt_are_none() -> None:
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 70, "cache_write_tokens": 31}}
    assert read_usage(usage) == Tokens(100, cached=70)
    assert read_usage({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}) == Tokens(5)


@pytest.mark.parametrize(
    "finish", ["model_context_window_exceeded", "contextWindowExceeded", "context_limit", "model_length"]
)
def test_an_end_that_the_window_brought_is_told_from_others(finish: str) -> None:
    assert says_window_full(finish)
    assert window_was_full(json.dumps([{"finish_reason": "stop"}, {"finish_reason": finish}]).encode())


@pytest.mark.parametrize(
    "finish",
    [None, "length", "max_tokens", "output_token_limit_exceeded", 7],
)
def test_every_other_end_says_nothing_of_the_window(finish: object) -> None:
    assert not says_window_full(finish)
    assert not window_was_full(
        json.dumps([{"finish_reason": finish, "text": '"finish_reason":"context_limit"'}]).encode()
    )


@pytest.mark.parametrize(
    "choices", [b"null", b'""', b"7", b"{}", b"[]", b"[null]", b'["context_length_exceeded"]', b"[{}]"]
)
def test_what_are_no_choices_ended_for_no_reason(choices: bytes) -> None:
    assert not window_was_full(choices)


def window_was_full(choices: bytes) -> bool:
    editor = CompletionEditor()
    editor.whole(b'{"choices":%b}' % choices)
    return editor.window_full


def test_a_long_reason_to_finish_is_none() -> None:
    """Each `context` in it would be a place to begin."""
    assert not says_window_full("context" * 1_000_000)
    assert not window_was_full(b'[{"finish_reason":"' + b"context" * 1_000_000 + b'"}]')


def test_where_the_provider_compacted_all_its_calls_are_paid_and_nothing_is_learnt() -> None:
    """What it tells of the whole is the last call's, which had another prompt than ours."""
    said = {
        "input_tokens": 20,
        "cache_read_input_tokens": 200,
        "output_tokens": 9,
        "iterations": [
            {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 50_000, "output_tokens": 700},
            {"type": "message", "input_tokens": 20, "cache_read_input_tokens": 200, "output_tokens": 9},
            "nothing",
        ],
    }
    usage = usage_of(said)
    assert usage is not None
    assert usage.prompt is None
    assert usage.tokens == Tokens(prompt=50_320, completion=709, cached=50_200)


@pytest.mark.parametrize("iterations", [None, 7, [], [{"type": "message", "input_tokens": 20}]])
def test_without_a_compaction_an_answer_is_learnt_from_as_told(iterations: object) -> None:
    usage = usage_of({"input_tokens": 20, "output_tokens": 9, "iterations": iterations})
    assert usage is not None
    assert usage.prompt == usage.tokens.prompt == 20

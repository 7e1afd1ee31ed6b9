"""Rules: a model's name says how its prompts are counted."""

import pytest
from msgspec.structs import replace

from app.tokens.pictures import Patches, Tiles
from app.tokens.rules import (
    CLAUDE,
    GPT_4,
    GPT_4O,
    GPT_5,
    GPT_5_2,
    GPT_5_4,
    GPT_5_5,
    GPT_5_6,
    GUIDED,
    HIDING,
    O_SERIES,
    SMALL,
    CountingRules,
    rules_for,
)


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        ("gpt-4", GPT_4),
        ("gpt-4-0613", GPT_4),
        ("gpt-4-turbo-2024-04-09", GPT_4),
        ("openai/gpt-3.5-turbo", GPT_4),
        ("gpt-35-turbo", GPT_4),
        ("ft:gpt-3.5-turbo-0125:org::id", GPT_4),
        ("gpt-4o", GPT_4O),
        ("gpt-4o-2024-08-06", GPT_4O),
        ("gpt-4.1", GPT_4O),
        ("gpt-4.5-preview", GPT_4O),
        ("chatgpt-4o-latest", GPT_4O),
        ("o1", O_SERIES),
        ("azure/o3-mini-2025-01-31", O_SERIES),
        ("gpt-5", GPT_5),
        ("gpt-5-2025-08-07", GPT_5),
        ("gpt-5-chat-latest", GPT_5),
        ("gpt-5-codex", GPT_5),
        ("gpt-5.1-2025-11-13", GPT_5),
        ("gpt-5.1-codex-max", GPT_5),
        ("gpt-5.2-2025-12-11", GPT_5_2),
        ("gpt-5.3-codex", GPT_5_2),
        ("gpt-5.4-mini-2026-03-17", GPT_5_2),
        ("gpt-5.4-nano", GPT_5_2),
        ("gpt-5.4-2026-03-05", GPT_5_4),
        ("gpt-5.5-2026-08-01", GPT_5_5),
        ("openai/gpt-5.5", replace(GPT_5_5, tools_alone=3)),
        ("gpt-5.6-sol", GPT_5_6),
        ("gpt-5.10", GPT_5_6),
        ("gpt-6", GPT_5_6),
        ("gpt-oss:20b", GPT_4O),
        ("anthropic/claude-sonnet-4", CLAUDE),
        ("us.anthropic.claude-opus-4-20250514-v1:0", CLAUDE),
        ("llama-3.3-70b", GUIDED),
        ("Qwen/Qwen3-0.6B", GUIDED),
        ("deepseek-ai/DeepSeek-R1", HIDING),
        ("deepseek-r1-distill-llama-70b", HIDING),
        ("mistral-large-latest", HIDING),
        ("grok-4", GPT_4O),
        ("", GPT_4O),
    ],
)
def test_a_models_family_is_found_behind_routers_dates_and_fine_tunes(model: str, rules: CountingRules) -> None:
    assert rules_for(model) == rules


@pytest.mark.parametrize(
    ("model", "pictures"),
    [
        ("gpt-4o-mini-2024-07-18", Tiles(2_833, 5_667)),
        ("ft:gpt-4o-mini:org::id", Tiles(2_833, 5_667)),
        ("gpt-4.1-mini", Patches(162, 2, SMALL)),
        ("gpt-4.1-nano", Patches(246, 2, SMALL)),
        ("o4-mini", Patches(172, 1, SMALL)),
        ("gpt-5-mini-2025-08-07", Patches(120, 1, SMALL)),
        ("gpt-5.1-codex-mini", Patches(120, 1, SMALL)),
        ("gpt-5-nano", Patches(150, 1, SMALL)),
    ],
)
def test_small_models_count_pictures_in_their_own_way(model: str, pictures: Tiles | Patches) -> None:
    assert rules_for(model).pictures == pictures


def test_only_old_models_use_the_old_encoding() -> None:
    assert GPT_4.encoding == "cl100k_base"
    assert {rules.encoding for rules in (GPT_4O, O_SERIES, GPT_5)} == {"o200k_base"}


def test_models_that_reason_open_their_reply_in_two_tokens() -> None:
    assert [rules.reply_prime for rules in (GPT_4, GPT_4O, O_SERIES, GPT_5)] == [3, 3, 2, 2]


def test_the_same_family_has_the_same_rules_however_it_is_named() -> None:
    """Counts are cached by them."""
    assert len({rules_for("gpt-4o"), rules_for("x/gpt-4o-2024-05-13"), rules_for("house-model")}) == 1


@pytest.mark.parametrize(
    ("host", "hidden"),
    [
        ("api.groq.com", True),
        ("router.huggingface.co", True),
        ("api.openai.com", False),
        ("notgroq.com", False),
        ("", False),
    ],
)
def test_some_hosts_hide_tools_that_may_not_be_called_whatever_the_model(host: str, hidden: bool) -> None:
    assert rules_for("gpt-oss-120b", host).hides_tools is hidden
    assert rules_for("deepseek-chat", host).hides_tools

"""Rules: a model's name says how its prompts are counted."""

import pytest
from msgspec.structs import replace

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
    CountingRules,
    rules_for,
)

FAMILIES: list[tuple[CountingRules, str]] = [
    (GPT_4, "gpt-4 gpt-4-0613 gpt-4-turbo-2024-04-09 openai/gpt-3.5-turbo gpt-35-turbo ft:gpt-3.5-turbo-0125:org::id"),
    (GPT_4O, "gpt-4o gpt-4o-2024-08-06 gpt-4.1 gpt-4.5-preview chatgpt-4o-latest gpt-oss:20b grok-4 house-model"),
    (O_SERIES, "o1 azure/o3-mini-2025-01-31"),
    (GPT_5, "gpt-5 gpt-5-2025-08-07 gpt-5-chat-latest gpt-5-codex gpt-5.1-2025-11-13 gpt-5.1-codex-max azure/gpt-5"),
    (GPT_5_2, "gpt-5.2-2025-12-11 gpt-5.3-codex gpt-5.4-mini-2026-03-17 gpt-5.4-nano"),
    (GPT_5_4, "gpt-5.4-2026-03-05"),
    (GPT_5_5, "gpt-5.5-2026-08-01"),
    (replace(GPT_5_5, tools_alone=3), "openai/gpt-5.5"),
    (GPT_5_6, "gpt-5.6-sol gpt-5.10 gpt-6"),
    (CLAUDE, "anthropic/claude-sonnet-4 us.anthropic.claude-opus-4-20250514-v1:0"),
    (GUIDED, "llama-3.3-70b Qwen/Qwen3-0.6B"),
    (HIDING, "deepseek-ai/DeepSeek-R1 deepseek-r1-distill-llama-70b mistral-large-latest"),
]


@pytest.mark.parametrize(("rules", "model"), [(rules, model) for rules, each in FAMILIES for model in each.split()])
def test_a_models_family_is_found_behind_routers_dates_and_fine_tunes(rules: CountingRules, model: str) -> None:
    assert rules_for(model) == rules


def test_a_model_without_a_name_counts_like_gpt_4o() -> None:
    assert rules_for("") == GPT_4O


def test_only_old_models_use_the_old_encoding() -> None:
    assert GPT_4.encoding == "cl100k_base"
    assert {rules.encoding for rules in (GPT_4O, O_SERIES, GPT_5)} == {"o200k_base"}


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

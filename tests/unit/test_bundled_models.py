"""The bundled registry: its shape, what it knows, and how names are matched."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from app.main import tariffs_of
from app.providers.bundled_models import (
    ListedModel,
    ListedPrice,
    bundled,
    cap_of,
    look_up,
    look_up_release,
    names_of,
    tariff,
)
from app.settings import load
from app.tokens.costs import Price, Tariff
from app.tokens.counting_rules import LONGEST_MODEL
from tests.unit.conversations import sure

MODELS = {
    "gpt-4": (8_192, None, None),
    "gpt-4o": (128_000, None, 16_384),
    "vendor/x-1": (9, None, None),
}


def test_every_entry_is_plausible() -> None:
    assert len(bundled()) > 300
    for name, (context, max_input, max_output) in bundled().items():
        assert name == name.lower().strip()
        assert 1_024 <= context <= 20_000_000, name
        assert max_input is None or 0 < max_input < context, name
        assert max_output is None or 0 < max_output < context, name


@pytest.mark.parametrize(
    ("model", "context", "max_input", "max_output"),
    [
        ("gpt-4o", 128_000, None, 16_384),
        ("gpt-4.1", 1_047_576, None, 32_768),
        ("gpt-5", 400_000, 272_000, 128_000),
        ("gpt-5-chat-latest", 128_000, None, 16_384),
        ("gpt-4", 8_192, None, 4_096),
        ("gpt-3.5-turbo-instruct", 4_096, None, None),
        ("gemini-1.5-pro-002", 2_097_152, None, 8_192),
        ("mistralai/magistral-medium-2506", 40_960, None, None),
        ("anthropic/claude-sonnet-4.5", 200_000, None, 64_000),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", 200_000, None, 64_000),
        ("deepseek-chat", 1_000_000, None, None),
        ("qwen-plus", 1_000_000, None, 32_768),
        ("minimax/minimax-m2.1", 204_800, None, 8_192),
        ("gpt-5.1-chat", 128_000, 111_616, 16_384),
        ("gpt-5.4-2026-03-05", 1_050_000, 922_000, 128_000),
        ("gemini-2.5-flash-image", 32_768, None, None),
        ("x-ai/grok-4.1-fast", 2_000_000, None, None),
    ],
)
def test_well_known_models_are_known(model: str, context: int, max_input: int | None, max_output: int | None) -> None:
    found = sure(look_up(model, bundled()))
    assert found[1] == (context, max_input, max_output)


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        ("gpt-4o", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o:free", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o@20240806", "gpt-4o"),
        ("gpt-4o-latest", "gpt-4o"),
        ("ft:gpt-4o:org::id", "gpt-4o"),
        ("ft:gpt-4o-2024-08-06:org:name:id", "gpt-4o"),
        ("gpt-4o-2024-08-06.ft-1a2b", "gpt-4o"),
        ("us.openai.gpt-4o", "gpt-4o"),
        ("gpt-4-new", "gpt-4"),
        ("gpt-4o-image-preview", None),
        ("gpt-4o-mini-tts", None),
        ("gpt-4-audio", None),
        ("gpt-4o-realtime-2025-06-03", None),
        ("vendor/x-1", "vendor/x-1"),
        ("host/vendor/x-1", "vendor/x-1"),
        ("x-1", None),
        ("gpt", None),
        ("my-model", None),
        ("", None),
        ("-4", None),
        ("/" * 400, None),
    ],
)
def test_a_name_is_found_without_host_date_tag_and_variant(model: str, entry: str | None) -> None:
    found = look_up(model, MODELS)
    assert (found and found[0]) == entry


@pytest.mark.parametrize("unit", ["a/", "1/", "a.", "gpt-4-", "-1", "us.a-b.", "@", "gpt-4o/gpt-4o:"])
def test_few_names_are_looked_up_for_one_however_it_is_built(unit: str) -> None:
    longest = (unit * LONGEST_MODEL)[:LONGEST_MODEL]
    assert not list(names_of(longest))
    assert max(len(list(names_of((unit * times)[:LONGEST_MODEL]))) for times in range(1, 30)) < 350


# Prices


def rates(price: Price) -> tuple[float | None, ...]:
    return astuple(price)


LISTED = {name: ListedModel(price=(ListedPrice(0, 2.5, 10.0),)) for name in ("gpt-4o", "bedrock.claude-9-v1")}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-mini", (0.15, 0.6, 0.075, None)),
        ("GPT-4o", (2.5, 10.0, 1.25, None)),
        ("gpt-4o-2024-05-13", (5.0, 15.0, None, None)),
        ("openai/gpt-5", (1.25, 10.0, 0.125, None)),
        ("claude-sonnet-4.5", (3.0, 15.0, 0.3, 3.75)),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", (3.3, 16.5, 0.33, 4.125)),
        ("gemini-2.5-pro", (1.25, 10.0, 0.125, None)),
        ("llama-3.1-8b-instruct", None),
        ("a-model-nobody-knows", None),
        ("", None),
    ],
)
def test_list_prices_are_those_of_the_name(model: str, expected: tuple[float | None, ...] | None) -> None:
    found = tariff(model)
    assert (found and rates(found.base)[:4]) == expected
    assert found is None or (found.model, found.source) == (model, "registry")


RELEASES = "gpt-4o gpt-4o-2024-08-06 gpt-4o-20240806 azure/gpt-4o eu.openai.gpt-4o gpt-4o-latest gpt-4o:free"


@pytest.mark.parametrize("model", RELEASES.split())
def test_another_release_has_the_same_price(model: str) -> None:
    assert look_up_release(model, LISTED) == ("gpt-4o", LISTED["gpt-4o"])


@pytest.mark.parametrize(
    "model", ["gpt-4o-mini", "gpt-4o-pro", "gpt-4o-mine", "gpt-4", "ft:gpt-4o:org::id", "gpt-4o-5", "-".join("a" * 30)]
)
def test_another_model_has_none_of_it(model: str) -> None:
    assert look_up_release(model, LISTED) is None


def test_an_operators_price_of_everything_is_not_that_of_a_model_that_only_an_answer_names() -> None:
    prices = [{"match": "chat-*", "prompt": 1, "completion": 2}, {"match": "*", "prompt": 3, "completion": 4}]
    settings = load(prices=prices)
    for asked, answered, whose, rate in (
        ("chat-prod", "gpt-4o", "chat-prod", 1.0),
        ("gpt-5", "gpt-4o", "gpt-5", 3.0),
        ("gpt-5", "chat-9", "chat-9", 1.0),
    ):
        found = sure(settings.tariff_of(asked, answered))
        assert (found.model, found.base.prompt) == (whose, rate)


def test_the_operators_prices_leave_no_room_for_others() -> None:
    """Which may be in another currency."""
    own = {"prices": [{"match": "my-*", "prompt": 1, "completion": 2, "cached": 0.5, "written": 1.5}]}
    named = {"models": [{"match": "chat-prod", "base_model": "gpt-5"}]}
    bare = {"storage": {"url": "memory"}}
    assert tariffs_of(load(**bare))("gpt-5", "") == tariff("gpt-5")
    assert tariffs_of(load(**bare, **named))("chat-prod", "chat-prod") == tariff("gpt-5")
    assert tariffs_of(load(**bare, **own))("gpt-5", "gpt-5") is None
    mine = Tariff("my-model", "settings", ((0, Price(1.0, 2.0, 0.5, 1.5)),))
    assert tariffs_of(load(**bare, **own))("my-model", "gpt-5") == mine
    assert tariffs_of(load(**bare, prices=None))("gpt-5", "") is None


# Caps


@pytest.mark.parametrize(
    ("model", "cap"),
    [
        ("gpt-4o", 160_000),
        ("nobody-knows-it", 160_000),
        ("claude-opus-4-6", 400_000),
        ("us.anthropic.claude-opus-4-6-v1", 400_000),
        ("openrouter/anthropic/claude-opus-4.6", 400_000),
        ("gpt-5.5", 260_000),
        ("gpt-5.5-pro", 160_000),
        ("gemini-3.1-pro-preview", 160_000),
    ],
)
def test_a_prompt_is_compacted_before_it_is_read_badly_or_costs_more(model: str, cap: int) -> None:
    assert cap_of(model, 160_000) == cap

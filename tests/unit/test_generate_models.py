"""The generator of the bundled registry: whom it believes where the public tables differ."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.providers.registry import Beside, BundledModel

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_models.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompt_table(**entries: tuple[str, int, int]) -> dict[str, Any]:
    """LiteLLM's: host, bound of the prompt, output, by name."""
    return {
        name.replace("__", "/"): {
            "mode": "chat",
            "litellm_provider": host,
            "max_input_tokens": bound,
            "max_output_tokens": output,
        }
        for name, (host, bound, output) in entries.items()
    }


def known(
    generator: ModuleType, name: str, table: dict[str, Any], *totals: tuple[str, int, bool]
) -> BundledModel | None:
    claims = [generator.Claim(name, context, None, vendor) for name, context, vendor in totals]
    models: dict[str, BundledModel] = generator.collect(generator.read_litellm(table), claims)
    return models.get(name)


def test_tables_that_differ_by_more_than_twice_are_overruled_by_three_hosts(generator: ModuleType) -> None:
    table = prompt_table(
        minimax__minimax_m9=("minimax", 1_000_000, 8_000),
        novita__minimax_m9=("novita", 204_800, 8_000),
        gmi__minimax_m9=("gmi", 196_608, 8_000),
    )
    hosted = ("other/minimax_m9", 204_800, False)
    assert known(generator, "minimax_m9", table, hosted, ("minimax_m9", 200_000, True)) == BundledModel(
        200_000, None, 8_000
    )
    assert known(generator, "minimax_m9", table, hosted) == BundledModel(204_800, None, 8_000)


def test_fewer_hosts_overrule_no_vendor(generator: ModuleType) -> None:
    table = prompt_table(minimax__minimax_m9=("minimax", 1_000_000, 8_000), novita__minimax_m9=("novita", 204_800, 0))
    assert known(generator, "minimax_m9", table, ("minimax_m9", 204_800, False)) == BundledModel(1_000_000, None, 8_000)


def test_a_host_tells_how_much_of_openais_total_the_prompt_may_have(generator: ModuleType) -> None:
    table = prompt_table(gpt_9=("openai", 400_000, 272_000), azure__gpt_9=("azure", 272_000, 128_000))
    assert known(generator, "gpt_9", table, ("gpt_9", 400_000, True)) == BundledModel(400_000, 272_000, 128_000)


def test_what_was_corrected_by_hand_stays_so_whatever_the_tables_say(generator: ModuleType) -> None:
    table = prompt_table(dashscope__qwen_max=("dashscope", 8_000, 100)) | {
        "dashscope/qwen-plus": {"mode": "chat", "litellm_provider": "dashscope", "max_input_tokens": 129_024}
    }
    models = generator.collect(generator.read_litellm(table), [])
    assert models["qwen-plus"] == generator.CORRECTED["qwen-plus"]
    assert "dashscope/qwen-plus" not in models


# Prices


def priced(host: str, prompt: float, completion: float, **members: Any) -> dict[str, Any]:
    """An entry of LiteLLM's, in US dollars for a million tokens."""
    costs = {"input_cost_per_token": prompt / 1e6, "output_cost_per_token": completion / 1e6}
    return {"mode": "chat", "litellm_provider": host, **costs, **members}


SOURCE = """
providers: list[Provider] = [
    Provider(id='openai', models=[
        ModelInfo(
            id='gpt-9',
            match=ClauseOr(or_=[ClauseEquals(equals='gpt-9'), ClauseStartsWith(starts_with='gpt-9-')]),
            prices=ModelPrice(
                input_mtok=TieredPrices(base=Decimal('2'), tiers=[Tier(start=200000, price=Decimal('4'))]),
                output_mtok=Decimal('8'), cache_read_mtok=Decimal('0.2'), cache_write_mtok=Decimal('2.5'),
                web_searches_kcount=Decimal('10'),
            ),
            price_variants=[
                PriceVariant(
                    when={'service_tier': 'priority'},
                    prices=ModelPrice(input_mtok=Decimal('4'), output_mtok=Decimal('16')),
                    constraint=StartDateConstraint(start_date=datetime.date(2026, 10, 14)),
                ),
                PriceVariant(when={'speed': 'fast'}, prices=ModelPrice(), constraint=TimeOfDateConstraint()),
                PriceVariant(when={'route': 'eu'}, prices=ModelPrice(input_mtok=Decimal('9')), constraint=None),
            ],
        ),
        ModelInfo(id='gpt-free', match=ClauseEquals(equals='gpt-free'), prices=ModelPrice()),
        ModelInfo(id='gpt-then', match=ClauseEquals(equals='gpt-then'), prices=[ConditionalPrice(prices=ModelPrice())]),
    ]),
    Provider(id='some-host', models=[
        ModelInfo(
            id='gpt-9',
            match=ClauseEquals(equals='gpt-9'),
            prices=ModelPrice(input_mtok=Decimal('1'), output_mtok=Decimal('1')),
        ),
    ]),
]
"""


def collected(generator: ModuleType, table: dict[str, Any], source: str = "") -> tuple[dict[str, Any], int]:
    prices, differ = generator.collect_prices(
        generator.read_litellm_prices(table), generator.read_vendors_prices(source)
    )
    return {name: tuple(price)[:4] for name, price in prices.items()}, differ


def beside(generator: ModuleType, table: dict[str, Any], source: str = "", name: str = "gpt-9") -> Beside:
    prices, _ = generator.collect_prices(generator.read_litellm_prices(table), generator.read_vendors_prices(source))
    found = prices[name].beside
    assert isinstance(found, Beside)
    return found


def test_a_bare_name_has_its_vendors_price_and_no_hosts(generator: ModuleType) -> None:
    table = {"openai/gpt-9": priced("openai", 2, 8), "azure/gpt-9": priced("azure", 3, 9)}
    assert collected(generator, table) == ({"gpt-9": (2.0, 8.0, None, None), "azure/gpt-9": (3.0, 9.0, None, None)}, 0)
    assert collected(generator, {"azure/gpt-9": table["azure/gpt-9"]})[0] == {"azure/gpt-9": (3.0, 9.0, None, None)}


def test_the_base_price_of_the_vendor_fills_what_the_other_table_leaves_open(generator: ModuleType) -> None:
    assert collected(generator, {}, SOURCE) == ({"gpt-9": (2.0, 8.0, 0.2, 2.5)}, 0)
    table = {"gpt-9": priced("openai", 2, 8, cache_read_input_token_cost=0.25e-6)}
    assert collected(generator, table, SOURCE) == ({"gpt-9": (2.0, 8.0, 0.25, 2.5)}, 0)


def test_where_the_tables_do_not_agree_the_first_one_stands_alone(generator: ModuleType) -> None:
    assert collected(generator, {"gpt-9": priced("openai", 3, 8)}, SOURCE) == ({"gpt-9": (3.0, 8.0, None, None)}, 1)


def test_what_is_free_or_no_price_of_a_token_has_none(generator: ModuleType) -> None:
    table = {
        "gpt-8": priced("openai", 0, 0),
        "gpt-7": priced("openai", 2, 2_000),
        "gpt-image-9": {**priced("openai", 2, 8), "mode": "image_generation"},
        "ollama/gpt-9": priced("ollama", 2, 8),
    }
    assert collected(generator, table) == ({}, 0)


def test_a_name_whose_price_another_one_gives_is_left_out(generator: ModuleType) -> None:
    table = {name: priced("openai", 2, 8) for name in ("gpt-9", "gpt-9-2026-01-01", "openai/gpt-9")}
    assert collected(generator, table)[0] == {"gpt-9": (2.0, 8.0, None, None)}


def test_tiers_steps_and_fees_are_read_of_both_tables(generator: ModuleType) -> None:
    table = {
        "gpt-9": priced(
            "openai",
            2,
            8,
            cache_read_input_token_cost=0.2e-6,
            cache_creation_input_token_cost=2.5e-6,
            cache_creation_input_token_cost_above_1hr=4e-6,
            input_cost_per_token_above_200k_tokens=4e-6,
            output_cost_per_token_above_200k_tokens=12e-6,
            cache_read_input_token_cost_above_200k_tokens=0.5e-6,
            input_cost_per_token_batches=1e-6,
            output_cost_per_token_batches=4e-6,
            input_cost_per_audio_token=32e-6,
            output_cost_per_audio_token=64e-6,
            search_context_cost_per_query={"search_context_size_medium": 0.01},
            provider_specific_entry={"us": 1.1, "titan": "v2"},
        )
    }
    found = beside(generator, table)
    assert (found.written_hour, found.audio, found.speech, found.search) == (4.0, 32.0, 64.0, 10_000.0)
    assert found.regions == {"us": 1.1}
    # What is not listed differs as the price of the prompt does: twice above the step, half in a batch, and both.
    assert found.steps == {
        "": [[200_000.0, 4.0, 12.0, 0.5, 5.0, 8.0, 64.0, 128.0]],
        "batch": [[0.0, 1.0, 4.0, 0.1, 1.25, 2.0, 16.0, 32.0], [200_000.0, 2.0, 6.0, 0.25, 2.5, 4.0, 32.0, 64.0]],
    }
    of_vendor = beside(generator, {}, SOURCE)
    assert (of_vendor.search, of_vendor.steps) == (10_000.0, {"priority": [[0.0, 4.0, 16.0, 0.4, 5.0]]})


def test_a_step_needs_a_price_of_the_completion_too(generator: ModuleType) -> None:
    table = {"gpt-9": priced("openai", 2, 8, input_cost_per_token_above_200k_tokens=4e-6)}
    assert beside(generator, table) == Beside()


def test_prices_by_range_are_steps(generator: ModuleType) -> None:
    ranges = [
        {"range": [0, 256_000], "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6},
        {"range": [256_000, 1_000_000], "input_cost_per_token": 3e-6, "output_cost_per_token": 4e-6},
    ]
    table = {"qwen-9": {"mode": "chat", "litellm_provider": "dashscope", "tiered_pricing": ranges}}
    assert collected(generator, table)[0] == {"qwen-9": (1.0, 2.0, None, None)}
    assert beside(generator, table, name="qwen-9").steps == {"": [[256_000.0, 3.0, 4.0]]}


def test_a_faster_service_costs_a_factor_of_everything(generator: ModuleType) -> None:
    entry = priced("anthropic", 5, 25, cache_read_input_token_cost=0.5e-6, provider_specific_entry={"fast": 6})
    assert beside(generator, {"claude-9": entry}, name="claude-9").steps == {"fast": [[0.0, 30.0, 150.0, 3.0]]}


def test_the_second_table_adds_the_tiers_and_steps_that_the_first_lacks(generator: ModuleType) -> None:
    own = priced("openai", 2, 8, input_cost_per_token_flex=1e-6, output_cost_per_token_flex=4e-6)
    assert beside(generator, {"gpt-9": own}, SOURCE).steps.keys() == {"flex", "priority"}
    with_priority = {**own, "input_cost_per_token_priority": 3e-6, "output_cost_per_token_priority": 12e-6}
    assert beside(generator, {"gpt-9": with_priority}, SOURCE).steps["priority"] == [[0.0, 3.0, 12.0, 0.3, 3.75]]


def test_a_release_that_is_listed_without_its_tiers_is_priced_as_its_model(generator: ModuleType) -> None:
    tiers = {"input_cost_per_token_flex": 1e-6, "output_cost_per_token_flex": 4e-6}
    table = {"gpt-9": priced("openai", 2, 8, **tiers), "gpt-9-2026-01-01": priced("openai", 2, 8)}
    assert collected(generator, table)[0].keys() == {"gpt-9"}
    other = {**tiers, "output_cost_per_token_flex": 5e-6}
    table["azure/gpt-9"] = priced("azure", 2, 8, **other)
    assert collected(generator, table)[0].keys() == {"gpt-9", "azure/gpt-9"}

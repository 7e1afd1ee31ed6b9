"""The generator of the bundled registry: whom it believes where the public tables differ."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.providers.registry import BundledModel

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

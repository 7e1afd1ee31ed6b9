"""Cost and savings of compactions, by list prices: the worked examples of docs/costs.md.

python -m lab.benchmarks.costs
"""

from __future__ import annotations

from math import ceil

from app.compaction.cost_gate import Change
from app.providers.bundled_models import tariff
from app.tokens.costs import Rates, rates_of

MODELS = ("gpt-4o-mini", "gpt-4.1", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-flash", "deepseek-chat")
BEFORE, INSTRUCTIONS, TAIL, SUMMARIES, GROWTH = 90_000, 2_000, 16_000, 6_000, 1_500
"""The example: a prompt at the trigger of a 128,000 token window, and what is left of it."""
SUMMARISED = BEFORE - INSTRUCTIONS - TAIL
CHANGE = Change(SUMMARISED - SUMMARIES, SUMMARIES + TAIL, GROWTH)


def examples() -> list[str]:
    """A Markdown table: after how many requests the example has paid, by model."""
    header = "| model | prompt | from the cache | not warm | warm, `transcript` | warm, `prefix` |"
    return [header, "|---|---:|---:|---:|---:|---:|", *map(_example, MODELS)]


def _example(model: str) -> str:
    found = tariff(model)
    if found is None:
        raise ValueError(f"{model} has no list price")
    price = found.base
    cold, warm = rates_of(price, warm=False), rates_of(price, warm=True)
    if cold is None or warm is None:
        raise ValueError(f"{model} has no price of its cache")
    quoted, shown = (SUMMARISED * read + SUMMARIES * price.completion for read in (price.prompt, warm.cached))
    by_style = (_requests(cold, quoted), _requests(warm, quoted), _requests(warm, shown))
    return f"| {model} | {price.prompt:g} | {price.cached:g} | {' | '.join(map(str, by_style))} |"


def _requests(rates: Rates, calls: float) -> int:
    """Within which it saves what it costs."""
    costs = calls + CHANGE.rewritten * (rates.uncached - rates.cached)
    return ceil(costs / (CHANGE.freed * rates.cached))


if __name__ == "__main__":
    print("\n".join(examples()))

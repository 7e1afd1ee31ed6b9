"""What docs/costs.md says is what the prices in the registry come to."""

from __future__ import annotations

from pathlib import Path

from app.tokens.usage import CostGate
from lab.benchmarks.costs import CHANGE, GROWTH, INSTRUCTIONS, SUMMARIES, SUMMARISED, TAIL, examples

COSTS = (Path(__file__).parents[2] / "docs" / "costs.md").read_text()


def test_the_table_of_examples_is_worked_out_from_the_list_prices() -> None:
    assert "\n".join(examples()) in COSTS


def test_the_example_is_the_one_that_is_worked_out() -> None:
    for number in (INSTRUCTIONS, SUMMARISED, SUMMARIES, TAIL, CHANGE.freed, CHANGE.rewritten, GROWTH):
        assert f"{number:,}" in COSTS
    assert f"Steno expects {CHANGE.freed // (2 * GROWTH)} requests" in COSTS
    assert f"It expects at least {CostGate().requests} requests." in COSTS

"""An agent plays twice, without Steno and with it: what the ledger says of the one is what the other costs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.benchmarks.savings import BILLINGS, LARGER, Pair, agent, play
from lab.benchmarks.talks import ADVICE, PEOPLE, SERVICES, TOPICS

BY_NAME = {billing.name: billing for billing in BILLINGS}
TOKENS = 20_000

pytestmark = pytest.mark.release


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files for the agent to read, the same each time."""
    rng, words = random.Random(1), [*ADVICE.split(". "), *PEOPLE, *SERVICES, *TOPICS]
    for folder in ("app", "docs"):
        (tmp_path / folder).mkdir()
        for number in range(12):
            lines = (
                f"{line}: {rng.choice(words)} = {rng.randint(1, 1_000_000)}" for line in range(rng.randint(20, 120))
            )
            (tmp_path / folder / f"note_{number}.md").write_text("\n".join(lines))
    return tmp_path


def pair(name: str, window: int, root: Path) -> Pair:
    billing = BY_NAME[name]
    recording = agent(TOKENS, billing, root)
    without = play(recording, billing, LARGER, compacts=False)
    return Pair(billing, window, without, play(recording, billing, window, compacts=True))


@pytest.mark.parametrize("name", ["anthropic-1h", "openai-0.25"])
def test_what_the_ledger_says_of_a_run_without_steno_is_what_that_run_costs(name: str, root: Path) -> None:
    """In a window that is too small for most of it."""
    found = pair(name, 8_000, root)
    assert found.with_steno.summaries
    assert found.too_large
    assert found.off_by < 0.05, found.cells()
    assert found.with_steno.totals["cost"] * 1e6 == pytest.approx(found.with_steno.paid), "what the ledger counted"


def test_a_window_that_holds_all_of_it_never_costs_more_with_steno(root: Path) -> None:
    found = pair("anthropic-5m", 40_000, root)
    assert not found.too_large
    assert found.with_steno.paid <= found.without.paid, found.cells()

"""An agent plays twice, without Steno and with it: what the ledger says of the one is what the other costs."""

from __future__ import annotations

import pytest

from lab.benchmarks.savings import BILLINGS, LARGER, Billing, Pair, agent, play

BY_NAME = {billing.name: billing for billing in BILLINGS}
TOKENS = 20_000


def pair(name: str, window: int) -> Pair:
    billing: Billing = BY_NAME[name]
    recording = agent(TOKENS, billing)
    without = play(recording, billing, LARGER, compacts=False)
    return Pair(billing, window, without, play(recording, billing, window, compacts=True))


def test_what_the_ledger_says_of_a_run_without_steno_is_what_that_run_costs() -> None:
    """In a window that is too small for most of it, by marks that are kept for an hour, and by a cache that keeps what
    it likes."""
    for name in ("anthropic-1h", "openai-0.25"):
        found = pair(name, 8_000)
        assert found.with_steno.summaries
        assert found.too_large
        assert found.off_by < 0.05, found.cells()
        assert found.with_steno.totals["cost"] * 1e6 == pytest.approx(found.with_steno.paid), "what the ledger counted"


def test_a_window_that_holds_all_of_it_never_costs_more_with_steno() -> None:
    for name in ("anthropic-5m", "openai-0.1"):
        found = pair(name, 60_000)
        assert not found.too_large
        assert found.with_steno.paid <= found.without.paid, found.cells()

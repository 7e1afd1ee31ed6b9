"""The grid of what fills the window: every token once, and all of them together are the window."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.inspector.charts import CELLS, LABELS, grid_of, payload_shares

KINDS = (
    *("verbatim", "summarized", "carried", "pinned", "pruned", "stub", "exact_values", "recalled"),
    *("masked", "trimmed", "cleared", "shortened", "faded", "truncated", "repaired"),
)


def instructions(tokens: int, tools: int = 0) -> dict[str, Any]:
    return {"kind": "instructions", "messages": 1, "tokens": tokens, "tools_tokens": tools}


def part(kind: str, tokens: int) -> dict[str, Any]:
    return {"kind": kind, "tokens": tokens}


def shown(grid: Any) -> dict[str, int]:
    return {share.filling: share.tokens for share in grid.shares}


def test_each_token_is_in_one_share_and_what_is_left_is_reserved_or_free() -> None:
    parts = [
        instructions(700, tools=400),
        part("summarized", 500),
        part("carried", 20),
        part("masked", 90),
        part("verbatim", 1_000),
        part("recalled", 60),
        part("exact_values", 40),
    ]
    assert shown(grid_of(parts, 8_000, 7_600)) == {
        "instructions": 300,
        "tools": 400,
        "summaries": 500,
        "recalled": 100,
        "masked": 90,
        "verbatim": 1_020,
        "reserve": 400,
        "free": 5_190,
    }


def test_shares_stand_in_the_order_of_the_payload_with_what_is_left_last() -> None:
    grid = grid_of([instructions(10, tools=5), part("verbatim", 5), part("summarized", 5)], 100, 90)
    names = [share.filling for share in grid.shares]
    assert names == [filling for filling in LABELS if filling in names]
    assert list(dict.fromkeys(grid.cells)) == names


def test_a_share_too_small_for_a_cell_has_one() -> None:
    grid = grid_of([instructions(1), part("verbatim", 50_000)], 100_000, 95_000)
    assert grid.cells.count("instructions") == 1
    assert len(grid.cells) == CELLS


def test_what_a_calibration_takes_from_the_instructions_is_taken_from_the_largest_share() -> None:
    assert payload_shares([instructions(-5), part("verbatim", 50)]) == {"instructions": 0, "tools": 0, "verbatim": 45}


@given(
    tokens=st.integers(0, 300_000),
    tools=st.integers(0, 400_000),
    parts=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 200_000)), max_size=30),
    window=st.integers(1, 1_000_000),
    limit=st.none() | st.integers(0, 1_200_000),
)
def test_the_shares_add_up_to_the_window_and_the_cells_to_the_grid(
    tokens: int, tools: int, parts: list[tuple[str, int]], window: int, limit: int | None
) -> None:
    payload = [instructions(tokens, tools), *(part(*each) for each in parts)]
    total = sum(each["tokens"] for each in payload)
    assert sum(payload_shares(payload).values()) == total
    grid = grid_of(payload, window, limit)
    amounts = shown(grid)
    over = amounts.pop("over", 0)
    assert sum(amounts.values()) == window
    assert over == max(0, total - window)
    assert min(amounts.values()) > 0
    assert len(grid.cells) == CELLS
    assert set(grid.cells) == set(amounts)

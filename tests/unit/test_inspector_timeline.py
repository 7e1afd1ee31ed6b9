"""The timeline: one fate for each message, whatever the coverage is made of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from app.inspector.payload import Fates


def part(kind: str, first: int, last: int, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "first_index": first, "last_index": last, "tokens": tokens, **more}


PARTS = [
    {"kind": "instructions", "messages": 1, "tools_tokens": 0, "tokens": 5},
    part("summarized", 0, 9, 60, summary_id="chk_1"),
    part("carried", 4, 4, 12),
    part("pruned", 10, 11, 0, by="pruned"),
    part("pinned", 2, 3, 30),
    {"kind": "recalled", "messages": [7], "tokens": 40},
    part("masked", 12, 12, 8),
    part("verbatim", 13, 20, 300),
]


def test_every_message_has_a_fate() -> None:
    fates = Fates(PARTS)
    assert fates.number == 21
    kinds = [fates.of(index).kind for index in range(21)]
    assert (
        kinds == ["summarized"] * 4 + ["carried"] + ["summarized"] * 5 + ["pruned"] * 2 + ["masked"] + ["verbatim"] * 8
    )


def test_a_message_beside_its_summary_keeps_the_summarys_name() -> None:
    carried = Fates(PARTS).of(4)
    assert (carried.kind, carried.summary_id, carried.tokens) == ("carried", "chk_1", 12)


def test_copies_and_quotes_are_said_beside_what_became_of_the_message() -> None:
    fates = Fates(PARTS)
    assert [index for index in range(21) if fates.of(index).pinned] == [2, 3]
    assert [index for index in range(21) if fates.of(index).recalled] == [7]
    assert fates.of(2).kind == "summarized"


def test_stretches_join_end_to_end_and_bear_each_token_once() -> None:
    stretches = Fates(PARTS).stretches
    assert stretches[0].first == 0
    assert stretches[-1].last == 20
    assert all(after.first == before.last + 1 for before, after in pairwise(stretches))
    assert sum(stretch.tokens for stretch in stretches) == 60 + 12 + 8 + 300


def test_a_run_of_verbatim_messages_is_one_stretch() -> None:
    (stretch,) = Fates([PARTS[0], part("verbatim", 0, 5, 70)]).stretches
    assert (stretch.first, stretch.last, stretch.count, stretch.tokens) == (0, 5, 6, 70)
    assert stretch.fate.word == "verbatim"


def test_a_conversation_without_messages_has_no_stretches() -> None:
    assert Fates([PARTS[0]]).stretches == []
    assert Fates([]).number == 0

"""The history check has to see what it is there for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from lab.simulator import Simulator
from lab.simulator.log import Record
from tests.chaos.history import FOREIGN, GAPS, OVERLAPS, Views, Watch
from tests.chaos.talkers import Asked

FIRST = {"tenant": "t", "series": "s", "from_digest": b"0", "through_digest": b"1", "holder": "one", "epoch": 2}

RULES, *TALK = (
    {"role": role, "content": f"{role} says {number}."}
    for number, role in enumerate(("system", "user", "assistant", "user", "assistant", "user"))
)


class Looked:
    """What one look at the database finds."""

    def __init__(self, leases: Sequence[Mapping[str, Any]], chunks: Sequence[Mapping[str, Any]] = ()) -> None:
        self._found = {"leases": leases, "summary_chunks": chunks}

    async def fetch(self, query: str, *_: object) -> Sequence[Mapping[str, Any]]:
        return next(rows for table, rows in self._found.items() if table in query)


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ([FIRST], []),
        ([{**FIRST, "holder": "two", "epoch": 3}], []),
        ([{**FIRST, "epoch": 1}], ["epoch 2 became 1"]),
        ([{**FIRST, "holder": "two"}], ["epoch 2 went from one to two"]),
    ],
    ids=["the same", "taken over", "fell", "shared"],
)
async def test_an_epoch_that_does_not_rise_is_seen(later: Sequence[Mapping[str, Any]], found: list[str]) -> None:
    watch = Watch("")
    for leases in ([FIRST], [], later):  # A released lease is a deleted row.
        await watch.look(Looked(leases))
    assert watch.backwards == found


async def test_a_committed_chunk_that_is_gone_is_seen_and_so_is_one_that_a_client_was_answered_with() -> None:
    watch = Watch("")
    await watch.look(Looked([], [{"id": "a", "text": "Notes on a."}, {"id": "b", "text": "Notes on b."}]))
    assert watch.lost({"a": "Notes on a.", "b": "Notes on b."}, {"Notes on b."}) == []
    assert watch.lost({"a": "Notes on a.", "b": "Otherwise."}, {"Notes on b."}) == [
        "chunk b",
        "the summary 'Notes on b.'",
    ]


@pytest.mark.parametrize(
    ("payload", "counts"),
    [
        ([RULES, *TALK], (0, 0, 0)),
        ([RULES, *TALK[2:]], (1, 0, 0)),
        ([RULES, *TALK[:2], *TALK[1:]], (0, 1, 0)),
        ([RULES, {"role": "user", "content": "Notes on something."}, *TALK[2:]], (1, 0, 1)),
    ],
    ids=["whole", "gap", "overlap", "not its summary"],
)
def test_a_view_with_a_gap_or_an_overlap_is_seen(payload: Sequence[object], counts: tuple[int, int, int]) -> None:
    simulator = Simulator()
    views = Views(simulator)
    forwarded = msgspec.json.encode({"user": "r1", "messages": payload})
    record = Record(1, 0.0, "POST", "/v1/chat/completions", (), forwarded, "chat", status=200, finished_at=1.0)
    simulator._log.add(record)
    views.collect()
    views.judge([Asked("r1", "c1", msgspec.json.encode({"messages": [RULES, *TALK]}), 0, answered=True)])
    assert (views.count(GAPS), views.count(OVERLAPS), views.count(FOREIGN)) == counts

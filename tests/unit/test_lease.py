"""A compaction that another process makes."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.chunk_builder import SummaryCall
from app.compaction.chunks import ChunkRange, Outcome, SummaryAnswer
from app.compaction.lease import SIDE_BY_SIDE, CompactionJob, LeasedCompaction, _LeasedCalls, _side_by_side
from app.compaction.prompts import SummaryRequest
from app.store import Lease

TRANSCRIPT: Any = SimpleNamespace(chain=SimpleNamespace(positions={}))
REQUEST: Any = SimpleNamespace(tenant="t", conversation_key=("t", "c"), conversation=TRANSCRIPT)
BUILDER: Any = SimpleNamespace(plan=SimpleNamespace(range=None))


@pytest.mark.parametrize(
    ("seconds", "waits", "is_revoked", "is_stored", "outcome"),
    [
        (9.0, True, False, False, Outcome.AWAITED),
        (9.0, True, True, False, Outcome.DELETED),
        (9.0, True, True, True, Outcome.AWAITED),
        (0.0, True, False, False, Outcome.TAKES_TOO_LONG),
        (9.0, False, False, False, Outcome.TAKES_TOO_LONG),
    ],
)
async def test_it_is_waited_for_as_long_as_there_is_time_and_the_wait_is_measured(
    seconds: float, waits: bool, is_revoked: bool, is_stored: bool, outcome: Outcome
) -> None:
    async def is_busy(*_: object) -> str:
        return "busy"

    async def wait(*arguments: Any) -> str | None:
        return ("revoked" if is_revoked else "ended") if arguments[-1] else None

    async def is_known(*_: object) -> bool:
        return is_stored

    measured: list[float] = []
    announced: list[bool] = []
    nothing: Any = None
    metrics: Any = SimpleNamespace(lease_waits=SimpleNamespace(observe=measured.append))
    store: Any = SimpleNamespace(take_lease=is_busy, await_lease=wait, is_stored=is_known)
    leased = LeasedCompaction(store, nothing, nothing, nothing, nothing, nothing, metrics, nothing, nothing, 1, "me")
    job = CompactionJob(BUILDER, (), lambda: announced.append(True), monotonic() + seconds, waits=waits)
    compaction = await leased.make(REQUEST, job)
    assert (compaction.outcome, bool(announced), len(measured)) == (outcome, waits, int(waits))
    assert all(0 <= waited < 60 for waited in measured)


async def test_parts_of_one_compaction_are_made_side_by_side_up_to_a_number() -> None:
    running = most = 0

    async def part() -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await _side_by_side([part] * (3 * SIDE_BY_SIDE))
    assert most == SIDE_BY_SIDE


async def test_a_call_for_what_was_erased_meanwhile_is_not_in_the_ledger() -> None:
    """Its record would have the conversation's name."""
    recorded: list[Any] = []
    leased: Any = SimpleNamespace(
        ledger=SimpleNamespace(record=lambda call, **_: recorded.append(call)),
        store=SimpleNamespace(is_erased=lambda *_: True),
    )
    request: Any = SimpleNamespace(
        conversation_key=("t", "c"), epoch=1, budget=SimpleNamespace(line=SimpleNamespace(ratio=1.0))
    )
    calls, answer = (
        _LeasedCalls(leased, request, Lease("t", "c", ChunkRange("", b"", b""), "me", 1)),
        SummaryAnswer("notes"),
    )
    calls.unrecorded[id(answer)] = answer, SummaryCall(SummaryRequest("", "", 1)), 0.1
    calls.reject(answer)
    assert (recorded, calls.unrecorded) == ([], {})

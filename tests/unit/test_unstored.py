"""A compaction without the store: what speaks against it, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.unstored import UnstoredCompaction
from app.core.reasons import Code, Reason, Reasons
from app.core.summary.flow import Outcome
from tests.unit.conversations import WHY

LATELY = Reason(Code.SUMMARY_FAILED_LATELY)


@pytest.mark.parametrize(
    ("draining", "paused", "seconds", "why"),
    [(True, WHY, 1.0, ()), (False, WHY, 0.0, (*WHY, LATELY)), (False, None, 0.0, ())],
)
async def test_nothing_is_begun_while_stopping_after_failures_or_without_time(
    draining: bool, paused: Reasons | None, seconds: float, why: Reasons
) -> None:
    """Why it failed lately is told where there is no time left, too."""
    performer: Any = SimpleNamespace(
        tasks=SimpleNamespace(draining=draining), setbacks=SimpleNamespace(pauses=lambda _: paused)
    )
    course: Any = SimpleNamespace(request=SimpleNamespace(history=lambda *_: None), seconds_left=seconds)
    made = await UnstoredCompaction(performer).make(course, SimpleNamespace(plan=None))  # type: ignore[arg-type]
    assert made is not None
    assert (made.outcome, made.why) == (Outcome.NOT_BEGUN, why)

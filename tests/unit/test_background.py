"""When a conversation is looked at again after an answer: each look reads the store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from app.compaction.background import LOOKED_AT_GROWTH, Background, BackgroundLimits
from app.compaction.paces import Paces
from app.core.reasons import Code, because
from app.core.stages.ladder import Decision
from app.tasks.owned import OwnedTasks

PLACE, LIMIT = ("one", "c-1"), 10_000
SENT, MISSED = Decision(None), Decision(None, why=because(Code.SUMMARY_IN_BACKGROUND))


def job(tokens: int) -> Any:
    return SimpleNamespace(
        place=PLACE, conversation=SimpleNamespace(tokens=tokens), budget=SimpleNamespace(limit=LIMIT)
    )


def test_a_history_is_looked_at_when_it_is_new_has_grown_or_missed_its_summary() -> None:
    nothing: Any = None
    background = Background(nothing, Paces(), OwnedTasks(), BackgroundLimits(1, 1, 1))
    assert background._is_news(job(5_000), SENT)
    background._looked.keep(PLACE, 5_000)
    assert not background._is_news(job(5_000), SENT)
    assert not background._is_news(job(5_000 + int(LOOKED_AT_GROWTH * LIMIT) - 1), SENT)
    assert background._is_news(job(5_000 + int(LOOKED_AT_GROWTH * LIMIT)), SENT)
    assert background._is_news(job(5_000), MISSED)


def test_trouble_of_its_own_does_not_reach_the_request_that_was_answered() -> None:
    """Here it is that nothing it needs is there."""
    nothing: Any = None
    asked: Any = SimpleNamespace(request_id="req_1", conversation_id="c-1")
    with capture_logs() as logged:
        Background(nothing, Paces(), OwnedTasks(), BackgroundLimits(1, 1, 1)).consider(asked, nothing, SENT)
    assert [(entry["event"], entry["request_id"]) for entry in logged] == [("a background compaction failed", "req_1")]

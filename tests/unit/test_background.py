"""When a conversation is looked at again after an answer: each look reads the store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.compaction.background import LOOKED_AT_GROWTH, Background
from app.compaction.paces import Paces
from app.compaction.quotas import BackgroundLimits, BackgroundRoom
from app.core.reasons import Code, because
from app.core.stages.ladder import Decision
from app.runtime.owned import OwnedTasks
from app.settings import BackgroundSettings
from tests.unit.conversations import budget, conversation, message

PLACE, LIMIT = ("one", "c-1"), 10_000
SENT, MISSED = Decision(None), Decision(None, why=because(Code.SUMMARY_IN_BACKGROUND))
NOTHING: Any = None


class Beginning(Background):
    """One that writes down what it would begin, for conversations that all come back."""

    def __init__(self) -> None:
        everybody: Any = SimpleNamespace(comes_back=lambda _: True)
        super().__init__(everybody, NOTHING, Paces(), BackgroundRoom(BackgroundLimits(1, 1, 1)), OwnedTasks())
        self.begun: list[Any] = []

    def _begin(self, request: Any, target: int) -> None:  # noqa: ARG002
        self.begun.append(request)

    def _requests_meanwhile(self, _: Any) -> int:
        return 1


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> Beginning:
    monkeypatch.setattr("app.compaction.background.replace", lambda request, **changes: (request, changes))
    return Beginning()


def request(tokens: int) -> Any:
    history = [message("user", tokens=tokens - 600), message("assistant", tokens=300), message("user", tokens=300)]
    return SimpleNamespace(
        place=PLACE,
        tenant=PLACE[0],
        conversation=conversation(*history),
        budget=budget(LIMIT),
        compaction=True,
        policy=SimpleNamespace(summarises=True),
    )


def begun(begins: Beginning, tokens: int, decision: Decision) -> bool:
    begins.begun.clear()
    begins.consider(request(tokens), BackgroundSettings(), decision)
    return bool(begins.begun)


def test_a_history_over_the_trigger_is_looked_at_when_it_is_new_or_has_grown(begins: Beginning) -> None:
    assert not begun(begins, 7_000, SENT)
    assert begun(begins, 7_100, SENT)
    begins._looked.keep(PLACE, 7_100)
    assert not begun(begins, 7_100, SENT)
    assert not begun(begins, 7_100 + int(LOOKED_AT_GROWTH * LIMIT) - 1, SENT)
    assert begun(begins, 7_100 + int(LOOKED_AT_GROWTH * LIMIT), SENT)


def test_one_that_went_on_without_its_summary_always_is(begins: Beginning) -> None:
    """Also where it was shortened so much that what was sent is far below the trigger."""
    begins._looked.keep(PLACE, 7_100)
    assert begun(begins, 7_100, MISSED)
    assert begun(begins, 3_000, MISSED)
    assert not begun(begins, 3_000, SENT)


def test_what_it_begins_goes_by_limits_for_the_time_when_it_is_used(begins: Beginning) -> None:
    begun(begins, 7_100, SENT)
    ((_, changes),) = begins.begun
    assert set(changes) == {"budget"}
    assert (changes["budget"].limit, changes["budget"].target) == (LIMIT, LIMIT // 2 - 600)


def test_trouble_of_its_own_does_not_reach_the_request_that_was_answered() -> None:
    """Here it is that nothing it needs is there."""
    asked: Any = SimpleNamespace(request_id="req_1", conversation_id="c-1")
    with capture_logs() as logged:
        Background(NOTHING, NOTHING, Paces(), NOTHING, OwnedTasks()).consider(asked, NOTHING, SENT)
    assert [(entry["event"], entry["request_id"]) for entry in logged] == [("a background compaction failed", "req_1")]

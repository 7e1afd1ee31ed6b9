"""What is recalled in a payload: its bytes stay while a calibration learns, and the coverage and the checks know it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.budget import Budget, Shares, Window, budget_for
from app.compaction.recall import Recollection, with_recalled
from app.compaction.view import Conversation, Recalled, Summary, Verbatim, View
from app.tokens.calibration import Line
from tests.unit.conversations import budget, chunk, conversation, cost, message

SUMMARISED = 40
LAST = SUMMARISED + 1


def talk() -> Conversation:
    birds = [
        message("user", f"Kestrel number {n} nests behind the chapel of the village by river {n}.") for n in range(20)
    ]
    others = [message("user", f"Which train was it that left late by {n} minutes?") for n in range(20, SUMMARISED)]
    return conversation(
        *birds,
        *others,
        message("assistant", "Noted."),
        message("user", "Which kestrel nests behind the chapel of which village?"),
    )


def summarised(talk: Conversation) -> View:
    return View((Summary(chunk(talk, 0, SUMMARISED)), Verbatim(SUMMARISED, LAST + 1)), 100)


def recalled_by(line: Line) -> View:
    asked, limits = talk(), budget_for(Window(3_000, "config"), None, Shares(), line)
    return with_recalled(asked, summarised(asked), Recollection(asked), limits, cost)


@pytest.mark.parametrize(
    ("then", "now"),
    [(Line(), Line(ratio=1.02)), (Line(30.0, 1.3), Line(28.0, 1.2)), (Line(-20.0, 0.8), Line(-10.0, 0.75))],
)
def test_what_is_recalled_stays_the_same_while_a_calibration_learns(then: Line, now: Line) -> None:
    assert "recalled" in recalled_by(then).actions
    assert recalled_by(now) == recalled_by(then)


def test_a_view_keeps_to_its_target_or_not_whatever_the_calibration_learns() -> None:
    """Also where its target is between two hundredths of the limit."""
    asked = talk()
    made = Summary(chunk(asked, 0, SUMMARISED, history_length=LAST + 1))
    for tokens in range(1_190, 1_340, 10):
        view = View((made, Verbatim(SUMMARISED, LAST + 1)), tokens)
        for share in (0.495, 0.5, 0.505):
            budgets = [
                budget_for(Window(3_000, "config"), None, Shares(target=share), Line(offset)) for offset in (9.0, -9.0)
            ]
            first, second = (with_recalled(asked, view, Recollection(asked), each, cost) for each in budgets)
            assert first.recalled == second.recalled


@pytest.mark.parametrize(("spare", "kept"), [(0, 2), (-1, 1)])
def test_where_there_is_no_room_the_latest_goes_first(spare: int, kept: int) -> None:
    """What stands before it is still in the provider's cache then."""
    first = talk()
    answer = message("assistant", "By the river, behind the chapel. " * 40, tokens=300)
    both = conversation(*first.transcript.messages, answer, message("user", "Which train left late by 27 minutes?"))
    view = replace(summarised(both), parts=(Summary(chunk(both, 0, SUMMARISED)), Verbatim(SUMMARISED, LAST + 3)))

    def recalled(limits: Budget) -> list[Recalled]:
        found = with_recalled(both, view, Recollection(both), replace(limits, max_recall_tokens=150), cost)
        return [part for part in found.parts if isinstance(part, Recalled)]

    roomy = budget(3_000)
    notes = recalled(roomy)
    assert len(notes) == 2
    needed = view.tokens + sum(note.tokens for note in notes)
    assert recalled(replace(roomy, limit=needed + spare)) == notes[:kept]
    assert recalled(replace(roomy, limit=view.tokens)) == []

"""Why, in words: every number of the plan, and every step that was tried, in its order."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from app.compaction.chunks import Outcome
from app.compaction.decision import StepName
from app.inspector.payload import explained


def step(name: str, outcome: str, tokens: int | None = None, summaries: int = 0, reason: str | None = None) -> Any:
    return {"step": name, "outcome": outcome, "tokens": tokens, "summaries": summaries, "reason": reason}


def plan(*steps: Any, **changes: Any) -> dict[str, Any]:
    told = {
        "window": 8_000,
        "window_source": "config",
        "limit": 7_600,
        "trigger": 5_320,
        "target": 3_800,
        "floor": 66,
        "estimated": 6_432,
        "forwarded": 1_585,
        "steps": steps,
    }
    return told | changes


def test_where_nothing_was_due_one_sentence_says_so() -> None:
    (only,) = explained(None, 900)
    assert only.title == "Nothing was due"
    assert "900 tokens" in only.text


def test_what_was_tried_and_refused_says_why() -> None:
    told = explained(
        plan(
            step("summarise", "failed", reason="summary_empty: timeout"),
            step("widest", "refused", 9_000, 1, "over_the_limit"),
            step("prune", "sent", 7_000),
        ),
        0,
    )
    assert [each.title for each in told[3:6]] == ["Not summarised", "Not enough", "Chosen"]
    assert "summary_empty: timeout" in told[3].text
    assert "over_the_limit" in told[4].text


@pytest.mark.parametrize("name", get_args(StepName))
def test_every_step_has_words(name: str) -> None:
    outcomes = {
        "stored": ["fits", "too_large"],
        "mask": ["set", "put_off"],
        "summarise": [each.name.lower() for each in Outcome],
    }
    for outcome in outcomes.get(name, ["sent"] if name == "unchanged" else ["sent", "refused"]):
        (told,) = explained(plan(step(name, outcome, 10, 1)), 0)[3:4]
        assert told.title
        assert told.text.endswith(".")
        assert "_" not in told.text

"""Position pruning: large results are trimmed or cleared by their age, whatever the pressure is."""

from __future__ import annotations

from typing import Any

from app.core.history.messages import Message
from app.core.stages.position_pruning import PLACEHOLDER, PositionPruning, prune_by_position
from app.core.view.reading import whole
from app.core.view.view import Altered, Conversation, View
from tests.unit.conversations import conversation, cost, message


def step(number: int, characters: int = 60_000) -> list[Message]:
    return [
        message("user", f"read {number}"),
        message("assistant", calls=[f"c{number}"], tokens=10),
        message("tool", "w " * (characters // 2), answers=f"c{number}"),
        message("assistant", "long"),
    ]


def talk_of(*sizes: int) -> Conversation:
    return conversation(*(m for number, size in enumerate(sizes) for m in step(number, size)), message("user", "q"))


def pruned(talk: Conversation, view: View | None = None, **settings: Any) -> dict[int, str]:
    left = prune_by_position(talk, view or whole(talk), PositionPruning(**settings), cost)
    return {part.index: part.by for part in left.parts if isinstance(part, Altered)}


TALK = talk_of(*[60_000] * 10)
"""41 messages; results at 2, 6, 10, ... 38."""


def test_the_older_half_is_cleared_and_what_is_less_old_trimmed() -> None:
    assert pruned(TALK) == {**dict.fromkeys((2, 6, 10, 14, 18), "cleared"), **dict.fromkeys((22, 26), "trimmed")}


def test_instructions_count_for_the_age() -> None:
    rules = [message("system", "rule")] * 9
    talk = conversation(*rules, *(m for number in range(10) for m in step(number)), message("user", "q"))
    assert pruned(talk)[14] == "cleared"
    assert pruned(talk)[18] == "trimmed"


def test_what_is_left_says_what_was_there() -> None:
    view = prune_by_position(TALK, whole(TALK), PositionPruning(), cost)
    left = {part.index: part.texts[0] for part in view.parts if isinstance(part, Altered)}
    assert left[2] == PLACEHOLDER
    assert left[22].endswith("[Tool result trimmed: kept first 1500 chars and last 1500 chars of 60000 chars.]")
    assert view.actions == ("trimmed", "cleared")


def test_a_result_that_was_shortened_before_is_trimmed_from_the_original() -> None:
    shortened = Altered(22, ("w " * 10_000,), 10_000, "faded")
    view = View((*whole(TALK).parts[:0], shortened), 10_000)
    left = prune_by_position(TALK, view, PositionPruning(), cost)
    assert isinstance(left.parts[0], Altered)
    assert "of 60000 chars" in left.parts[0].texts[0]


def test_small_results_and_the_last_turns_of_the_assistant_are_left_alone() -> None:
    assert pruned(talk_of(*[49_999] * 10)) == {}
    assert pruned(talk_of(50_000, *[10] * 9)) == {2: "cleared"}
    assert set(pruned(TALK, keep_last_assistants=8)) == {2, 6}
    assert set(pruned(TALK, keep_last_assistants=0, soft_trim_ratio=0.0)) == set(range(2, 39, 4))
    assert pruned(talk_of(*[60_000] * 2)) == {}


def test_an_assistants_turn_is_a_run_of_its_messages_and_their_results() -> None:
    agent = conversation(
        *step(0),
        *(m for number in range(1, 4) for m in step(number)[1:3]),
        *(message("user", "and?"), message("assistant", "yes"), message("user", "so?"), message("assistant", "so")),
    )
    assert pruned(agent, keep_last_assistants=2) != {}
    assert pruned(agent, keep_last_assistants=3) == {}


def test_what_stands_before_the_first_user_message_is_protected() -> None:
    early = [message("assistant", calls=["e"], tokens=5), message("tool", "w " * 30_000, answers="e")]
    talk = conversation(*early, *(m for number in range(10) for m in step(number)), message("user", "q"))
    assert 1 not in pruned(talk)
    assert pruned(conversation(*early, *step(0)[1:] * 4)) == {}

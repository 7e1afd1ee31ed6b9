"""Reading: the least view that fits."""

import pytest
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.chunks import SummaryChunk
from app.compaction.planning_state import Path, build_view, paths
from app.compaction.view import (
    Carried,
    Conversation,
    Summary,
    Verbatim,
    turn_digests,
    whole,
)
from tests.unit.conversations import chunk, conversation, least_view, message, sure, turns, words

SAID = [message("system", "rules here"), *turns(10, size=50), message("user", "last question now")]
TALK = conversation(*SAID)
"""Instructions of 2 tokens, 20 messages of 50 each, a last one of 3."""
MADE = [chunk(TALK, 0, 4, continued=True), chunk(TALK, 4, 8, continued=True), chunk(TALK, 8, 12)]
"""Chunks of one compaction."""
FOLD = chunk(TALK, 0, 8, level=1, id="fold", tokens=5)


def c(start: int, stop: int, **changes: object) -> SummaryChunk:
    return chunk(TALK, start, stop, **changes)


READ: dict[str, tuple[list[SummaryChunk], int, str | None]] = {
    "of the views that fit the one that covers least is taken": ([c(0, 4), c(0, 8), c(0, 12)], 700, "c0-8"),
    "a chunk made ahead does not move the prefix before the trigger": ([c(0, 4)], 2_000, ""),
    "no more chunks than are needed": ([c(4, 8), c(0, 4), c(10, 12)], 830, "c0-4"),
    "chunks join end to start": ([c(4, 8), c(0, 4), c(10, 12)], 700, "c0-4 c4-8"),
    "at equal coverage fewer chunks win": ([c(0, 4), c(4, 8), c(0, 8, tokens=60)], 700, "c0-8"),
    "also where the path of the fewer is found later": (
        [c(0, 2), c(2, 4), c(4, 8), c(0, 6, tokens=60), c(6, 8)],
        700,
        "c0-6 c6-8",
    ),
    "at equal coverage and length the shorter summaries win": (
        [c(0, 4, tokens=30), c(4, 8, tokens=30), c(0, 2, tokens=10), c(2, 8, tokens=10)],
        700,
        "c0-2 c2-8",
    ),
    "then the smaller ids": ([c(0, 4, id="b"), c(0, 4, id="a")], 850, "a"),
    "a view never ends in a fold": ([FOLD], 700, None),
    "a fold stands before another chunk": ([FOLD, c(8, 12)], 700, "fold c8-12"),
    # One of them would bring the view under the trigger: then each of the others would break the prefix later.
    "chunks of one compaction are used together": (MADE, 1_000, "c0-4 c4-8 c8-12"),
    "chunks that were made alone are not": ([replace(MADE[0], continued=False), *MADE[1:]], 1_000, "c0-4"),
    "a companion that failed is not waited for": (MADE[:2], 1_000, "c0-4 c4-8"),
    "nor one of another branch": ([*MADE[:2], c(10, 12)], 1_000, "c0-4 c4-8"),
    "nor a fold": ([MADE[0], c(4, 8, level=1, id="fold")], 1_000, "c0-4"),
}


@pytest.mark.parametrize(("stored", "line", "used"), READ.values(), ids=READ)
def test_the_least_view_is_read_from_what_is_stored_in_any_order(
    stored: list[SummaryChunk], line: int, used: str | None
) -> None:
    for order in (stored, stored[::-1]):
        view = least_view(TALK, order, Trigger(line))
        assert (view and " ".join(chunk.id for chunk in view.chunks)) == used


def test_chunks_of_one_compaction_are_not_mixed_with_folds_of_another() -> None:
    """Such a view would cover less than either, and give way to one of them a turn later."""
    folds = [c(0, 2, level=1, id="f1", continued=True), c(2, 4, level=1, id="f2")]
    later = [c(4, 10, level=1, id="f3"), c(10, 14)]
    used = {tuple(c.id for c in path.chunks) for path in paths(TALK, [*MADE, *folds, *later])}
    assert ("c0-4", "f3", "c10-14") not in used
    assert ("f1", "f2", "f3", "c10-14") in used
    assert ("f1", "f2", "c4-8", "c8-12") in used


STEPS = [message("user", words(50)), message("assistant", calls=["a", "b"]), message("tool", "r", answers="a")]
CUT = conversation(*STEPS, message("user", "next"))
"""A client that cut parallel results once, and may send the rest in another branch."""
FULL = conversation(*STEPS, message("tool", words(50), answers="b"), message("user", "next"))
BRANCH = conversation(*SAID[:3], message("user", words(50, "edited")), *SAID[4:])
APPLIES = {
    "a chunk over what was edited": (BRANCH, c(0, 8), 700, False),
    "a chunk before what was edited": (BRANCH, c(0, 2), 930, True),
    "a chunk of another tenant": (conversation(*SAID, tenant="other"), c(0, 8), 700, False),
    "other instructions": (conversation(message("system", "another date"), *SAID[1:]), c(0, 8), 700, True),
    "the last unit": (TALK, c(0, 21), 700, False),
    "all but the last unit": (TALK, c(0, 20), 700, True),
    "a chunk of whole units": (CUT, chunk(CUT, 0, 3), 30, True),
    "a chunk that ends inside a unit of this history": (FULL, chunk(CUT, 0, 3), 80, False),
}


@pytest.mark.parametrize(("talk", "made", "line", "applies"), APPLIES.values(), ids=APPLIES)
def test_a_chunk_applies_where_the_history_begins_with_what_it_stands_for(
    talk: Conversation, made: SummaryChunk, line: int, applies: bool
) -> None:
    assert (least_view(talk, [made], Trigger(line)) is not None) is applies


def test_the_last_user_message_is_covered_only_where_it_is_carried() -> None:
    agent = conversation(
        *turns(2), message("user", "do it"), message("assistant", words(50, "step")), message("assistant", "more")
    )
    hidden, carried = chunk(agent, 0, 6), chunk(agent, 0, 6, carried=(4,))
    assert least_view(agent, [hidden], Trigger(200)) is None
    view = sure(least_view(agent, [carried], Trigger(200)))
    assert view.parts == (Summary(carried), Carried(4), Verbatim(6, 7))
    assert view.tokens == 20 + 2 + 1


def test_the_floor_is_what_no_stage_may_touch() -> None:
    """Instructions, tools and the last user message; the last unit can only be shortened, never summarised."""
    assert (TALK.floor, TALK.whole_floor) == (2 + 3, 2 + 3)
    agent = conversation(message("user", "do it"), message("assistant", "step one"), message("assistant", "b"), fixed=7)
    assert (agent.floor, agent.whole_floor) == (7 + 2, 7 + 2 + 1)
    alone = conversation(message("assistant", "hello there"))
    assert (alone.floor, alone.whole_floor) == (0, 2)
    empty = conversation(message("system", "rules"))
    assert (empty.floor, whole(empty).parts) == (1, ())


# Pins


def pinned_talk(*positions: int) -> Conversation:
    return conversation(*SAID).with_pins(positions)


def test_copies_count_where_the_view_is_chosen() -> None:
    """A view that fits only without them does not fit."""
    talk = pinned_talk(1)
    assert least_view(talk, [chunk(talk, 0, 8)], Trigger(674)) is None
    assert sure(least_view(talk, [chunk(talk, 0, 8)], Trigger(675))).tokens == 675


def test_without_signed_thinking_no_turn_is_looked_up() -> None:
    assert turn_digests(TALK) == []


def test_behind_a_summary_of_everything_nothing_stands() -> None:
    everything = c(0, len(TALK.transcript))
    assert build_view(TALK, Path((everything,), len(TALK.transcript), 20)).parts == (Summary(everything),)

"""Reading: the least view that fits."""

import pytest
from msgspec.structs import replace

from app.compaction.budget import Trigger
from app.compaction.chunks import SummaryChunk
from app.compaction.planning_state import Path, build_view, paths, pinned_tokens
from app.compaction.view import (
    Altered,
    Carried,
    Conversation,
    Note,
    Part,
    Pinned,
    Pruned,
    Summary,
    Verbatim,
    View,
    whole,
)
from app.conversation.messages import Media
from tests.unit.conversations import chunk, conversation, least_view, message, sure, turns, widest_path, words

SAID = [message("system", "rules here"), *turns(10, size=50), message("user", "last question now")]
TALK = conversation(*SAID)
"""Instructions of 2 tokens, 20 messages of 50 each, a last one of 3."""
MADE = [chunk(TALK, 0, 4, continued=True), chunk(TALK, 4, 8, continued=True), chunk(TALK, 8, 12)]
"""Chunks of one compaction."""
FOLD = chunk(TALK, 0, 8, level=1, id="fold", tokens=5)


def test_without_chunks_only_the_whole_history_is_a_view() -> None:
    assert least_view(TALK, [], Trigger(2_000)) == whole(TALK)
    assert least_view(TALK, [], Trigger(1_004)) is None
    assert whole(TALK).tokens == TALK.tokens == 1_005
    assert paths(TALK, []) == [Path()]
    assert build_view(TALK, Path()) == whole(TALK)


def test_a_view_that_fits_is_the_summaries_and_what_stands_behind_them() -> None:
    made = chunk(TALK, 0, 8)
    view = sure(least_view(TALK, [made], Trigger(700)))
    assert view.parts == (Summary(made), Verbatim(8, 21))
    assert view.tokens == 2 + 20 + 12 * 50 + 3


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


def test_a_fold_is_preferred_to_what_it_stands_for() -> None:
    assert widest_path(TALK, [c(0, 4), c(4, 8), c(8, 12), FOLD]).chunks == (FOLD, c(8, 12))


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


def test_a_pinned_message_is_copied_after_the_summaries_that_stand_for_it() -> None:
    talk = pinned_talk(1, 5, 12)
    made = [chunk(talk, 0, 4), chunk(talk, 4, 8)]
    view = sure(least_view(talk, made, Trigger(800)))
    assert view.parts == (Summary(made[0]), Summary(made[1]), Pinned(1, 2), Pinned(5, 6), Verbatim(8, 21))
    assert view.tokens == 2 + 40 + 2 * 50 + 12 * 50 + 3
    assert view.actions == ("summarized", "pinned")


def test_copies_count_where_the_view_is_chosen() -> None:
    """A view that fits only without them does not fit."""
    talk = pinned_talk(1)
    assert least_view(talk, [chunk(talk, 0, 8)], Trigger(674)) is None
    assert sure(least_view(talk, [chunk(talk, 0, 8)], Trigger(675))).tokens == 675


def test_a_pinned_call_is_copied_with_its_results() -> None:
    steps = [message("assistant", calls=["a"]), message("tool", "r", answers="a"), message("user", words(30))]
    talk = conversation(message("user", words(50)), *steps, message("assistant", "done"), message("user", "q"))
    talk = talk.with_pins((2,))
    assert talk.kept.units == ((1, 3),)
    assert talk.kept.messages == {1, 2, 5}
    made = chunk(talk, 0, 4)
    assert build_view(talk, Path((made,), 4, 20)).parts == (Summary(made), Pinned(1, 3), Verbatim(4, 6))


def test_what_a_summary_carries_is_not_copied_too() -> None:
    agent = conversation(message("user", "do it"), message("assistant", "a"), message("assistant", "b"))
    agent = agent.with_pins((0,))
    made = chunk(agent, 0, 2, carried=(0,))
    view = build_view(agent, Path((made,), 2, 22))
    assert (view.parts, view.tokens) == ((Summary(made), Carried(0), Verbatim(2, 3)), 22 + 1)


def test_what_pins_add_at_most_grows_with_what_is_summarised() -> None:
    talk = pinned_talk(1, 5)
    assert [pinned_tokens(talk, covered) for covered in (0, 1, 2, 5, 6, 20)] == [0, 0, 50, 50, 100, 100]
    assert pinned_tokens(pinned_talk(), 20) == 0


def test_media_anywhere_are_seen() -> None:
    picture = replace(message("system", "see"), media=(Media("image", 10),))
    assert conversation(picture, message("user", "q")).history.holds_media
    assert conversation(message("user", "q"), replace(picture, role="user")).history.holds_media
    assert not TALK.history.holds_media


@pytest.mark.parametrize(
    ("parts", "actions"),
    [
        ((Verbatim(0, 2),), ()),
        ((Pruned(0, 1), Note("stub", "[left out]", 3), Verbatim(1, 2)), ("pruned", "stub")),
        ((Altered(0, ("x",), 1, "faded"), Altered(1, ("x",), 1, "masked")), ("masked", "faded")),
        ((Pruned(0, 1, "repaired"), Altered(1, ("x",), 1, "truncated")), ("truncated", "repaired")),
    ],
)
def test_actions_stand_in_the_order_of_the_stages(parts: tuple[Part, ...], actions: tuple[str, ...]) -> None:
    assert View(parts, 10).actions == actions

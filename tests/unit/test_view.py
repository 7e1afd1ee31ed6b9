"""Reading: the least view that fits."""

import pytest
from msgspec.structs import replace

from app.core.history.messages import Media, Message
from app.core.limits.trigger import over
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import Path, build_view, paths, pinned_tokens, whole
from app.core.view.view import Altered, Carried, Conversation, Note, Part, Pinned, Pins, Pruned, Summary, Verbatim, View
from tests.unit.conversations import chunk, conversation, least_view, message, turns, widest_path, words

TALK = conversation(message("system", "rules here"), *turns(10, size=50), message("user", "last question now"))
"""Instructions of 2 tokens, 20 messages of 50 each, a last one of 3."""


def test_without_chunks_only_the_whole_history_is_a_view() -> None:
    assert least_view(TALK, [], over(2_000)) == whole(TALK)
    assert least_view(TALK, [], over(1_004)) is None
    assert whole(TALK).tokens == TALK.tokens == 1_005


def test_of_the_views_that_fit_the_one_that_covers_least_is_taken() -> None:
    chunks = [chunk(TALK, 0, 4), chunk(TALK, 0, 8), chunk(TALK, 0, 12)]
    view = least_view(TALK, chunks, over(700))
    assert view is not None
    assert view.parts == (Summary(chunks[1]), Verbatim(8, 21))
    assert view.tokens == 2 + 20 + 12 * 50 + 3


def test_a_chunk_waits_until_it_is_needed() -> None:
    """A chunk made ahead does not move the prompt's prefix before the trigger."""
    assert least_view(TALK, [chunk(TALK, 0, 4)], over(2_000)) == whole(TALK)


def test_chunks_join_end_to_start() -> None:
    chunks = [chunk(TALK, 4, 8), chunk(TALK, 0, 4), chunk(TALK, 10, 12)]
    view = least_view(TALK, chunks, over(830))
    assert view is not None
    assert [part.chunk.id for part in view.parts if isinstance(part, Summary)] == ["c0-4"]
    view = least_view(TALK, chunks, over(700))
    assert view is not None
    assert [c.id for c in view.chunks] == ["c0-4", "c4-8"]


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        ([chunk(TALK, 0, 4), chunk(TALK, 4, 8)], [chunk(TALK, 0, 8, tokens=60)]),
        # The last chunk of the fewer begins later, so that path is found later.
        ([chunk(TALK, 0, 2), chunk(TALK, 2, 4), chunk(TALK, 4, 8)], [chunk(TALK, 0, 6, tokens=60), chunk(TALK, 6, 8)]),
    ],
)
def test_at_equal_coverage_fewer_chunks_win(more: list[SummaryChunk], fewer: list[SummaryChunk]) -> None:
    view = least_view(TALK, [*more, *fewer], over(700))
    assert view is not None
    assert view.chunks == tuple(fewer)


def test_at_equal_coverage_and_length_the_shorter_summaries_then_the_smaller_ids_win() -> None:
    cheap = [chunk(TALK, 0, 2, tokens=10), chunk(TALK, 2, 8, tokens=10)]
    dear = [chunk(TALK, 0, 4, tokens=30), chunk(TALK, 4, 8, tokens=30)]
    view = least_view(TALK, [*dear, *cheap], over(700))
    assert view is not None
    assert view.chunks == tuple(cheap)
    same = [chunk(TALK, 0, 4, id="b"), chunk(TALK, 0, 4, id="a")]
    for order in (same, same[::-1]):
        view = least_view(TALK, order, over(850))
        assert view is not None
        assert view.chunks[0].id == "a"


def test_the_highest_version_of_a_chunk_is_read() -> None:
    versions = [chunk(TALK, 0, 8, version=2, id="edited"), chunk(TALK, 0, 8, id="first")]
    for order in (versions, versions[::-1]):
        view = least_view(TALK, order, over(700))
        assert view is not None
        assert view.chunks[0].id == "edited"


def test_a_view_never_ends_in_a_fold() -> None:
    fold = chunk(TALK, 0, 8, level=1, id="fold", tokens=5)
    assert least_view(TALK, [fold], over(700)) is None
    view = least_view(TALK, [fold, chunk(TALK, 8, 12)], over(700))
    assert view is not None
    assert [c.id for c in view.chunks] == ["fold", "c8-12"]


def test_chunks_of_one_compaction_are_used_together() -> None:
    """One of them would bring the view under the trigger: then each of the others would break the prefix later."""
    made = [chunk(TALK, 0, 4, continued=True), chunk(TALK, 4, 8, continued=True), chunk(TALK, 8, 12)]
    view = least_view(TALK, made, over(1_000))
    assert view is not None
    assert view.chunks == tuple(made)
    alone = least_view(TALK, [replace(made[0], continued=False), *made[1:]], over(1_000))
    assert alone is not None
    assert len(alone.chunks) == 1


def test_a_chunk_whose_companions_do_not_apply_is_used_without_them() -> None:
    """One of them failed, or belongs to another branch."""
    made = [chunk(TALK, 0, 4, continued=True), chunk(TALK, 4, 8, continued=True), chunk(TALK, 8, 12)]
    for left in (made[:2], [made[0], made[1], chunk(TALK, 10, 12)]):
        view = least_view(TALK, left, over(1_000))
        assert view is not None
        assert view.chunks == tuple(made[:2])
    fold = chunk(TALK, 4, 8, level=1, id="fold")
    view = least_view(TALK, [made[0], fold], over(1_000))
    assert view is not None
    assert view.chunks == (made[0],)


def test_chunks_of_one_compaction_are_not_mixed_with_folds_of_another() -> None:
    """Such a view would cover less than either, and give way to one of them a turn later."""
    made = [chunk(TALK, 0, 4, continued=True), chunk(TALK, 4, 8, continued=True), chunk(TALK, 8, 12)]
    folds = [chunk(TALK, 0, 2, level=1, id="f1", continued=True), chunk(TALK, 2, 4, level=1, id="f2")]
    later = [chunk(TALK, 4, 10, level=1, id="f3"), chunk(TALK, 10, 14)]
    used = {tuple(c.id for c in path.chunks) for path in paths(TALK, [*made, *folds, *later])}
    assert ("c0-4", "f3", "c10-14") not in used
    assert ("f1", "f2", "f3", "c10-14") in used
    assert ("f1", "f2", "c4-8", "c8-12") in used


def test_a_fold_is_preferred_to_what_it_stands_for() -> None:
    parts = [chunk(TALK, 0, 4), chunk(TALK, 4, 8), chunk(TALK, 8, 12)]
    fold = chunk(TALK, 0, 8, level=1, id="fold")
    assert widest_path(TALK, [*parts, fold]).chunks == (fold, parts[2])


def test_an_edited_history_gets_no_chunk_of_the_original() -> None:
    edited = [*turns(10, size=50), message("user", "last question now")]
    edited[2] = message("user", words(50, "edited"))
    branch = conversation(message("system", "rules here"), *edited)
    assert least_view(branch, [chunk(TALK, 0, 8)], over(700)) is None
    assert least_view(branch, [chunk(TALK, 0, 2)], over(930)) is not None


def test_another_tenant_gets_no_chunk() -> None:
    other = conversation(*_messages(), tenant="other")
    assert least_view(other, [chunk(TALK, 0, 8)], over(700)) is None


def test_changed_instructions_do_not_matter() -> None:
    dated = conversation(message("system", "another date"), *_messages()[1:])
    assert least_view(dated, [chunk(TALK, 0, 8)], over(700)) is not None


def test_the_last_unit_stays_verbatim() -> None:
    assert least_view(TALK, [chunk(TALK, 0, 21)], over(700)) is None
    assert least_view(TALK, [chunk(TALK, 0, 20)], over(700)) is not None


def test_a_chunk_that_ends_inside_a_unit_of_this_history_does_not_apply() -> None:
    """A client that cut parallel results once may send the rest in another branch."""
    start = [message("user", words(50)), message("assistant", calls=["a", "b"]), message("tool", "r", answers="a")]
    cut = conversation(*start, message("user", "next"))
    full = conversation(*start, message("tool", words(50), answers="b"), message("user", "next"))
    assert least_view(cut, [chunk(cut, 0, 3)], over(30)) is not None
    assert least_view(full, [chunk(cut, 0, 3)], over(80)) is None


def test_the_last_user_message_is_covered_only_where_it_is_carried() -> None:
    agent = conversation(
        *turns(2), message("user", "do it"), message("assistant", words(50, "step")), message("assistant", "more")
    )
    hidden, carried = chunk(agent, 0, 6), chunk(agent, 0, 6, carried=(4,))
    assert least_view(agent, [hidden], over(200)) is None
    view = least_view(agent, [carried], over(200))
    assert view is not None
    assert view.parts == (Summary(carried), Carried(4), Verbatim(6, 7))
    assert view.tokens == 20 + 2 + 1


def test_an_empty_history_has_an_empty_view() -> None:
    empty = conversation(message("system", "rules"))
    assert whole(empty).parts == ()
    assert empty.floor == 1


def test_the_floor_is_what_no_stage_may_touch() -> None:
    """Instructions, tools and the last user message; the last unit can only be shortened, never summarised."""
    assert (TALK.floor, TALK.whole_floor) == (2 + 3, 2 + 3)
    agent = conversation(message("user", "do it"), message("assistant", "step one"), message("assistant", "b"), fixed=7)
    assert (agent.floor, agent.whole_floor) == (7 + 2, 7 + 2 + 1)
    alone = conversation(message("assistant", "hello there"))
    assert (alone.floor, alone.whole_floor) == (0, 2)


def test_paths_hold_the_empty_one() -> None:
    assert paths(TALK, []) == [Path()]
    assert build_view(TALK, Path()) == whole(TALK)


def _messages() -> list[Message]:
    return [*TALK.instructions, *TALK.transcript.messages]


NOTE = Note("pinned_text", "The rules hold.", 4)


def pinned_talk(*positions: int, note: Note | None = None) -> Conversation:
    talk = conversation(message("system", "rules here"), *turns(10, size=50), message("user", "last question now"))
    return talk.with_pins(Pins(positions, note))


def test_a_pinned_message_is_copied_after_the_summaries_that_stand_for_it() -> None:
    talk = pinned_talk(1, 5, 12)
    made = [chunk(talk, 0, 4), chunk(talk, 4, 8)]
    view = least_view(talk, made, over(800))
    assert view is not None
    assert view.parts == (Summary(made[0]), Summary(made[1]), Pinned(1, 2), Pinned(5, 6), Verbatim(8, 21))
    assert view.tokens == 2 + 40 + 2 * 50 + 12 * 50 + 3
    assert view.actions == ("summarized", "pinned")


def test_without_summaries_nothing_is_copied() -> None:
    talk = pinned_talk(1, note=NOTE)
    assert whole(talk).parts == (Verbatim(0, 21),)
    assert least_view(talk, [], over(2_000)) == whole(talk)


def test_copies_count_where_the_view_is_chosen() -> None:
    """A view that fits only without them does not fit."""
    talk = pinned_talk(1)
    assert least_view(talk, [chunk(talk, 0, 8)], over(674)) is None
    view = least_view(talk, [chunk(talk, 0, 8)], over(675))
    assert view is not None
    assert view.tokens == 675


def test_the_operators_text_follows_the_copies_and_stands_without_them_too() -> None:
    talk = pinned_talk(1, note=NOTE)
    made = chunk(talk, 0, 8)
    view = build_view(talk, Path((made,), 8, made.tokens))
    assert view.parts == (Summary(made), Pinned(1, 2), NOTE, Verbatim(8, 21))
    assert view.tokens == 2 + 20 + 50 + 4 + 12 * 50 + 3
    alone = pinned_talk(note=NOTE)
    view = build_view(alone, Path((made,), 8, made.tokens))
    assert view.parts == (Summary(made), NOTE, Verbatim(8, 21))
    assert view.actions == ("summarized",)


def test_a_pinned_call_is_copied_with_its_results() -> None:
    steps = [message("assistant", calls=["a"]), message("tool", "r", answers="a"), message("user", words(30))]
    talk = conversation(message("user", words(50)), *steps, message("assistant", "done"), message("user", "q"))
    talk = talk.with_pins(Pins((2,)))
    assert talk.pinned_units == ((1, 3),)
    assert talk.untouchable == {1, 2, 5}
    made = chunk(talk, 0, 4)
    assert build_view(talk, Path((made,), 4, 20)).parts == (Summary(made), Pinned(1, 3), Verbatim(4, 6))


def test_what_a_summary_carries_is_not_copied_too() -> None:
    agent = conversation(message("user", "do it"), message("assistant", "a"), message("assistant", "b"))
    agent = agent.with_pins(Pins((0,)))
    made = chunk(agent, 0, 2, carried=(0,))
    view = build_view(agent, Path((made,), 2, 22))
    assert view.parts == (Summary(made), Carried(0), Verbatim(2, 3))
    assert view.tokens == 22 + 1


def test_what_pins_add_at_most_grows_with_what_is_summarised() -> None:
    talk = pinned_talk(1, 5, note=NOTE)
    assert [pinned_tokens(talk, covered) for covered in (0, 1, 2, 5, 6, 20)] == [0, 4, 54, 54, 104, 104]
    assert pinned_tokens(pinned_talk(), 20) == 0


def test_later_pins_replace_earlier_ones() -> None:
    talk = pinned_talk(1)
    assert talk.untouchable == {1, 20}
    talk = talk.with_pins(Pins((3,)))
    assert talk.pinned_units == ((3, 4),)
    assert talk.untouchable == {3, 20}


def test_media_anywhere_are_seen() -> None:
    picture = replace(message("system", "see"), media=(Media("image", 10),))
    assert conversation(picture, message("user", "q")).holds_media
    assert conversation(message("user", "q"), replace(picture, role="user")).holds_media
    assert not TALK.holds_media


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


def test_the_highest_floor_stays_once_it_was_reached() -> None:
    """And counts no results but those that came last."""
    asking = replace(message("user", words(500)), answers=("a",))
    said = [message("system", words(10)), message("user", words(90)), message("assistant", "ok", calls=["a"]), asking]
    said += [message("developer", words(5)), message("assistant", "ok"), message("user", "q")]
    floors = [conversation(*said[:stop], fixed=7).highest_floor for stop in range(1, len(said) + 1)]
    assert floors == [17, 107, 107, 517, 522, 522, 112]

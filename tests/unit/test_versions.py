"""Versions of a summary: what an edit changes, what is undone together, and that no view uses what is not in use."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from app.core.limits.trigger import Trigger
from app.core.summary.versions import EDITED, addressed, edited, last_compaction, renumbered
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import paths
from tests.unit.conversations import chunk, conversation, count, least_view, message, turns

TALK = conversation(*turns(8), message("user", "q"))
OLD = addressed(replace(chunk(TALK, 0, 4), values=("ORD-1",), rules=("Never push.",), text="notes on ORD-1"))
GONE = datetime(2026, 11, 22, tzinfo=UTC)


def edit(**members: object) -> SummaryChunk:
    return edited(OLD, "c", count, **members)  # type: ignore[arg-type]


def test_an_edit_is_the_next_version_of_the_same_range() -> None:
    new = edit(text="  other notes, longer than the old ones ")
    assert (new.version, new.text, new.prompt_version) == (2, "other notes, longer than the old ones", EDITED)
    assert (new.from_digest, new.through_digest, new.level) == (OLD.from_digest, OLD.through_digest, OLD.level)
    assert (new.values, new.rules, new.values_kept, new.conversation_id) == (OLD.values, OLD.rules, 0.0, "c")
    assert new.id != OLD.id
    assert new.tokens > count(new.text)


def test_values_and_rules_are_edited_beside_the_text() -> None:
    new = edit(values=["ORD-2"], rules=[])
    assert (new.text, new.values, new.rules, new.values_kept) == (OLD.text, ("ORD-2",), (), 0.0)
    assert new.tokens < edit(values=["ORD-2"]).tokens
    assert edit(values=[]).values_kept is None


def test_what_changes_nothing_is_no_version() -> None:
    assert edit() is OLD
    assert edit(text=f" {OLD.text}\n", values=["ORD-1"], rules=["Never push."]) is OLD


def test_two_versions_of_the_same_text_have_ids_of_their_own() -> None:
    assert renumbered(OLD, 2).id != OLD.id
    assert renumbered(OLD, 2).text == OLD.text
    assert renumbered(OLD, 1) == OLD


def test_no_view_uses_what_is_not_in_use() -> None:
    gone = replace(OLD, deactivated_at=GONE)
    assert [path.chunks for path in paths(TALK, [gone])] == [()]
    new = edit(text="other notes")
    assert least_view(TALK, [gone, new, OLD], Trigger(TALK.tokens - 1)).chunks == (new,)  # type: ignore[union-attr]
    assert paths(TALK, [replace(new, deactivated_at=GONE), OLD]) == paths(TALK, [OLD])


# The last compaction

FIRST, SECOND, THIRD = chunk(TALK, 0, 4), chunk(TALK, 4, 8), chunk(TALK, 8, 12)


def test_the_last_one_of_the_payload_is_undone_first() -> None:
    """Whatever was stored after it: what is made ahead has changed nothing yet."""
    assert last_compaction([FIRST, SECOND], [THIRD, SECOND, FIRST]) == (SECOND,)


def test_without_one_in_the_payload_it_is_the_one_stored_last() -> None:
    assert last_compaction([], [THIRD, SECOND, FIRST]) == (THIRD,)
    assert last_compaction([replace(FIRST, deactivated_at=GONE)], [SECOND, FIRST]) == (SECOND,)
    assert last_compaction([], []) == ()


def test_what_was_made_together_is_undone_together() -> None:
    first, second = replace(FIRST, continued=True), replace(SECOND, continued=True)
    assert last_compaction([first, second, THIRD], []) == (first, second, THIRD)
    assert last_compaction([], [second, THIRD, first]) == (first, second, THIRD)
    assert last_compaction([FIRST, second, THIRD], []) == (second, THIRD)
    elsewhere = replace(first, series="focus")
    assert last_compaction([elsewhere, SECOND], []) == (SECOND,)


def test_what_was_made_anew_for_a_longer_history_is_undone_without_what_is_around_it() -> None:
    first, second = (
        replace(FIRST, continued=True, history_length=14),
        replace(SECOND, continued=True, history_length=16),
    )
    third = replace(THIRD, history_length=14)
    assert last_compaction([first, second], []) == (second,)
    assert last_compaction([], [second, third, first]) == (second,)


def test_a_fold_is_nothing_of_its_own() -> None:
    fold = replace(chunk(TALK, 0, 8), level=1, children=(FIRST.id, SECOND.id))
    assert last_compaction([fold, THIRD], [fold, THIRD]) == (THIRD,)
    assert last_compaction([fold], [fold]) == ()

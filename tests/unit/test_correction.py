"""Correction of a summary: what a person's text changes in a chunk."""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.chunk_builder import EDITED, addressed, corrected
from app.compaction.chunks import SummaryChunk, UserWords
from tests.unit.conversations import chunk, conversation, count, message, turns

TALK = conversation(*turns(8), message("user", "q"))
SAID = (UserWords(1, "Never push."),)
OLD = addressed(replace(chunk(TALK, 0, 4), values=("ORD-1",), user_words=SAID, text="notes on ORD-1"))


def correct(**members: object) -> SummaryChunk:
    return corrected(OLD, "c", count, **members)  # type: ignore[arg-type]


def test_a_correction_stands_for_the_same_messages() -> None:
    new = correct(text="  other notes, longer than the old ones ")
    assert (new.text, new.prompt_version) == ("other notes, longer than the old ones", EDITED)
    assert (new.from_digest, new.through_digest, new.level) == (OLD.from_digest, OLD.through_digest, OLD.level)
    assert (new.values, new.user_words, new.values_kept, new.conversation_id) == (OLD.values, OLD.user_words, 0.0, "c")
    assert new.id != OLD.id
    assert new.tokens > count(new.text)


def test_values_and_user_words_are_corrected_beside_the_text() -> None:
    new = correct(values=["ORD-2"], user_words=[])
    assert (new.text, new.values, new.user_words, new.values_kept) == (OLD.text, ("ORD-2",), (), 0.0)
    assert new.tokens < correct(values=["ORD-2"]).tokens
    assert correct(values=[]).values_kept is None


def test_members_that_change_nothing_leave_the_chunk_as_it_is() -> None:
    assert correct() is OLD
    assert correct(text=f" {OLD.text}\n", values=["ORD-1"], user_words=[*SAID]) is OLD

"""What holds for every view however summaries are corrected, deleted and made again between requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.compaction.chunk_builder import ChunkBuilder, corrected
from app.compaction.chunks import SummaryChunk
from app.compaction.planning_state import build_view
from app.compaction.verify import problems
from app.compaction.view import Conversation, Summary, View
from app.conversation.messages import Message
from tests.unit.conversations import (
    conversation,
    count,
    least_view,
    message,
    notes,
    plan_compaction,
    play,
    widest_path,
    words,
)
from tests.unit.test_view_properties import BUDGET, IN_PARTS, _payload, histories, requests


@dataclass
class Chunks:
    """A store of chunks, with one for each range."""

    random: Random
    stored: dict[object, SummaryChunk] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def view(self, talk: Conversation) -> View:
        found = least_view(talk, self.stored.values(), BUDGET.trigger)
        if found is None and (plan := plan_compaction(talk, self.stored.values(), BUDGET, IN_PARTS, "s")) is not None:
            _, compaction = play(ChunkBuilder(talk, "c", plan, BUDGET, IN_PARTS, count), *[notes()] * 100)
            for chunk in compaction.made:
                self.stored.setdefault(place(chunk), chunk)
                self.gone.discard(chunk.id)  # A model wrote the same text again.
            found = least_view(talk, self.stored.values(), BUDGET.trigger)
        return found or build_view(talk, widest_path(talk, self.stored.values()))

    def correct(self) -> None:
        if self.stored:
            old = self.random.choice(list(self.stored.values()))
            text = words(self.random.randint(5, 60), f"edit{len(self.gone)}")
            self.delete([old])
            self.stored[place(old)] = corrected(old, "c", count, text=text)

    def delete_any(self) -> None:
        self.delete(self.random.choices(list(self.stored.values()), k=1) if self.stored else [])

    def delete(self, chunks: Iterable[SummaryChunk]) -> None:
        gone = {chunk.id for chunk in chunks}
        for chunk in sorted(self.stored.values(), key=lambda chunk: chunk.level):
            if not gone.isdisjoint(chunk.children):
                gone.add(chunk.id)
        self.gone |= gone
        self.stored = {key: chunk for key, chunk in self.stored.items() if chunk.id not in gone}


def place(chunk: SummaryChunk) -> tuple[str, int, bytes, bytes]:
    return chunk.series, chunk.level, chunk.from_digest, chunk.through_digest


OFTEN = 0.2
FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""Most of the time goes into compactions."""
RANDOMS = st.randoms(use_true_random=False)


@FEWER
@given(histories(), RANDOMS)
def test_every_view_is_whole_and_uses_nothing_that_was_corrected_or_deleted(
    history: list[list[Message]], random: Random
) -> None:
    chunks = Chunks(random)
    for talk in requests(history):
        view = chunks.view(talk)
        assert [fault for fault in problems(talk, view, BUDGET.limit) if fault != "over_the_limit"] == []
        assert chunks.gone.isdisjoint(chunk.id for chunk in view.chunks)
        if random.random() < OFTEN:
            for act in random.choices([chunks.correct, chunks.delete_any], k=2):
                act()


@FEWER
@given(histories(), RANDOMS)
def test_a_correction_changes_the_payload_where_its_summary_stands_and_nowhere_else(
    history: list[list[Message]], random: Random
) -> None:
    chunks = Chunks(random)
    for talk in requests(history):
        before = chunks.view(talk)
        chunks.correct()
        after = least_view(talk, chunks.stored.values(), BUDGET.trigger)
        if after is None or [place(chunk) for chunk in after.chunks] != [place(chunk) for chunk in before.chunks]:
            continue  # The new text is larger or smaller, and another coverage suffices.
        changed = [one == other for one, other in zip(before.parts, after.parts, strict=True)]
        assert changed.count(False) <= 1
        if False in changed:
            at = changed.index(False)
            assert isinstance(before.parts[at], Summary)
            assert _payload(talk, before)[: len(talk.instructions)] == _payload(talk, after)[: len(talk.instructions)]


@FEWER
@given(histories(), RANDOMS, st.integers(0, 30))
def test_no_other_history_sees_a_correction_of_a_summary_that_is_not_its_own(
    history: list[list[Message]], random: Random, at: int
) -> None:
    """A history that differs from a message on has no summary that stands for it."""
    chunks, sent = Chunks(random), requests(history)
    for talk in sent:
        chunks.view(talk)
    original = sent[-1].transcript.messages
    at = min(at, len(original) - 1)
    other = [*original[:at], message(original[at].role, words(9, "another")), *original[at + 1 :]]
    branch = conversation(message("system", "the rules"), *other)
    before = least_view(branch, chunks.stored.values(), BUDGET.trigger)
    theirs = [chunk for chunk in chunks.stored.values() if chunk.last_index >= at]
    chunks.delete(theirs)
    chunks.stored |= {place(chunk): corrected(chunk, "c", count, text="another text") for chunk in theirs}
    assert least_view(branch, chunks.stored.values(), BUDGET.trigger) == before

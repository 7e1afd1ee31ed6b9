"""What holds for every view however summaries are edited, deactivated and made anew between requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.history.messages import Message
from app.core.summary.compaction import compact
from app.core.summary.versions import edited, last_compaction, renumbered
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import build_view, whole
from app.core.view.verify import problems
from app.core.view.view import Conversation, Summary, View
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

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass
class Archive:
    """A store of chunks in which nothing is ever taken away."""

    random: Random
    chunks: list[SummaryChunk] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """What was edited or deactivated."""

    @property
    def active(self) -> list[SummaryChunk]:
        return [chunk for chunk in self.chunks if chunk.deactivated_at is None]

    def view(self, talk: Conversation) -> View:
        found = least_view(talk, self.chunks, BUDGET.trigger)
        if found is None and (plan := plan_compaction(talk, self.active, BUDGET, IN_PARTS, "s")) is not None:
            _, compaction = play(compact(talk, "c", plan, BUDGET, IN_PARTS, count), *[notes()] * 100)
            self.keep(compaction.made)
            found = least_view(talk, self.chunks, BUDGET.trigger)
        return found or build_view(talk, widest_path(talk, self.active))

    def keep(self, made: Iterable[SummaryChunk]) -> None:
        """As the store does: the next version where all of a range were deactivated."""
        ids: dict[str, str] = {}
        for chunk in made:
            of_range = [old for old in self.chunks if place(old) == place(chunk)]
            if any(old.deactivated_at is None for old in of_range):
                continue
            new = renumbered(chunk, 1 + max((old.version for old in of_range), default=0))
            ids[chunk.id] = new.id
            self.chunks.append(replace(new, children=tuple(ids.get(child, child) for child in new.children)))

    def edit(self) -> None:
        if self.active:
            old = self.random.choice(self.active)
            new = edited(old, "c", count, text=words(self.random.randint(5, 60), f"edit{len(self.chunks)}"))
            self.deactivate([old])
            self.chunks.append(new)

    def undo(self) -> None:
        self.deactivate(last_compaction([], self.active[::-1]))

    def deactivate(self, chunks: Iterable[SummaryChunk]) -> None:
        gone = {chunk.id for chunk in chunks}
        for chunk in sorted(self.chunks, key=lambda chunk: chunk.level):
            if not gone.isdisjoint(chunk.children):
                gone.add(chunk.id)
        self.touched |= gone
        self.chunks = [
            replace(chunk, deactivated_at=chunk.deactivated_at or NOW) if chunk.id in gone else chunk
            for chunk in self.chunks
        ]

    def meddle(self) -> None:
        """What somebody may do between two requests."""
        for act in self.random.choices([self.edit, self.undo], k=2):
            act()


def place(chunk: SummaryChunk) -> tuple[str, int, bytes, bytes]:
    return chunk.series, chunk.level, chunk.from_digest, chunk.through_digest


OFTEN = 0.2
FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""Most of the time goes into compactions."""
RANDOMS = st.randoms(use_true_random=False)


@FEWER
@given(histories(), RANDOMS)
def test_every_view_is_whole_and_uses_nothing_that_was_edited_or_deactivated(
    history: list[list[Message]], random: Random
) -> None:
    archive = Archive(random)
    for talk in requests(history):
        view = archive.view(talk)
        assert [fault for fault in problems(talk, view, BUDGET.limit) if fault != "over_the_limit"] == []
        assert all(chunk.deactivated_at is None and chunk.id not in archive.touched for chunk in view.chunks)
        if random.random() < OFTEN:
            archive.meddle()
    # Of each range one version is in use, and every version there was has an id of its own.
    assert len({place(chunk) for chunk in archive.active}) == len(archive.active)
    assert len({chunk.id for chunk in archive.chunks}) == len(archive.chunks)
    assert len({(place(chunk), chunk.version) for chunk in archive.chunks}) == len(archive.chunks)


@FEWER
@given(histories(), RANDOMS)
def test_an_edit_changes_the_payload_where_its_summary_stands_and_nowhere_else(
    history: list[list[Message]], random: Random
) -> None:
    archive = Archive(random)
    for talk in requests(history):
        before = archive.view(talk)
        archive.edit()
        after = least_view(talk, archive.chunks, BUDGET.trigger)
        if after is None or [place(chunk) for chunk in after.chunks] != [place(chunk) for chunk in before.chunks]:
            continue  # The new text is larger or smaller, and another coverage suffices.
        changed = [one == other for one, other in zip(before.parts, after.parts, strict=True)]
        assert changed.count(False) <= 1
        if False in changed:
            at = changed.index(False)
            assert isinstance(before.parts[at], Summary)
            assert _payload(talk, before)[: len(talk.instructions)] == _payload(talk, after)[: len(talk.instructions)]


@FEWER
@given(histories(), RANDOMS)
def test_without_any_summary_in_use_a_request_is_as_it_was_before_the_first(
    history: list[list[Message]], random: Random
) -> None:
    archive, talks = Archive(random), requests(history)
    for talk in talks:
        archive.view(talk)
    while archive.active:
        archive.undo()
        archive.deactivate([chunk for chunk in archive.active if chunk.level])
    for talk in talks:
        fits = talk.tokens <= BUDGET.trigger.tokens
        assert least_view(talk, archive.chunks, BUDGET.trigger) == (whole(talk) if fits else None)


@FEWER
@given(histories(), RANDOMS, st.integers(0, 30))
def test_no_other_history_sees_what_is_done_to_a_summary_that_is_not_its_own(
    history: list[list[Message]], random: Random, at: int
) -> None:
    """A history that differs from a message on has no summary that stands for it, in whatever version."""
    archive, sent = Archive(random), requests(history)
    for talk in sent:
        archive.view(talk)
    original = sent[-1].transcript.messages
    at = min(at, len(original) - 1)
    other = [*original[:at], message(original[at].role, words(9, "another")), *original[at + 1 :]]
    branch = conversation(message("system", "the rules"), *other)
    before = least_view(branch, archive.chunks, BUDGET.trigger)
    theirs = [chunk for chunk in archive.active if chunk.last_index >= at]
    for chunk in theirs:
        archive.chunks.append(edited(chunk, "c", count, text="another text"))
    archive.deactivate(theirs)
    assert least_view(branch, archive.chunks, BUDGET.trigger) == before

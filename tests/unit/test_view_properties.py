"""Views: the least view that fits, and what holds for every history, compaction, branch and correction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import Budget, Trigger, Window, background_budget, budget_for, most_without_summary
from app.compaction.chunk_builder import EDITED, ChunkBuilder, addressed, corrected
from app.compaction.chunks import SummaryChunk, UserWords
from app.compaction.planning_state import Path, build_view, paths
from app.compaction.verify import problems
from app.compaction.view import Carried, Conversation, Summary, Verbatim, View, current_turn, turn_digests, whole
from app.conversation.messages import Message
from tests.unit.conversations import (
    SETTINGS,
    chunk,
    conversation,
    count,
    least_view,
    message,
    notes,
    plan_compaction,
    play,
    shares_with,
    sure,
    turns,
    widest_path,
    words,
)
from tests.unit.turns import TURNS, Turn

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


def test_copies_count_where_the_view_is_chosen() -> None:
    """A view that fits only without them does not fit."""
    talk = conversation(*SAID).with_pins((1,))
    assert least_view(talk, [chunk(talk, 0, 8)], Trigger(674)) is None
    assert sure(least_view(talk, [chunk(talk, 0, 8)], Trigger(675))).tokens == 675


def test_without_signed_thinking_no_turn_is_looked_up() -> None:
    assert turn_digests(TALK) == []
    assert current_turn(conversation(message("assistant", "Hello."))) == -1, "no turn at all"


def test_behind_a_summary_of_everything_nothing_stands() -> None:
    everything = c(0, len(TALK.transcript))
    assert build_view(TALK, Path((everything,), len(TALK.transcript), 20)).parts == (Summary(everything),)


# Properties: random histories, grown turn by turn, branched and compacted

# Small, so that a few turns are as many compactions: what a history costs grows with the square of its length.
BUDGET = budget_for(Window(5_000, "config"), 500, shares_with(floor_tokens=0, max_summary_tokens=128))
IN_PARTS = replace(SETTINGS, source_tokens=1_000)
"""A refill becomes several chunks."""
GROWTH = 300
"""Tokens by which a history is expected to grow with each request."""


@st.composite
def histories_of(draw: st.DrawFn, turn: Turn) -> list[list[Message]]:
    """Turns, to be sent one by one; the first may be preceded by a greeting."""
    greeting = [[message("assistant", "hello")]] if draw(st.booleans()) else []
    return greeting + [draw(turn(number)) for number in range(draw(st.integers(2, 16)))]


def histories() -> st.SearchStrategy[list[list[Message]]]:
    """In one of the formats."""
    return st.one_of(*map(histories_of, TURNS.values()))


def place(chunk: SummaryChunk) -> tuple[str, int, bytes, bytes]:
    return chunk.series, chunk.level, chunk.from_digest, chunk.through_digest


@dataclass
class Shelf:
    """A store of chunks with one for each range, and what was sent so far."""

    chunks: list[SummaryChunk] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    compactions: int = 0

    def view(self, talk: Conversation, budget: Budget = BUDGET) -> View:
        """What Steno would send: the least view, after a compaction where that is due."""
        found = least_view(talk, self.chunks, budget.trigger)
        if found is None and (plan := plan_compaction(talk, self.chunks, budget, IN_PARTS, "s")) is not None:
            _, compaction = play(ChunkBuilder(talk, "c", plan, budget, IN_PARTS, count), *[notes()] * 100)
            assert compaction.is_whole
            taken = {*map(place, self.chunks)}
            self.chunks += [made for made in compaction.made if place(made) not in taken]
            self.gone -= {made.id for made in compaction.made}  # A model wrote the same text again.
            self.compactions += 1
            found = least_view(talk, self.chunks, budget.trigger)
        return found or build_view(talk, widest_path(talk, self.chunks))

    def correct(self, random: Random) -> None:
        if self.chunks:
            old = random.choice(self.chunks)
            self.delete([old])
            text = words(random.randint(5, 60), f"edit{len(self.gone)}")
            self.chunks.append(corrected(old, "c", count, text))

    def delete(self, chunks: Iterable[SummaryChunk]) -> None:
        """Together with the folds that were made of them."""
        gone = {chunk.id for chunk in chunks}
        for stored in sorted(self.chunks, key=lambda each: each.level):
            if not gone.isdisjoint(stored.children):
                gone.add(stored.id)
        self.gone |= gone
        self.chunks = [chunk for chunk in self.chunks if chunk.id not in gone]


@dataclass
class ShelfAhead(Shelf):
    """What is due soon is made after the answer, and there so many requests later."""

    delay: int = 1
    making: list[SummaryChunk] = field(default_factory=list)
    ready_in: int = 0

    def view(self, talk: Conversation, budget: Budget = BUDGET) -> View:
        self._arrive(1)
        found = least_view(talk, self.chunks, budget.trigger)
        widest = build_view(talk, widest_path(talk, self.chunks))
        if found is None and widest.tokens > most_without_summary(budget):
            self._arrive(self.delay)
            return super().view(talk, budget)
        return found or widest

    def answered(self, talk: Conversation, view: View) -> None:
        budget = background_budget(BUDGET, self.delay * GROWTH)
        trigger = budget.trigger
        if self.making or view.tokens <= trigger.tokens or least_view(talk, self.chunks, trigger) is not None:
            return
        if (plan := plan_compaction(talk, self.chunks, budget, IN_PARTS, "s")) is not None:
            _, compaction = play(ChunkBuilder(talk, "c", plan, budget, IN_PARTS, count), *[notes()] * 100)
            self.making, self.ready_in = list(compaction.made), self.delay
            self.compactions += 1

    def _arrive(self, requests: int) -> None:
        self.ready_in -= requests
        if self.making and self.ready_in <= 0:
            self.chunks, self.making = [*self.chunks, *self.making], []


def requests(history: list[list[Message]]) -> list[Conversation]:
    """What a client sends: the history up to each answer."""
    sent: list[Conversation] = []
    past: list[Message] = [message("system", "the rules")]
    for current, following in pairwise(chain.from_iterable(history)):
        past.append(current)
        if following.role == "assistant" != current.role:
            sent.append(conversation(*past))
    return sent


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_in_which_chunks_were_stored_does_not_matter(history: list[list[Message]], random: Random) -> None:
    shelf = Shelf()
    sent = requests(history)
    for talk in sent:
        shelf.view(talk)
    shuffled = list(shelf.chunks)
    random.shuffle(shuffled)
    for talk in sent:
        assert least_view(talk, shuffled, BUDGET.trigger) == least_view(talk, shelf.chunks, BUDGET.trigger)


@given(histories())
def test_chunks_that_are_looked_up_between_units_only_are_all_that_a_view_may_use(history: list[list[Message]]) -> None:
    shelf = Shelf()
    sent = requests(history)
    for talk in sent:
        shelf.view(talk)
    for talk in sent:
        ends = frozenset(talk.cut_digests)
        found = [chunk for chunk in shelf.chunks if {chunk.from_digest, chunk.through_digest} <= ends]
        assert paths(talk, found) == paths(talk, shelf.chunks)


@given(histories())
def test_each_payload_extends_the_previous_one_until_another_chunk_is_needed(history: list[list[Message]]) -> None:
    """One compaction may make several chunks. Those that it does not need yet wait, and break the prefix later."""
    shelf = Shelf()
    previous, used, changes = list[bytes](), tuple[SummaryChunk, ...](), 0
    for talk in requests(history):
        view = shelf.view(talk)
        payload = _payload(talk, view)
        if view.chunks == used:
            assert payload[: len(previous)] == previous
        else:
            changes += 1
            assert talk.tokens > BUDGET.trigger.tokens
        previous, used = payload, view.chunks
    assert changes <= len(shelf.chunks)


@given(histories(), st.integers(1, 4))
def test_what_is_made_ahead_changes_a_payload_only_where_it_is_used_first(
    history: list[list[Message]], delay: int
) -> None:
    """So the provider's cache lasts as long as without: one new beginning for each compaction."""
    shelf = ShelfAhead(delay=delay)
    previous, used, changes = list[bytes](), tuple[SummaryChunk, ...](), 0
    for talk in requests(history):
        view = shelf.view(talk)
        assert [fault for fault in problems(talk, view, BUDGET.limit) if fault != "over_the_limit"] == []
        payload = _payload(talk, view)
        if view.chunks == used:
            assert payload[: len(previous)] == previous
        else:
            changes += 1
            assert talk.tokens > BUDGET.trigger.tokens
        previous, used = payload, view.chunks
        shelf.answered(talk, view)
    assert changes <= shelf.compactions


@given(histories(), st.integers(0, 30), st.integers(1, 400))
def test_a_branch_gets_no_chunk_that_was_not_made_from_its_own_messages(
    history: list[list[Message]], at: int, size: int
) -> None:
    shelf = Shelf()
    sent = requests(history)
    for talk in sent:
        shelf.view(talk)
    original = sent[-1].transcript.messages
    at = min(at, len(original) - 1)
    edited = [*original[:at], message(original[at].role, words(size, "edited")), *original[at + 1 :]]
    branch = conversation(message("system", "the rules"), *edited)
    view = least_view(branch, shelf.chunks, BUDGET.trigger)
    for used in view.chunks if view else ():
        assert used.last_index < at
        assert used.from_digest in sent[-1].chain.positions


def _payload(talk: Conversation, view: View) -> list[bytes]:
    """The messages that would be sent, as bytes."""
    messages = talk.transcript.messages
    sent: list[bytes] = [m.raw for m in talk.instructions]
    for part in view.parts:
        if isinstance(part, Summary):
            sent.append(part.chunk.id.encode())
        elif isinstance(part, Verbatim):
            sent += [m.raw for m in messages[part.start : part.stop]]
        elif isinstance(part, Carried):
            sent.append(messages[part.index].raw)
    return sent


# Properties: summaries are corrected, deleted and made again between requests


OFTEN = 0.2
FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""Most of the time goes into compactions."""
RANDOMS = st.randoms(use_true_random=False)


@FEWER
@given(histories(), RANDOMS)
def test_every_view_is_whole_and_uses_nothing_that_was_corrected_or_deleted(
    history: list[list[Message]], random: Random
) -> None:
    shelf = Shelf()
    for talk in requests(history):
        view = shelf.view(talk)
        assert [fault for fault in problems(talk, view, BUDGET.limit) if fault != "over_the_limit"] == []
        assert shelf.gone.isdisjoint(chunk.id for chunk in view.chunks)
        if random.random() < OFTEN:
            shelf.correct(random)
            shelf.delete(random.sample(shelf.chunks, min(len(shelf.chunks), random.randint(0, 1))))


@FEWER
@given(histories(), RANDOMS)
def test_a_correction_changes_the_payload_where_its_summary_stands_and_nowhere_else(
    history: list[list[Message]], random: Random
) -> None:
    shelf = Shelf()
    for talk in requests(history):
        before = shelf.view(talk)
        shelf.correct(random)
        after = least_view(talk, shelf.chunks, BUDGET.trigger)
        if after is None or [place(chunk) for chunk in after.chunks] != [place(chunk) for chunk in before.chunks]:
            continue  # The new text is larger or smaller, and another coverage suffices.
        changed = [one == other for one, other in zip(before.parts, after.parts, strict=True)]
        assert changed.count(False) <= 1
        if False in changed:
            at = changed.index(False)
            assert isinstance(before.parts[at], Summary)
            assert _payload(talk, before)[: len(talk.instructions)] == _payload(talk, after)[: len(talk.instructions)]


# Correction of a chunk

CORRECTED_TALK = conversation(*turns(8), message("user", "q"))
WORDS = (UserWords(1, "Never push."),)
OLD = addressed(replace(chunk(CORRECTED_TALK, 0, 4), values=("ORD-1",), user_words=WORDS, text="notes on ORD-1"))


def test_a_correction_stands_for_the_same_messages() -> None:
    new = corrected(OLD, "c", count, "  other notes, longer than the old ones ")
    assert (new.text, new.prompt_version) == ("other notes, longer than the old ones", EDITED)
    assert (new.from_digest, new.through_digest, new.level) == (OLD.from_digest, OLD.through_digest, OLD.level)
    assert (new.values, new.user_words, new.values_kept, new.conversation_id) == (OLD.values, OLD.user_words, 0.0, "c")
    assert new.id != OLD.id
    assert new.tokens > count(new.text)


def test_the_same_text_leaves_the_chunk_as_it_is() -> None:
    assert corrected(OLD, "c", count, f" {OLD.text}\n") is OLD

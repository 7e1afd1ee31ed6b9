"""What holds for every conversation: random histories, grown turn by turn, branched, and compacted by the real flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.budget import Budget, Shares, Trigger, Window, background_budget, budget_for, most_without_summary
from app.compaction.chunk_builder import ChunkBuilder
from app.compaction.chunks import SummaryChunk
from app.compaction.planning_state import build_view, paths
from app.compaction.verify import problems
from app.compaction.view import Carried, Conversation, Summary, Verbatim, View, whole
from app.conversation.messages import Message
from tests.unit.conversations import (
    SETTINGS,
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
from tests.unit.turns import TURNS, Turn

# Small, so that a few turns are as many compactions: what a history costs grows with the square of its length.
BUDGET = budget_for(Window(5_000, "config"), 500, Shares(floor_tokens=0, max_summary_tokens=128))
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


@dataclass
class Shelf:
    """A store of chunks, and what was sent so far."""

    chunks: list[SummaryChunk] = field(default_factory=list)
    compactions: int = 0

    def view(self, talk: Conversation, budget: Budget = BUDGET) -> View:
        """What Steno would send: the least view, after a compaction where that is due."""
        found = least_view(talk, self.chunks, budget.trigger)
        if found is None and (plan := plan_compaction(talk, self.chunks, budget, IN_PARTS, "s")) is not None:
            _, compaction = play(ChunkBuilder(talk, "c", plan, budget, IN_PARTS, count), *[notes()] * 100)
            assert compaction.is_whole
            self.chunks += compaction.made
            self.compactions += 1
            found = least_view(talk, self.chunks, budget.trigger)
        return found or build_view(talk, widest_path(talk, self.chunks))


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
def test_a_larger_window_gets_the_whole_history_back(history: list[list[Message]]) -> None:
    shelf = Shelf()
    for talk in requests(history):
        shelf.view(talk)
        assert least_view(talk, shelf.chunks, Trigger(10**9)) == whole(talk)


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
    for chunk in view.chunks if view else ():
        assert chunk.last_index < at
        assert chunk.from_digest in sent[-1].chain.positions


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

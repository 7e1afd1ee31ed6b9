"""Making the chunks of a compaction: what is asked for, in which order, and what becomes of each answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryChunk
from app.compaction.plan import Plan, Span, SummaryOptions, is_shown, longest_within, released_by
from app.compaction.planning_state import Path, Strategy
from app.compaction.prompts import SummaryRequest
from app.compaction.view import Altered, Conversation, Note, Part, Verbatim, View
from app.conversation.reasons import joined
from app.formats.spec import Ending, SummaryAnswer
from tests.unit.conversations import (
    SETTINGS,
    TOO_LARGE,
    WHY,
    Effect,
    Kept,
    budget,
    chunk,
    conversation,
    count,
    least_view,
    message,
    notes,
    plan_compaction,
    play,
    turns,
    widest_path,
)

QUESTION = message("user", "the last question")
TALK = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
BUDGET = budget()


APART = replace(SETTINGS, folds_in=False)
"""Where a fold is a call of its own."""


def flow(
    talk: Conversation = TALK,
    stored: tuple[SummaryChunk, ...] = (),
    settings: SummaryOptions = SETTINGS,
    **changes: int,
) -> ChunkBuilder:
    limits = budget(**changes)
    plan = plan_compaction(talk, stored, limits, settings, "additive")
    assert plan is not None
    return ChunkBuilder(talk, "conv", plan, limits, settings, count)


def test_the_chunk_is_addressed_by_its_range_and_text() -> None:
    _, compaction = play(flow(), notes())
    (made,) = compaction.made
    assert (made.from_digest, made.through_digest) == (TALK.chain[0], TALK.chain[14])
    assert made.last_message_digest == TALK.transcript.messages[13].digest
    assert (made.first_index, made.last_index, made.through_turn) == (0, 13, 7)
    assert (made.level, made.model) == (0, "m")
    assert made.text == " ".join(["note"] * 30)
    assert made.tokens > 30
    again, other = play(flow(), notes())[1].made[0], play(flow(), notes(31))[1].made[0]
    assert again.id == made.id != other.id


SEVERAL = replace(SETTINGS, input_tokens=300, part_tokens=200)
ROOMY = {"limit": 4_000, "trigger": 500, "target": 400, "tail": 200, "summary": 40}


def in_parts(*stored: SummaryChunk) -> ChunkBuilder:
    """Of four parts."""
    return ChunkBuilder(TALK, "conv", of_parts(TALK, stored), budget(**ROOMY), SEVERAL, count)


def of_parts(talk: Conversation, stored: Sequence[SummaryChunk], **changes: int) -> Plan:
    plan = plan_compaction(talk, stored, budget(**{**ROOMY, **changes}), SEVERAL, "additive")
    assert plan is not None
    return plan


def parts_made(without: int = 1) -> list[SummaryChunk]:
    """The chunks of a compaction in four parts that failed at one of them."""
    answers: list[SummaryAnswer | Failure] = [notes(), notes(), notes(), notes()]
    answers[without] = Failure(WHY)
    return list(play(in_parts(), *answers)[1].made)


@pytest.mark.parametrize("failed", range(4))
def test_a_part_that_failed_is_the_only_one_that_the_next_attempt_asks_for(failed: int) -> None:
    stored = parts_made(without=failed)
    effects, compaction = play(in_parts(*stored), notes())
    assert len(requests(effects)) == 1
    assert [made.first_index for made in compaction.made] == [4 * failed]
    assert compaction.is_whole
    path = widest_path(TALK, [*stored, *compaction.made])
    assert [each.first_index for each in path.chunks] == [0, 4, 8, 12]


def test_what_was_made_behind_a_failure_is_taken_after_the_history_grew() -> None:
    grown = conversation(message("system", "rules"), *turns(10, size=40), *turns(4, size=41), QUESTION)
    stored = parts_made()
    plan = of_parts(grown, stored)
    assert (plan.missing, plan.made) == ((Span(4, 8), Span(16, 20), Span(20, 24)), tuple(stored[1:]))
    effects, compaction = play(ChunkBuilder(grown, "conv", plan, budget(**ROOMY), SEVERAL, count), *[notes()] * 3)
    assert len(requests(effects)) == 3
    path = widest_path(grown, [*stored, *compaction.made])
    assert [each.first_index for each in path.chunks] == [0, 4, 8, 12, 16, 20]


def test_all_is_made_anew_where_the_parts_that_are_there_are_too_many_to_gain_by() -> None:
    talk = conversation(*turns(12, size=60), QUESTION)
    stored = [chunk(talk, start, start + 2) for start in range(2, 18, 2)]
    settings = replace(SETTINGS, input_tokens=1_000, part_tokens=900)
    spans = []
    for trigger in (800, 500):
        limits = budget(4_000, trigger=trigger, target=400, tail=200, summary=80)
        plan = plan_compaction(talk, stored, limits, settings, "additive")
        assert plan is not None
        spans.append((len(plan.spans), len(plan.made)))
    assert spans == [(9, 7), (2, 0)]


BRIEF = SummaryAnswer("short")


def asked(effects: Sequence[Effect]) -> list[bool]:
    """The calls in order, and which of them were stricter."""
    return ["summary_too_short" in each.instructions for each in effects if isinstance(each, SummaryRequest)]


def test_a_part_that_was_answered_too_briefly_is_asked_for_once_more() -> None:
    effects, compaction = play(in_parts(), BRIEF, *[notes()] * 4)
    assert asked(effects) == [False, True, False, False, False]
    assert [made.first_index for made in compaction.made] == [0, 4, 8, 12]
    assert compaction.is_whole
    first, again, *_ = requests(effects)
    assert again.max_tokens == 2 * first.max_tokens


def test_the_other_parts_are_made_beside_those_that_failed() -> None:
    effects, compaction = play(in_parts(), BRIEF, BRIEF, Failure(WHY), notes(), notes())
    assert asked(effects) == [False, True, False, False, False]
    assert joined(compaction.why) == "summary_too_short"
    assert [made.first_index for made in compaction.made] == [8, 12]


def test_a_part_that_stays_too_long_is_halved_when_it_was_asked_for_again() -> None:
    cut_off = SummaryAnswer(notes(70).text, Ending.CUT_OFF, "length")
    _, compaction = play(in_parts(), cut_off, cut_off, *[notes()] * 5)
    assert [made.first_index for made in compaction.made] == [0, 2, 4, 8, 12]


def test_an_overflowing_part_is_halved_at_most_three_times() -> None:
    overflow = Failure(TOO_LARGE, overflow=True)
    _, compaction = play(flow(), overflow, notes(), notes())
    assert [(made.first_index, made.last_index) for made in compaction.made] == [(0, 6), (7, 13)]
    effects, compaction = play(flow(conversation(*turns(40, size=40), QUESTION)), *[overflow] * 4)
    assert (len(requests(effects)), compaction.why) == (4, TOO_LARGE)


FULL = replace(SETTINGS, strategy="full", input_tokens=300, part_tokens=200)


@pytest.mark.parametrize("strategy", ["full", "checkpoint", "rolling"])
def test_of_a_summary_of_everything_that_is_made_in_parts_only_the_last_is_kept(strategy: Strategy) -> None:
    """A shorter one would be used for as long as it fits, and leave more verbatim than was planned."""
    effects, compaction = play(flow(settings=replace(FULL, strategy=strategy)), *[notes()] * 3)
    assert [type(effect) for effect in effects] == [*[SummaryRequest] * 3, Kept]
    assert [(made.first_index, made.last_index) for made in compaction.made] == [(0, 13)]
    asked = [effect for effect in effects if isinstance(effect, SummaryRequest)]
    assert all("note note" in request.transcript for request in asked[1:])


def requests(effects: Sequence[Effect]) -> list[SummaryRequest]:
    return [effect for effect in effects if isinstance(effect, SummaryRequest)]


def test_a_part_of_it_that_overflows_is_halved_at_most_three_times() -> None:
    overflow = Failure(TOO_LARGE, overflow=True)
    settings = replace(FULL, input_tokens=10_000)
    _, compaction = play(flow(settings=settings), overflow, notes(), notes())
    assert [(made.first_index, made.last_index) for made in compaction.made] == [(0, 13)]
    effects, compaction = play(flow(settings=settings), *[overflow] * 4)
    assert len(requests(effects)) == 4
    assert compaction == Compaction((), Outcome.FAILED, TOO_LARGE, overflow=True)


PREFIX = replace(SETTINGS, strategy="full", style="prefix", update_prompt="Update.", failed_results=8)


def shown(request: SummaryRequest) -> tuple[Part, ...]:
    assert request.shown is not None
    return request.shown.parts


def test_it_is_shown_as_the_provider_has_it_with_what_was_quoted_and_without_masks() -> None:
    note = Note("recalled", "quoted", 7, (0,))
    masked = Altered(3, ("short",), 2, "masked")
    sent = View((Verbatim(0, 3), masked, note, Verbatim(4, len(TALK.transcript)), note), 500)
    plan = plan_compaction(TALK, (), BUDGET, PREFIX, "additive")
    assert plan is not None
    effects, _ = play(ChunkBuilder(TALK, "conv", plan, BUDGET, PREFIX, count, sent), notes())
    (request,) = requests(effects)
    assert shown(request) == (Verbatim(0, 3), Verbatim(3, 4), note, Verbatim(4, 14))
    assert request.shown is not None
    assert request.shown.tokens == TALK.tokens - TALK.transcript.tokens(14) + 7


def test_a_summariser_that_wants_an_answer_before_its_task_is_not_shown_a_users_message_last() -> None:
    settings = replace(PREFIX, alternates=True)
    assert [is_shown(TALK, Path(), Span(0, stop), settings) for stop in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("lengths", "room", "longest"),
    [([5, 100, 60], 125, 60), ([5, 100, 60], 45, 20), ([10, 10], 30, 10), ([], 10, 0), ([7], 0, 0)],
)
def test_only_the_longest_texts_are_cut(lengths: list[int], room: int, longest: int) -> None:
    assert longest_within(lengths, room) == longest
    assert sum(min(length, longest) for length in lengths) <= room


def test_a_summary_that_makes_a_fold_due_takes_the_older_ones_in_with_one_call() -> None:
    stored = tuple(chunk(TALK, n, n + 2, tokens=100, carried=(0,)) for n in (0, 2, 4))
    effects, compaction = play(flow(stored=stored), notes(40))
    assert [type(effect) for effect in effects] == [SummaryRequest, Kept]
    asked = next(effect for effect in effects if isinstance(effect, SummaryRequest))
    messages = TALK.transcript.messages
    read = (*(each.text for each in stored), *(each.text for each in (messages[2], *messages[6:14])))
    assert all(text in asked.transcript for text in read)
    assert asked.max_tokens == 2 * BUDGET.summary
    [made] = compaction.made
    assert (made.first_index, made.last_index, made.level, made.carried) == (0, 13, 0, ())
    assert made.children == tuple(c.id for c in stored)
    view = least_view(TALK, [*stored, made], BUDGET.trigger)
    assert view is not None
    assert view.chunks == (made,)


def test_what_is_too_long_for_one_answer_is_summarised_and_folded_afterwards() -> None:
    stored = tuple(chunk(TALK, n, n + 2, tokens=100) for n in (0, 2, 4))
    _, compaction = play(flow(stored=stored), Failure(WHY, overflow=True), notes(), notes(20))
    assert [made.level for made in compaction.made] == [0, 1]
    assert play(flow(stored=stored), Failure(WHY))[1] == Compaction((), Outcome.FAILED, WHY)


def test_chunks_over_their_share_are_folded_all_but_the_newest() -> None:
    stored = tuple(chunk(TALK, n, n + 2, tokens=100) for n in (0, 2, 4))
    effects, compaction = play(flow(stored=stored, settings=APART), notes(), notes(20))
    assert [type(effect) for effect in effects] == [SummaryRequest, Kept, SummaryRequest, Kept]
    new, fold = compaction.made
    assert (new.first_index, new.last_index, new.level) == (6, 13, 0)
    assert (fold.first_index, fold.last_index, fold.level) == (0, 5, 1)
    assert fold.children == tuple(c.id for c in stored)
    view = least_view(TALK, [*stored, new, fold], BUDGET.trigger)
    assert view is not None
    assert view.chunks == (fold, new)


def test_a_fold_stands_for_what_was_carried_of_turns_that_are_over() -> None:
    """Its own end splits at most one turn; the other user messages are shown to it and no longer sent."""
    stored = (
        chunk(TALK, 0, 2, tokens=150, carried=(0,)),
        chunk(TALK, 2, 4, tokens=150, carried=(0,), level=3),
        chunk(TALK, 4, 6, tokens=10),
    )
    assert widest_path(TALK, stored).covered == 6
    effects, compaction = play(flow(stored=stored, settings=APART), notes(), notes(20))
    fold = compaction.made[1]
    assert (fold.carried, fold.level) == ((), 4)
    asked = [effect for effect in effects if isinstance(effect, SummaryRequest)][1]
    assert all(TALK.transcript.messages[index].text in asked.transcript for index in (0, 2))


def test_what_a_turn_that_ends_with_the_chunks_was_asked_is_released() -> None:
    steps = (message("assistant", f"step {n}") for n in range(5))
    agent = conversation(*turns(1), message("user", "do it"), *steps, *turns(1))
    assert released_by(agent.transcript, [chunk(agent, 1, 8, carried=(1,))]) == [2]
    assert released_by(agent.transcript, [chunk(agent, 1, 7, carried=(1,))]) == []


def test_what_was_carried_of_turns_that_are_over_is_folded_away_before_it_piles_up() -> None:
    ranges = ((0, 2), (2, 4), (4, 6))
    large = tuple(chunk(TALK, *each, tokens=10, carried=(0,)) for each in ranges)
    small = tuple(chunk(TALK, *each, tokens=10) for each in ranges)
    _, compaction = play(flow(stored=large, settings=APART, fold=120), notes(), notes(20))
    assert [(made.level, made.carried) for made in compaction.made if made.level] == [(1, ())]
    _, compaction = play(flow(stored=small, fold=120), notes())
    assert [made.level for made in compaction.made] == [0]


def test_chunks_too_many_for_one_call_are_folded_in_parts_and_again() -> None:
    """Each part carries the instructions among its own messages."""
    told = [message("developer", "be brief"), message("assistant", "w " * 40)]
    talk = conversation(*turns(5, size=40), *told, *turns(8, size=40, first=5), QUESTION)
    stored = tuple(chunk(talk, n, n + 2, tokens=100) for n in range(0, 18, 2))
    settings = replace(SETTINGS, input_tokens=400, part_tokens=400)
    _, compaction = play(flow(talk, stored, settings, fold=150), notes(), notes(60), notes(60), notes(60))
    assert [(made.level, made.first_index, made.last_index, made.carried) for made in compaction.made] == [
        (0, 18, 21, ()),
        (1, 0, 7, ()),
        (1, 8, 15, (2,)),
        (2, 0, 17, (10,)),
    ]


def test_a_fold_stands_for_no_more_than_another_summary() -> None:
    """Many notes become several folds, or what each of them said would be a tenth of a tenth."""
    talk = conversation(*turns(14, size=40), QUESTION)
    stored = tuple(chunk(talk, n, n + 2, tokens=100) for n in range(0, 18, 2))
    _, compaction = play(flow(talk, stored, replace(SETTINGS, source_tokens=400)), *[notes(20)] * 4)
    assert [(made.level, made.first_index, made.last_index) for made in compaction.made] == [
        (0, 18, 21),
        (1, 0, 7),
        (1, 8, 15),
    ]
    assert [made.continued for made in compaction.made if made.level] == [True, True]  # One chunk is left over.


def test_where_earlier_chunks_hold_the_room_for_the_users_words_a_new_one_quotes_none() -> None:
    settings = replace(SETTINGS, user_words=True)
    for held, quoted in ((60, 2), (120, 0)):
        stored = (chunk(TALK, 0, 2, user_words_tokens=held, tokens=50 + held),)
        _, compaction = play(flow(stored=stored, settings=settings, trigger=300), notes())
        assert len(compaction.made[0].user_words) == quoted


# A summary of everything before the tail

ROLLING = replace(SETTINGS, strategy="rolling")


# Failed results


def test_they_are_listed_once_however_often_the_summary_is_renewed() -> None:
    failing = [
        message("user", "try it " + "w " * 38),
        message("assistant", calls=["c1"]),
        message("tool", "Error: no such shelf", answers="c1"),
        message("assistant", "It failed. " + "w " * 38),
    ]
    talk = conversation(*turns(2, size=40), *failing, *turns(8, size=40), QUESTION)
    listed = "\n\nTool calls that failed:\n- tool_c1: Error: no such shelf"
    stored = chunk(talk, 0, 8, text=f"what was tried{listed}")
    settings = replace(ROLLING, failed_results=8)
    effects, compaction = play(flow(talk, (stored,), settings), notes())
    assert listed not in requests(effects)[0].transcript
    assert "what was tried" in requests(effects)[0].transcript
    assert compaction.made[0].text == notes().text + listed

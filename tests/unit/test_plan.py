"""Planning: what is summarised, where the tail begins, in how many parts."""

import pytest
from msgspec.structs import replace

from app.core.limits.trigger import Condition, Trigger
from app.core.stages.policy import Strategy
from app.core.summary.cut import choose_cut
from app.core.summary.plan import MOST_PARTS, cut_at, last_cut, plan_asked
from app.core.summary.spans import Span, halves, split_span
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import Path, build_view
from app.core.view.view import Conversation, Pins
from tests.unit.conversations import (
    SETTINGS,
    budget,
    case,
    chunk,
    conversation,
    message,
    plan_compaction,
    turns,
    widest_path,
    words,
)

QUESTION = message("user", "the last question")
EVERYTHING = replace(SETTINGS, strategy="full")


def test_three_whole_turns_and_the_current_one_stay_verbatim_where_they_fit() -> None:
    talk = conversation(*turns(10, size=20), QUESTION)
    assert choose_cut(talk, Path(), budget(), SETTINGS) == 14  # The last question and the three turns before it.


def test_the_tail_degrades_until_it_fits_its_share() -> None:
    """Turns of 0.12 L: with the question two whole ones are under 0.30 L, three are not."""
    talk = conversation(*turns(8, size=60), QUESTION)
    assert choose_cut(talk, Path(), budget(), SETTINGS) == 12


def test_the_tail_degrades_until_the_view_meets_the_target() -> None:
    talk = conversation(*turns(8, size=40), QUESTION, fixed=300)
    assert choose_cut(talk, Path(), budget(), SETTINGS) == 14


def test_more_turns_stay_while_they_are_small() -> None:
    """Ten turns of 20 tokens: the three and the question take 64, a fill of 150 holds seven of them."""
    talk = conversation(*turns(10, size=10), QUESTION)
    assert choose_cut(talk, Path(), budget(tail_fill=150), SETTINGS) == 6
    assert choose_cut(talk, Path(), budget(tail_fill=150, tail_turns=8), SETTINGS) == 4


@pytest.mark.parametrize(
    ("condition", "cut"), [(Condition(turns=10), 14), (Condition(messages=20), 14), (Condition(since=200), 16)]
)
def test_of_more_turns_at_most_half_of_what_the_trigger_allows_is_left(condition: Condition, cut: int) -> None:
    """Otherwise the next turn, or the next but one, would fire it again."""
    talk = conversation(*turns(12, size=10), QUESTION)
    limits = budget(tail_fill=300, tail_turns=1, trigger=Trigger((condition,), 1))
    assert choose_cut(talk, Path(), limits, SETTINGS) == cut


def test_a_long_turn_that_would_leave_most_of_the_fill_unused_is_cut_between_units() -> None:
    steps = [message("assistant", words(50, f"s{n}")) for n in range(8)]
    talk = conversation(*turns(2), message("user", "do all of it"), *steps, *turns(1, size=10), QUESTION)
    limits = budget(2_000, tail_turns=0, tail_fill=150)
    cut = choose_cut(talk, Path(), limits, SETTINGS)
    assert cut == 11  # Two steps of 50 tokens, the short turn and the question.
    assert talk.transcript.carried(0, cut, cut) == (4,)


def test_the_fill_gives_way_to_the_target_step_by_step() -> None:
    steps = [message("assistant", words(50, f"s{n}")) for n in range(8)]
    talk = conversation(message("user", "do all of it"), *steps, *turns(1, size=10), QUESTION)
    limits = budget(2_000, tail_turns=0, tail_fill=300)
    roomy = choose_cut(talk, Path(), limits, SETTINGS)
    tight = choose_cut(talk, Path(), replace(limits, target=300), SETTINGS)
    assert (roomy, tight) == (4, 6)


def test_the_tail_leaves_room_for_every_summary_that_a_large_refill_needs() -> None:
    """Two thousand tokens are eight summaries of up to 60 tokens, not one."""
    talk = conversation(*turns(20), QUESTION)
    limits = budget(4_000, summary=60, target=800, tail_fill=500, tail_turns=0, fold=2_000)
    one = choose_cut(talk, Path(), limits, SETTINGS)
    eight = choose_cut(talk, Path(), limits, replace(SETTINGS, source_tokens=260))
    assert (one, eight) == (32, 34)


def test_a_large_refill_is_summarised_to_its_end_in_several_parts() -> None:
    talk = conversation(*turns(20), QUESTION)
    plan = plan_compaction(talk, [], budget(2_000), replace(SETTINGS, source_tokens=600), "s")
    assert plan is not None
    assert [plan.spans[0].start, *(span.stop for span in plan.spans)] == [0, 8, 16, 24, 34]
    assert plan.range.through_digest == talk.chain[34]


def test_a_giant_last_turn_keeps_its_user_message_and_the_newest_units_that_fit() -> None:
    steps = [
        step
        for number in range(6)
        for step in (
            message("assistant", calls=[f"c{number}"], tokens=20),
            message("tool", "result", tokens=80, answers=f"c{number}"),
        )
    ]
    talk = conversation(*turns(1), message("user", "do all of it"), *steps)
    cut = choose_cut(talk, Path(), budget(), SETTINGS)
    assert cut == 11  # Two units of 100 tokens each: three and the user message are over 0.30 L.
    assert talk.transcript.carried(0, cut, cut) == (2,)


def test_where_nothing_fits_the_last_unit_alone_stays() -> None:
    talk = conversation(*turns(3), message("user", words(900)))
    assert choose_cut(talk, Path(), budget(), SETTINGS) == 6


def test_nothing_is_left_to_summarise_when_all_but_the_last_unit_is_covered() -> None:
    talk = conversation(*turns(4), QUESTION)
    assert choose_cut(talk, Path((), 8, 20), budget(), SETTINGS) is None


def test_mid_conversation_instructions_are_carried() -> None:
    talk = conversation(*turns(1), message("developer", "be brief"), *turns(2, first=1), QUESTION)
    assert talk.transcript.carried(0, 5, 5) == (2,)


def test_the_question_of_a_turn_that_a_later_part_ends_is_summarised_with_it() -> None:
    talk = conversation(message("user", "long task"), *(message("assistant", words(50, f"s{n}")) for n in range(4)))
    assert talk.transcript.carried(0, 2, 3) == (0,)
    assert talk.transcript.carried(2, 3, 3) == ()
    assert talk.transcript.carried(0, 2, 5) == ()


def test_a_compaction_extends_the_widest_path() -> None:
    talk = conversation(*turns(12, size=40), QUESTION)
    stored = [chunk(talk, 0, 4), chunk(talk, 4, 8)]
    plan = plan_compaction(talk, stored, budget(), SETTINGS, "s")
    assert plan is not None
    assert plan.base == widest_path(talk, stored)
    assert plan.spans == (Span(8, 18),)
    assert (plan.range.from_digest, plan.range.through_digest) == (talk.chain[8], talk.chain[18])


def test_a_compaction_that_would_free_less_than_a_tenth_is_not_made() -> None:
    talk = conversation(*turns(1, size=50), *turns(3, size=75, first=1), QUESTION)
    assert plan_compaction(talk, [], budget(summary=110), SETTINGS, "s") is not None
    assert plan_compaction(talk, [], budget(summary=110, tail=500, target=700), SETTINGS, "s") is None


def test_a_summary_is_expected_to_be_as_large_as_it_is_asked_to_be_and_not_always_as_large_as_may_be() -> None:
    """Of 120 tokens one of 60 is asked for: that frees more than a tenth, and one of 110 would not."""
    talk = conversation(*turns(4, size=60), QUESTION)
    assert plan_compaction(talk, [], budget(summary=110, tail=500, target=700), SETTINGS, "s") is not None


def test_a_compaction_that_cannot_bring_the_view_under_the_trigger_waits() -> None:
    talk = conversation(*turns(4, size=60), QUESTION, fixed=450)
    assert plan_compaction(talk, [], budget(trigger=400), SETTINGS, "s") is None


def test_over_the_limit_any_gain_is_taken() -> None:
    talk = conversation(*turns(4, size=60), QUESTION, fixed=700)
    assert plan_compaction(talk, [], budget(trigger=400), SETTINGS, "s") is not None
    talk = talk.with_pins(Pins(tuple(range(8))))  # Copies of all that the summary would stand for.
    assert plan_compaction(talk, [], budget(trigger=400), SETTINGS, "s") is None


def test_chunks_alone_over_their_share_are_folded() -> None:
    talk = conversation(*turns(4), QUESTION)
    stored = [chunk(talk, n, n + 2, tokens=120) for n in (0, 2, 4, 6)]
    plan = plan_compaction(talk, stored, budget(), SETTINGS, "s")
    assert plan is not None
    assert plan.spans == ()
    assert (plan.range.from_digest, plan.range.through_digest) == (talk.chain[0], talk.chain[6])


def test_too_few_chunks_are_not_folded() -> None:
    talk = conversation(*turns(2), QUESTION)
    stored = [chunk(talk, 0, 2, tokens=300), chunk(talk, 2, 4, tokens=300)]
    assert plan_compaction(talk, stored, budget(), SETTINGS, "s") is None


def test_small_chunks_are_not_folded() -> None:
    talk = conversation(*turns(4), QUESTION)
    stored = [chunk(talk, n, n + 2, tokens=10) for n in (0, 2, 4, 6)]
    assert plan_compaction(talk, stored, budget(), SETTINGS, "s") is None


def test_what_one_call_can_read_is_one_part() -> None:
    talk = conversation(*turns(10), QUESTION)
    assert split_span(talk.transcript, Span(0, 20), replace(SETTINGS, input_tokens=1_120, part_tokens=10)) == (
        Span(0, 20),
    )


def test_what_exceeds_one_call_is_cut_between_turns() -> None:
    talk = conversation(*turns(10), QUESTION)
    parts = split_span(talk.transcript, Span(0, 20), replace(SETTINGS, input_tokens=900, part_tokens=470))
    assert parts == (Span(0, 6), Span(6, 12), Span(12, 20))


def test_one_summary_stands_for_a_bounded_part_of_what_one_call_could_read() -> None:
    talk = conversation(*turns(10), QUESTION)
    bounded = replace(SETTINGS, source_tokens=470)
    assert split_span(talk.transcript, Span(0, 20), bounded) == (Span(0, 6), Span(6, 12), Span(12, 20))
    everything = replace(bounded, strategy="rolling")
    assert split_span(talk.transcript, Span(0, 20), everything) == (Span(0, 20),)


def test_parts_end_between_turns_only_where_one_begins_near() -> None:
    """A short turn and a giant one: cut at the giant's beginning the first part would stand for next to nothing."""
    steps = [message("assistant", words(100, f"s{n}")) for n in range(8)]
    talk = conversation(*turns(1), message("user", "do all of it"), *steps, QUESTION)
    parts = split_span(talk.transcript, Span(0, 11), replace(SETTINGS, source_tokens=560))
    assert parts == (Span(0, 6), Span(6, 11))


def test_no_part_ends_before_a_users_message_that_holds_results() -> None:
    steps = [
        message_
        for step in range(8)
        for message_ in (
            message("assistant", calls=[f"t{step}"], tokens=20),
            replace(message("user", f"{step} {words(499)}"), answers=(f"t{step}",)),
        )
    ]
    talk = conversation(message("user", "do it"), *steps, message("assistant", "done"))
    spans = split_span(talk.transcript, Span(0, 17), replace(SETTINGS, source_tokens=1_000))
    assert len(spans) > 2
    assert {span.stop for span in spans} <= {*talk.transcript.cuts, 17}


def test_one_large_turn_is_cut_between_units() -> None:
    steps = [message("assistant", words(100, f"s{n}")) for n in range(6)]
    talk = conversation(message("user", "q"), *steps, QUESTION)
    parts = split_span(talk.transcript, Span(0, 7), replace(SETTINGS, input_tokens=300, part_tokens=250))
    assert parts == (Span(0, 3), Span(3, 5), Span(5, 7))


def test_a_unit_larger_than_one_call_is_a_part_of_its_own() -> None:
    talk = conversation(message("user", words(900)), message("assistant", "ok"), message("user", words(900)), QUESTION)
    parts = split_span(talk.transcript, Span(0, 3), replace(SETTINGS, input_tokens=300, part_tokens=250))
    assert parts == (Span(0, 2), Span(2, 3))


def test_half_a_span_is_about_half_its_tokens() -> None:
    talk = conversation(*turns(3), QUESTION)
    assert halves(talk.transcript, Span(0, 6)) == (Span(0, 3), Span(3, 6))
    assert halves(talk.transcript, Span(0, 1)) == (Span(0, 1),)


def test_what_is_too_little_for_a_summary_goes_with_its_neighbour() -> None:
    """Between two large units a short exchange would get a part of its own, whose summary cannot be smaller."""
    talk = conversation(
        message("user", words(40)),
        message("assistant", words(900)),
        *turns(1, size=20),
        message("user", words(900)),
        message("assistant", words(200)),
        message("assistant", "There is more."),
    )
    parts = split_span(talk.transcript, Span(0, 6), replace(SETTINGS, input_tokens=300, part_tokens=250))
    assert parts == (Span(0, 5), Span(5, 6))  # The second large message is carried: nothing of it is replaced.


def test_a_range_too_small_for_any_summary_is_not_tried() -> None:
    """Over the limit, too: the call could only be refused, on every request anew."""
    talk = conversation(*turns(1, size=40), message("user", words(950)))
    assert plan_compaction(talk, [], budget(), SETTINGS, "s") is None


# A summary of everything before the tail


@pytest.mark.parametrize(("strategy", "start"), [("full", 0), ("checkpoint", 8), ("rolling", 8)])
def test_a_summary_of_everything_reads_the_originals_or_what_the_last_one_lacks(strategy: Strategy, start: int) -> None:
    talk = conversation(*turns(12, size=40), QUESTION)
    plan = plan_compaction(talk, [chunk(talk, 0, 8)], budget(), replace(SETTINGS, strategy=strategy), "s")
    assert plan is not None
    assert plan.spans == (Span(start, 18),)
    assert (plan.range.from_digest, plan.range.through_digest) == (talk.chain[0], talk.chain[18])


def test_a_summary_of_everything_counts_once_however_many_there_were() -> None:
    """The chunks it takes the place of leave the view: they do not narrow the tail."""
    talk = conversation(*turns(8, size=40), QUESTION)
    base = Path((chunk(talk, 0, 4, tokens=300),), 4, 300)
    assert choose_cut(talk, base, budget(), EVERYTHING) == 10
    assert choose_cut(talk, base, budget(), SETTINGS) == 14


@pytest.mark.parametrize(
    "talk",
    [
        conversation(QUESTION),  # nothing stands before the last unit
        conversation(*turns(1, size=40), message("user", words(950))),  # too little for a summary
        conversation(*turns(1, size=60), message("user", words(650)), message("assistant", words(300))),  # frees little
    ],
)
def test_where_little_can_be_summarised_no_summary_of_everything_is_made(talk: Conversation) -> None:
    assert plan_compaction(talk, [], budget(2_000), replace(SETTINGS, strategy="rolling"), "s") is None


def agent_turn(steps: int) -> Conversation:
    """A short turn, and a long one of units of 100 tokens."""
    units = [
        step
        for number in range(steps)
        for step in (
            message("assistant", calls=[f"c{number}"], tokens=20),
            message("tool", "result", tokens=80, answers=f"c{number}"),
        )
    ]
    return conversation(*turns(1), message("user", "do all of it"), *units)


CHECKPOINTS = budget(10_000, trigger=Trigger((Condition(since=1_000),)), tail_turns=0, tail=5_000)


def test_a_checkpoint_is_made_between_turns_where_what_follows_does_not_fire_the_trigger() -> None:
    assert choose_cut(agent_turn(9), Path(), CHECKPOINTS, EVERYTHING) == 2


def test_inside_a_turn_half_of_what_may_follow_a_checkpoint_is_left() -> None:
    """Otherwise the agent's next step would fire it again, and so would every other one."""
    talk = agent_turn(12)
    cut = choose_cut(talk, Path(), CHECKPOINTS, EVERYTHING)
    assert cut is not None
    assert talk.transcript.tokens(cut) == 500
    assert talk.transcript.carried(0, cut, cut) == (2,)


def test_a_unit_that_fires_the_trigger_by_itself_stays_all_the_same() -> None:
    talk = conversation(*turns(3), QUESTION, message("assistant", words(1_500)))
    assert choose_cut(talk, Path(), CHECKPOINTS, EVERYTHING) == 7
    assert plan_compaction(talk, [], CHECKPOINTS, replace(SETTINGS, strategy="checkpoint"), "s") is None


def test_pins_count_in_what_a_compaction_brings() -> None:
    """Copies that fill the view again make each compaction due anew: then none is made."""
    for pinned, worth_it in ((4, True), (16, False)):
        talk = conversation(*turns(10, size=40), message("user", "last"))
        talk = talk.with_pins(Pins(tuple(range(pinned))))
        assert (plan_compaction(talk, [], budget(), SETTINGS, "additive") is not None) == worth_it


def test_a_history_of_many_parts_is_summarised_over_several_compactions() -> None:
    """A first sight of 1.5 million tokens in parts of 16,384: 64 of them, and the rest next time."""
    talk = conversation(*turns(1_500, size=500), QUESTION)
    settings = replace(SETTINGS, input_tokens=16_384, part_tokens=16_384, source_tokens=16_384)
    limits = budget(128_000, summary=400)
    chunks: list[SummaryChunk] = []
    sizes = []
    while build_view(talk, widest_path(talk, chunks)).tokens > limits.target:
        plan = plan_compaction(talk, chunks, limits, settings, "additive")
        assert plan is not None
        assert plan.range.through_digest == talk.chain[plan.spans[-1].stop]
        chunks += [chunk(talk, span.start, span.stop) for span in plan.spans]
        sizes.append(len(plan.spans))
    assert sizes == [MOST_PARTS, 30]


def test_many_parts_are_made_although_they_do_not_suffice_yet() -> None:
    talk = conversation(*turns(1_000, size=500), QUESTION)
    tiny = replace(SETTINGS, source_tokens=1_200)
    plan = plan_compaction(talk, [], budget(1_200_000, summary=400), tiny, "additive")
    assert plan is not None
    assert len(plan.spans) == MOST_PARTS


@pytest.mark.parametrize("strategy", ["full", "rolling"])
def test_one_summary_of_everything_is_made_in_steps_where_it_takes_many_parts(strategy: Strategy) -> None:
    talk = conversation(*turns(1_000, size=500), QUESTION)
    settings = replace(SETTINGS, strategy=strategy, input_tokens=5_000, part_tokens=5_000)
    limits = budget(128_000, summary=400)
    chunks: list[SummaryChunk] = []
    starts = []
    while build_view(talk, widest_path(talk, chunks)).tokens > limits.target:
        plan = plan_compaction(talk, chunks, limits, settings, strategy)
        assert plan is not None
        assert len(plan.spans) <= MOST_PARTS
        starts.append(plan.spans[0].start)
        chunks.append(chunk(talk, 0, plan.spans[-1].stop))
    assert starts == [0, 512, 1_024, 1_536]


# Asked for


def test_what_is_asked_for_is_all_but_the_last_unit_however_little_it_frees() -> None:
    talk = conversation(*turns(2, size=5), QUESTION)
    assert plan_compaction(talk, [], budget(), SETTINGS, "additive") is None
    plan = plan_asked(talk, Path(), SETTINGS, "additive")
    assert plan is not None
    assert (plan.spans, plan.asked) == ((Span(0, 4),), True)
    assert (plan.range.from_digest, plan.range.through_digest) == (talk.chain[0], talk.chain[4])


def test_what_is_asked_for_goes_on_from_what_there_is() -> None:
    talk = conversation(*turns(4, size=40), QUESTION)
    base = widest_path(talk, [chunk(talk, 0, 4)])
    plan = plan_asked(talk, base, SETTINGS, "additive")
    assert plan is not None
    assert plan.spans == (Span(4, 8),)
    assert plan.range.from_digest == talk.chain[4]
    whole = plan_asked(talk, base, EVERYTHING, "full")
    assert whole is not None
    assert whole.spans == (Span(0, 8),)
    assert whole.range.from_digest == talk.chain[0]


def test_what_is_asked_for_up_to_a_place_ends_there_or_before() -> None:
    talk = conversation(*turns(4, size=40), QUESTION)
    plan = plan_asked(talk, Path(), SETTINGS, "additive", cut_at(talk, (), 5))
    assert plan is not None
    assert plan.spans == (Span(0, cut_at(talk, (), 5)),)
    assert cut_at(talk, (), 4) == 4
    assert cut_at(talk, (), 999) == last_cut(talk) == 8
    assert cut_at(talk, (), 0) == cut_at(conversation(), (), 3) == last_cut(conversation()) == 0
    base = case(talk, chunk(talk, 0, 4), chunk(talk, 4, 8)).widest_path_to(7)
    assert base.covered == 4
    assert plan_asked(talk, base, SETTINGS, "additive", 4) is None


def test_what_is_asked_for_does_not_end_between_summaries_that_are_used_together() -> None:
    talk = conversation(*turns(4, size=40), QUESTION)
    parts = [chunk(talk, 0, 4, continued=True), chunk(talk, 4, 8)]
    assert cut_at(talk, parts, 4) < 4
    assert cut_at(talk, parts, 8) == 8


def test_nothing_is_planned_where_all_is_summarised_or_there_is_nothing() -> None:
    talk = conversation(*turns(4, size=40), QUESTION)
    assert plan_asked(talk, widest_path(talk, [chunk(talk, 0, 8)]), SETTINGS, "additive") is None
    assert plan_asked(conversation(QUESTION), Path(), SETTINGS, "additive") is None
    assert plan_asked(conversation(), Path(), SETTINGS, "additive") is None


def test_of_more_parts_than_one_compaction_makes_the_last_summary_is_gone_on_from() -> None:
    talk = conversation(*turns(1_500, size=500), QUESTION)
    tight = replace(EVERYTHING, input_tokens=16_384, part_tokens=16_384)
    plan = plan_asked(talk, widest_path(talk, [chunk(talk, 0, 4)]), tight, "full")
    assert plan is not None
    assert (plan.spans[0].start, len(plan.spans)) == (4, MOST_PARTS)

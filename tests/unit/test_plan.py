"""Planning: what is summarised, where the tail begins, in how many parts."""

from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.budget import Budget, Trigger
from app.compaction.chunks import SummaryChunk
from app.compaction.plan import MOST_PARTS, Plan, Span, choose_cut, split_span
from app.compaction.planning_state import Path, Strategy, build_view
from app.compaction.view import Conversation
from app.conversation.messages import Message
from tests.unit.conversations import (
    SETTINGS,
    budget,
    chunk,
    conversation,
    message,
    plan_compaction,
    sure,
    turns,
    widest_path,
    words,
)

QUESTION = message("user", "the last question")


def spread(talk: Conversation, stop: int, **changes: Any) -> tuple[Span, ...]:
    return split_span(talk.transcript, Span(0, stop), replace(SETTINGS, **changes))


def compaction(talk: Conversation, *stored: SummaryChunk, limits: Budget | None = None, **changes: Any) -> Plan | None:
    return plan_compaction(talk, stored, limits or budget(), replace(SETTINGS, **changes), "s")


def test_what_has_come_since_a_part_was_made_goes_with_it_where_one_call_reads_both() -> None:
    talk = conversation(*turns(10, size=40), QUESTION)
    settings, made = replace(SETTINGS, input_tokens=400, part_tokens=400), [Span(4, 8), Span(8, 12)]
    grown = [split_span(talk.transcript, Span(0, stop), settings, made) for stop in (12, 14, 20)]
    assert grown[0] == (Span(0, 4), *made)
    assert grown[1] == (Span(0, 4), Span(4, 8), Span(8, 14))
    assert grown[2][:3] == grown[0]


CUTS: dict[str, tuple[list[Message], int, Budget, int]] = {
    # The last question and the three turns before it.
    "three whole turns and the current one stay where they fit": (turns(10, size=20), 0, budget(), 14),
    # Turns of 0.12 L: with the question two whole ones are under 0.30 L, three are not.
    "the tail degrades until it fits its share": (turns(8, size=60), 0, budget(), 12),
    "the tail degrades until the view meets the target": (turns(8, size=40), 300, budget(), 14),
    # Ten turns of 20 tokens: the three and the question take 64, a fill of 150 holds seven of them.
    "more turns stay while they are small": (turns(10, size=10), 0, budget(tail_fill=150), 6),
    "so do more turns that are to stay": (turns(10, size=10), 0, budget(tail_fill=150, tail_turns=8), 4),
    "a tail of no more turns counts once": (turns(10, size=20), 0, budget(trigger=Trigger(700, since=150)), 14),
}


@pytest.mark.parametrize(("said", "fixed", "limits", "cut"), CUTS.values(), ids=CUTS)
def test_as_many_turns_stay_verbatim_as_have_room(said: list[Message], fixed: int, limits: Budget, cut: int) -> None:
    assert choose_cut(conversation(*said, QUESTION, fixed=fixed), Path(), limits, SETTINGS) == cut


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


SMALLER = conversation(*turns(1, size=50), *turns(3, size=75, first=1), QUESTION)
FOUR_TURNS, TEN_TURNS = conversation(*turns(4), QUESTION), conversation(*turns(10, size=40), message("user", "last"))
FEW, LARGE = budget(summary=110, tail=500, target=700), conversation(*turns(4, size=60), QUESTION, fixed=700)
MADE: dict[str, tuple[Conversation, list[tuple[int, int, int]], Budget, bool]] = {
    "one that frees more than a tenth": (SMALLER, [], budget(summary=110), True),
    "none that frees less": (SMALLER, [], FEW, False),
    # Of 120 tokens one of 60 is asked for: that frees more than a tenth, and one of 110 would not.
    "one that is expected to be as small as it is asked to be": (
        conversation(*turns(4, size=60), QUESTION),
        [],
        FEW,
        True,
    ),
    "none that cannot bring the view under the trigger": (
        conversation(*turns(4, size=60), QUESTION, fixed=450),
        [],
        budget(trigger=400),
        False,
    ),
    "any gain over the limit": (LARGE, [], budget(trigger=400), True),
    # Copies of all that the summary would stand for.
    "no gain": (LARGE.with_pins(tuple(range(8))), [], budget(trigger=400), False),
    # Over the limit, too: the call could only be refused, on every request anew.
    "none of too little for any summary": (
        conversation(*turns(1, size=40), message("user", words(950))),
        [],
        budget(),
        False,
    ),
    "none of too few chunks": (conversation(*turns(2), QUESTION), [(0, 2, 300), (2, 4, 300)], budget(), False),
    "one of three chunks over their share": (
        conversation(*turns(3), QUESTION),
        [(n, n + 2, 300) for n in (0, 2, 4)],
        budget(),
        True,
    ),
    "none of small chunks": (FOUR_TURNS, [(n, n + 2, 10) for n in (0, 2, 4, 6)], budget(), False),
    # Copies that fill the view again make each compaction due anew.
    "one that leaves room for copies": (TEN_TURNS.with_pins(tuple(range(4))), [], budget(), True),
    "none where copies fill the view again": (TEN_TURNS.with_pins(tuple(range(16))), [], budget(), False),
}


@pytest.mark.parametrize(("talk", "stored", "limits", "made"), MADE.values(), ids=MADE)
def test_a_compaction_is_made_where_it_is_worth_it(
    talk: Conversation, stored: list[tuple[int, int, int]], limits: Budget, made: bool
) -> None:
    chunks = [chunk(talk, start, stop, tokens=tokens) for start, stop, tokens in stored]
    assert (compaction(talk, *chunks, limits=limits) is not None) is made


# Parts

LONG_STEPS = [message("assistant", words(100, f"s{n}")) for n in range(8)]
TWENTY = conversation(*turns(10), QUESTION)
DO_IT = message("user", "do all of it")
PARTS: dict[str, tuple[Conversation, int, dict[str, Any], list[int]]] = {
    "what one call can read is one part": (TWENTY, 20, {"input_tokens": 1_120, "part_tokens": 10}, []),
    "what exceeds one call is cut between turns": (TWENTY, 20, {"input_tokens": 900, "part_tokens": 470}, [6, 12]),
    "one summary stands for a bounded part of what one call could read": (TWENTY, 20, {"source_tokens": 470}, [6, 12]),
    "but not one of everything": (TWENTY, 20, {"source_tokens": 470, "strategy": "rolling"}, []),
    # A short turn and a giant one: cut at the giant's beginning the first part would stand for next to nothing.
    "parts end between turns only where one begins near": (
        conversation(*turns(1), DO_IT, *LONG_STEPS, QUESTION),
        11,
        {"source_tokens": 560},
        [6],
    ),
    "one large turn is cut between units": (
        conversation(DO_IT, *LONG_STEPS[:6], QUESTION),
        7,
        {"input_tokens": 300, "part_tokens": 250},
        [3, 5],
    ),
    "a unit larger than one call is a part of its own": (
        conversation(message("user", words(900)), message("assistant", "ok"), message("user", words(900)), QUESTION),
        3,
        {"input_tokens": 300, "part_tokens": 250},
        [2],
    ),
    # Between two large units a short exchange would get a part of its own, whose summary cannot be smaller. The second
    # large message is carried: nothing of it is replaced.
    "what is too little for a summary goes with its neighbour": (
        conversation(
            message("user", words(40)),
            message("assistant", words(900)),
            *turns(1, size=20),
            message("user", words(900)),
            message("assistant", words(200)),
            message("assistant", "There is more."),
        ),
        6,
        {"input_tokens": 300, "part_tokens": 250},
        [5],
    ),
}


@pytest.mark.parametrize(("talk", "stop", "changes", "ends"), PARTS.values(), ids=PARTS)
def test_a_span_is_summarised_in_parts(talk: Conversation, stop: int, changes: dict[str, Any], ends: list[int]) -> None:
    edges = [0, *ends, stop]
    assert spread(talk, stop, **changes) == tuple(map(Span, edges, edges[1:]))


def test_no_part_ends_before_a_users_message_that_holds_results() -> None:
    said = [
        part
        for step in range(8)
        for part in (
            message("assistant", calls=[f"t{step}"], tokens=20),
            replace(message("user", f"{step} {words(499)}"), answers=(f"t{step}",)),
        )
    ]
    talk = conversation(message("user", "do it"), *said, message("assistant", "done"))
    spans = spread(talk, 17, source_tokens=1_000)
    assert len(spans) > 2
    assert {span.stop for span in spans} <= {*talk.transcript.cuts, 17}


# A summary of everything before the tail


@pytest.mark.parametrize(("strategy", "start"), [("full", 0), ("checkpoint", 8), ("rolling", 8)])
def test_a_summary_of_everything_reads_the_originals_or_what_the_last_one_lacks(strategy: Strategy, start: int) -> None:
    talk = conversation(*turns(12, size=40), QUESTION)
    plan = sure(compaction(talk, chunk(talk, 0, 8), strategy=strategy))
    assert plan.spans == (Span(start, 18),)
    assert (plan.range.from_digest, plan.range.through_digest) == (talk.chain[0], talk.chain[18])


def test_a_history_of_many_parts_is_summarised_over_several_compactions() -> None:
    """A first sight of 1.5 million tokens in parts of 16,384: 64 of them, and the rest next time."""
    talk = conversation(*turns(1_500, size=500), QUESTION)
    settings = replace(SETTINGS, input_tokens=16_384, part_tokens=16_384, source_tokens=16_384)
    limits = budget(128_000, summary=400)
    chunks: list[SummaryChunk] = []
    sizes = []
    while build_view(talk, widest_path(talk, chunks)).tokens > limits.target:
        plan = sure(plan_compaction(talk, chunks, limits, settings, "additive"))
        assert plan.range.through_digest == talk.chain[plan.spans[-1].stop]
        chunks += [chunk(talk, span.start, span.stop) for span in plan.spans]
        sizes.append(len(plan.spans))
    assert sizes == [MOST_PARTS, 30]


@pytest.mark.parametrize("strategy", ["full", "rolling"])
def test_one_summary_of_everything_is_made_in_steps_where_it_takes_many_parts(strategy: Strategy) -> None:
    talk = conversation(*turns(1_000, size=500), QUESTION)
    settings = replace(SETTINGS, strategy=strategy, input_tokens=5_000, part_tokens=5_000)
    limits = budget(128_000, summary=400)
    chunks: list[SummaryChunk] = []
    starts = []
    while build_view(talk, widest_path(talk, chunks)).tokens > limits.target:
        plan = sure(plan_compaction(talk, chunks, limits, settings, strategy))
        assert len(plan.spans) <= MOST_PARTS
        starts.append(plan.spans[0].start)
        chunks.append(chunk(talk, 0, plan.spans[-1].stop))
    assert starts == [0, 512, 1_024, 1_536]

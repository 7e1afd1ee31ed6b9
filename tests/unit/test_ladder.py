"""The ladder: what is sent, from the stored summaries down to the client's own bytes."""

from app.core.budget import Line
from app.core.chunks import SummaryChunk
from app.core.coverage import coverage_of
from app.core.ladder import Decision, settle, untouched
from app.core.policy import Policy
from app.core.view import Conversation, Path, build_view
from tests.unit.conversations import budget, case, chunk, conversation, message, turns

FIT_ONLY = Policy(prune=False, emergency=False)
QUESTION = message("user", "the last question")
TALK = conversation(message("system", "rules"), *turns(10, size=40), QUESTION)
"""804 tokens: over the trigger of 700, under the limit of 1,000."""


def settled(talk: Conversation, *chunks: SummaryChunk, reason: str | None = None, in_vain: bool = False) -> Decision:
    return settle(case(talk, *chunks, policy=FIT_ONLY), reason, in_vain=in_vain)


def test_at_the_trigger_the_clients_bytes_go() -> None:
    assert untouched(conversation(*turns(7, size=50)), Policy(), budget(), "m") == Decision(None)
    assert untouched(TALK, Policy(), budget(), "m") is None


def test_a_floor_over_the_limit_is_named_with_its_numbers() -> None:
    talk = conversation(*turns(2), QUESTION, fixed=1_000)
    decision = untouched(talk, Policy(), budget(), "gpt-4")
    assert decision is not None
    assert decision.reason == (
        "floor_exceeds_limit: the instructions take about 0 tokens, tools and format 1000, the last user message 3;"
        " gpt-4 leaves room for 1000"
    )


def test_a_stored_summary_that_fits_needs_no_reason() -> None:
    stored = chunk(TALK, 0, 10)
    decision = settled(TALK, stored, reason="summary_failed")
    assert (decision.status, decision.actions, decision.reason) == ("summarized", ("summarized",), None)
    assert decision.view is not None
    assert decision.view.chunks == (stored,)


def test_between_trigger_and_limit_every_chunk_in_use_stays_in_use() -> None:
    """Giving one up would break the prompt's prefix for nothing."""
    talk = conversation(*turns(10, size=60), QUESTION)
    decision = settled(talk, chunk(talk, 0, 2), chunk(talk, 0, 6), reason="why")
    assert decision.view is not None
    assert decision.view.tokens > budget().trigger.tokens
    assert [c.id for c in decision.view.chunks] == ["c0-6"]
    assert decision.reason == "why"


def test_a_failed_summary_that_still_fits_leaves_the_clients_bytes() -> None:
    assert settled(TALK, reason="why", in_vain=True) == Decision(None, (), "why", failed=True)


def test_over_the_limit_large_texts_are_shortened() -> None:
    talk = conversation(message("user", "w " * 2_000), message("assistant", "ok"), QUESTION)
    decision = settled(talk, reason="why")
    assert (decision.status, decision.actions, decision.reason) == ("full", ("shortened",), "why")


def test_what_nothing_brings_under_the_limit_goes_as_it_came() -> None:
    held = conversation(*turns(20, size=60), QUESTION)
    decision = settled(held, chunk(held, 0, 2), reason="why", in_vain=True)
    assert decision == Decision(None, (), "why: over_the_limit", failed=True)
    assert settled(held, chunk(held, 0, 2)).reason == "over_the_limit"


def test_coverage_tells_each_part_in_order() -> None:
    agent = conversation(
        message("system", "rules"), *turns(2), message("user", "do it"), message("assistant", "a"), QUESTION
    )
    made = chunk(agent, 0, 6, carried=(4,))
    parts = coverage_of(agent, build_view(agent, Path((made,), 6, 22)))
    assert parts == [
        {"kind": "instructions", "messages": 1, "tokens": 1},
        {"kind": "summarized", "first_index": 0, "last_index": 5, "summary_id": "c0-6", "tokens": 20},
        {"kind": "carried", "first_index": 4, "last_index": 4, "tokens": 2},
        {"kind": "verbatim", "first_index": 6, "last_index": 6, "tokens": 3},
    ]


def test_coverage_tells_what_was_shortened_and_of_untouched_histories_too() -> None:
    talk = conversation(message("user", "w " * 2_000), message("assistant", "ok"), QUESTION)
    kinds = [part["kind"] for part in coverage_of(talk, settled(talk, reason="why").view)]
    assert kinds == ["instructions", "shortened", "verbatim"]
    assert [part["kind"] for part in coverage_of(talk, None)] == ["instructions", "verbatim"]


def test_the_parts_add_up_to_what_the_provider_will_count() -> None:
    talk = conversation(message("system", "be kind"), *turns(5), fixed=40)
    for line in (Line(), Line(offset=120, ratio=1.37)):
        parts = coverage_of(talk, None, line)
        assert sum(part["tokens"] for part in parts) == line.reported(talk.tokens)


def test_instructions_in_the_middle_are_part_of_the_floor() -> None:
    rules = message("developer", "rule " * 950)
    talk = conversation(*turns(2), rules, *turns(2), QUESTION)
    assert talk.floor == 950 + 3
    decision = untouched(talk, Policy(), budget(950), "m")
    assert decision is not None
    assert (decision.reason or "").startswith("floor_exceeds_limit")

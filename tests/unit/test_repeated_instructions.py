"""Instructions that repeat: the newest of the same beginning stays one, once they take too much."""

from __future__ import annotations

from app.compaction.select import usable
from app.conversation.messages import Kind, Message
from tests.unit.conversations import chunk, conversation, message, words


def passages(turns: int, said: str = "Passages for question {}.") -> list[Message]:
    """A turn each with instructions for its question."""
    return [
        each
        for turn in range(turns)
        for each in (
            message("user", f"Question {turn}?"),
            message("system", f"{said.format(turn)} {words(40)}"),
            message("assistant", f"Answer {turn}."),
        )
    ]


def test_only_the_newest_of_the_same_beginning_stays_where_they_take_over_half_of_the_limit() -> None:
    talk = conversation(message("system", "Be kind."), *passages(3), message("system", "Another rule."), *passages(1))
    instructions = sum(map(talk.transcript.tokens_of, talk.transcript.messages.instruction_places))
    assert talk.with_newest_instructions(2 * instructions) is talk
    released = talk.with_newest_instructions(2 * instructions - 1)
    assert released.superseded == {1, 4, 7}
    assert released.transcript.messages.instruction_places == (9, 11)
    assert all(released.transcript.messages[place].sealed for place in released.superseded), "quoted nowhere"
    assert (released.tokens, released.chain.digests) == (talk.tokens, talk.chain.digests)
    assert released.floor < talk.floor


def test_instructions_that_begin_differently_stay() -> None:
    talk = conversation(*passages(1), *passages(1, "The house rules, part {}."))
    assert talk.with_newest_instructions(1) is talk


def test_a_summary_that_carries_superseded_instructions_is_not_used() -> None:
    talk = conversation(*passages(4))
    released = talk.with_newest_instructions(1)
    carrying, plain = chunk(talk, 0, 6, carried=(1, 4)), chunk(talk, 0, 6)
    assert [found[2] for found in usable(talk, [carrying])] == [carrying]
    assert [found[2] for found in usable(released, [carrying, plain])] == [plain]
    assert {released.transcript.messages[place].kind for place in (1, 4, 7)} == {Kind.OTHER}

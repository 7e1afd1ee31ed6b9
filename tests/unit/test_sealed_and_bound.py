"""What other formats hold: several results in one message, sealed messages, and messages bound to the next one."""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.mask import MaskPolicy, Masks
from app.compaction.prompts import failed_results, quote_chunks, quote_messages
from app.compaction.trim import alter, prune, results
from app.compaction.verify import problems, repair
from app.compaction.view import Altered, Note, Pruned, Verbatim, View, whole
from app.conversation.messages import Kind, Message, ToolCall
from app.tokens.counting_rules import rules_for
from app.tokens.estimate import unit_tokens
from tests.unit.conversations import chunk, conversation, cost, count, message, transcript_of, turns, words

USER, DONE = message("user", "q"), message("assistant", "done")
THOUGHT = replace(message("assistant", tokens=5), sealed=True, bound=True)
"""Signed, and refused without the message after it."""


def sealed(made: Message) -> Message:
    return replace(made, sealed=True)


def test_one_result_of_two_does_not_answer_both_calls() -> None:
    halved = transcript_of([USER, message("assistant", calls=["a", "b"]), message("tool", "ra", answers="a"), USER])
    assert not halved.is_answered(1, 3)


# Several results


def test_a_users_message_may_hold_results_and_a_question() -> None:
    asking = replace(message("user", "r and so"), answers=("a",))
    talk = conversation(USER, message("assistant", calls=["a"]), asking, DONE, USER)
    assert talk.transcript.turn_starts == (0, 4)  # Said while the assistant was at work: the turn goes on.
    assert talk.transcript.cuts == (0, 1, 3, 4)
    assert talk.transcript.is_answered(1, 3)
    assert repair(talk, whole(talk), cost) == whole(talk)
    assert problems(talk, whole(talk), 1_000) == []
    alone = View((Verbatim(0, 1), Pruned(1, 2), Verbatim(2, 5)), 9)
    assert "tool_pair_split" in problems(talk, alone, 1_000)
    assert prune(talk, whole(talk), 3, 3, cost, stub=False).parts == (Pruned(0, 3), Verbatim(3, 5))


# Calls that the provider answers itself


def test_a_settled_call_needs_no_result_and_is_counted_quoted_and_named() -> None:
    searched = replace(message("assistant", "found"), settled=(ToolCall("s", "search", '{"q": 1}'),))
    talk = conversation(USER, searched, USER)
    assert talk.transcript.cuts == (0, 1, 2)
    assert problems(talk, whole(talk), 1_000) == []
    assert 'calls search with {"q": 1}' in quote_messages([USER, searched], 0, (), "abcdef01")
    rules = rules_for("gpt-4o")
    plain, [counted] = (unit_tokens([made], rules, count) for made in (message("assistant", "found"), searched))
    assert counted == plain[0] + 3 + count("search") + count('{"q": 1}')
    pruned = prune(talk, whole(talk), 2, 2, cost, stub=True)
    [note] = [part for part in pruned.parts if isinstance(part, Note)]
    assert "search" in note.text
    assert searched.kind is Kind.ASSISTANT


# Sealed


def test_a_sealed_message_is_not_altered_and_not_masked() -> None:
    result = message("tool", words(500), answers="a")
    for held, may in ((result, True), (sealed(result), False)):
        talk = conversation(USER, message("assistant", calls=["a"]), held, DONE, USER)
        cut = alter(talk, whole(talk), "shortened", cost, lambda _, m: replace(m, texts=tuple("x" for _ in m.texts)))
        assert any(isinstance(part, Altered) and part.index == 2 for part in cut.parts) is may
        assert (2 in results(talk, whole(talk))) is may
        masks = Masks(talk.transcript, MaskPolicy(), cost)
        assert [index for index, _ in masks.between(0, 4)] == ([2] if may else [])


def test_a_sealed_message_is_quoted_to_no_summariser() -> None:
    secret = message("assistant", "secret")
    assert "secret" in quote_messages([USER, secret], 0, (), "abcdef01")
    assert "secret" not in quote_messages([USER, sealed(secret)], 0, (), "abcdef01")
    talk = conversation(*turns(3))
    made = chunk(talk, 0, 2)
    assert "secret" in quote_chunks([made], {1: secret}, "abcdef01")
    assert "secret" not in quote_chunks([made], {1: sealed(secret)}, "abcdef01")
    failed = message("tool", "Error: secret", answers="a")
    assert "secret" in failed_results([failed], 3)
    assert "secret" not in failed_results([sealed(failed)], 3)


def test_a_sealed_message_with_a_call_that_nobody_answered_goes_as_a_whole() -> None:
    caller = message("assistant", "look", calls=["a", "b"])
    talk = conversation(USER, sealed(caller), message("tool", "ra", answers="a"), DONE, USER)
    assert repair(talk, whole(talk), cost).parts == (
        Verbatim(0, 1),
        Pruned(1, 2, "repaired"),
        Pruned(2, 3, "repaired"),
        Verbatim(3, 5),
    )


# Bound


def test_a_bound_message_is_one_unit_with_what_follows() -> None:
    call = message("assistant", calls=["a"])
    result = message("tool", "r", answers="a")
    assert transcript_of([USER, THOUGHT, DONE, USER]).cuts == (0, 1, 3)
    assert transcript_of([USER, THOUGHT, THOUGHT, call, result, USER]).cuts == (0, 1, 5)
    assert transcript_of([USER, call, THOUGHT, result, USER]).cuts == (0, 1, 4)


def test_a_payload_in_which_a_bound_message_stands_alone_is_not_sent() -> None:
    talk = conversation(USER, THOUGHT, DONE, USER)
    assert problems(talk, whole(talk), 1_000) == []
    assert problems(talk, View((Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 4)), 10), 100) == ["bound_message_parted"]
    ended = conversation(USER, THOUGHT)
    assert problems(ended, whole(ended), 1_000) == []  # As the client sent it.

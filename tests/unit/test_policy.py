"""Policies: what they read and when they have nothing to do."""

from __future__ import annotations

from app.compaction.mask import MaskPolicy
from app.compaction.policy import Policy
from app.compaction.trim import SessionPruning
from app.compaction.view import Conversation
from tests.unit.conversations import budget, conversation, message, turns

QUESTION = message("user", "the last question")


def test_a_history_at_the_trigger_is_left_alone_and_one_token_more_is_not() -> None:
    assert Policy().leaves_alone(conversation(message("user", tokens=700)), budget())
    assert not Policy().leaves_alone(conversation(message("user", tokens=701)), budget())


def test_session_pruning_goes_by_the_fill_in_characters() -> None:
    """A window of 100 tokens is one of 400 characters for it: 120 are a fill of 0.30."""
    adaptive = Policy(strategy="none", mask=None, session_pruning=SessionPruning())
    for size, quiet in ((119, True), (120, False)):
        talk = conversation(message("user", "x" * size))
        assert adaptive.leaves_alone(talk, budget(100, trigger=1_000)) is quiet


def test_a_history_that_is_surely_small_is_not_counted() -> None:
    unknown = conversation(QUESTION, bound=700)
    assert Policy().leaves_alone(unknown, budget())
    assert not Policy().leaves_alone(conversation(message("user", tokens=900), bound=901), budget())


def test_what_surely_stays_as_it_is_need_not_be_counted() -> None:
    limits = budget(1_000)
    small, large, unknown = (conversation(*turns(3, size=20), bound=bound) for bound in (700, 701, None))

    def is_sure(policy: Policy, talk: Conversation) -> bool:
        return policy.leaves_alone(talk, limits, counts=False)

    assert is_sure(Policy(), small)
    assert not is_sure(Policy(), large)
    assert not is_sure(Policy(), unknown)
    assert not is_sure(Policy(mask=MaskPolicy(pressure=0.5)), small)
    assert not is_sure(Policy(window_turns=1), small)

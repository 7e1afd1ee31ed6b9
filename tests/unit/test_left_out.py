"""Rules of messages that are left out without a summary: a stub ends with them, letter by letter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.history.messages import Message
from app.core.quoting import fence_of
from app.core.stages.case import Case, case_of
from app.core.stages.ladder import settle
from app.core.stages.policy import Policy
from app.core.summary import left_out
from app.core.summary.left_out import RulesLeftOut
from app.core.summary.prompts import RULES_HEADING
from app.core.summary.rules import rules_of
from app.core.view.verify import problems
from app.core.view.view import Conversation, Note, Pins, Pruned, View
from tests.unit import worlds
from tests.unit.conversations import budget, case, chunk, conversation, cost, count, message, sure, turns, words

NO_SUMMARIES = Policy(strategy="none", mask=None, fit=False, emergency=False)
QUESTION = message("user", "the last question")
NEVER, TABS = "Never push to main.", "Always use tabs."
LONG = f"Never {words(90)}."


def said(*rules: str, number: int = 20, size: int = 50) -> list[Message]:
    """Turns, before which the user sets rules."""
    set_ = [part for rule in rules for part in (message("user", rule), message("assistant", "Yes."))]
    return [*set_, *turns(number, size), QUESTION]


def given_rules(talk: Conversation, *, room: int = 40) -> RulesLeftOut:
    return RulesLeftOut(talk, room, count)


def asked(talk: Conversation, *, policy: Policy = NO_SUMMARIES, limit: int = 1_000, room: int = 40) -> Case:
    return replace(case(talk, limits=budget(limit), policy=policy), rules=given_rules(talk, room=room))


def sent(asked: Case) -> View:
    view = sure(settle(asked).view)
    assert problems(asked.conversation, view, asked.budget.limit, alternates=asked.policy.alternates) == []
    parts = [part for part in view.parts if isinstance(part, Note)]
    assert view.tokens - asked.conversation.tokens == sum(part.tokens for part in parts) - sum(
        asked.conversation.transcript.tokens_of(index) for index in gone(view)
    )
    return view


def stub(view: View) -> str:
    return next((part.text for part in view.parts if isinstance(part, Note)), "")


def gone(view: View) -> list[int]:
    return [index for part in view.parts if isinstance(part, Pruned) for index in range(part.start, part.stop)]


def test_a_stub_ends_with_the_rules_of_what_is_left_out_newest_first() -> None:
    talk = conversation(*said(NEVER, f"Hello! {TABS}"))
    view = sent(asked(talk))
    fence = fence_of(talk.chain[max(gone(view)) + 1])
    assert stub(view).endswith(f".]\n{RULES_HEADING}\n<rules {fence}>\n{TABS}\n{NEVER}\n</rules {fence}>")


def test_without_rules_it_ends_as_before() -> None:
    talk = conversation(*said())
    plain = case(talk, policy=NO_SUMMARIES)
    assert sent(asked(talk)) == sent(plain)


def test_the_oldest_are_left_out_and_counted_where_there_is_no_room() -> None:
    talk = conversation(*said(NEVER, TABS, f"Never {words(50)}."))
    assert f">\n{TABS}\n</rules" in stub(sent(asked(talk, room=5)))
    assert stub(sent(asked(talk, room=5))).endswith("[2 older rules of the user could not be kept.]")
    assert stub(sent(asked(talk, room=1))).endswith("[3 older rules of the user could not be kept.]")
    one = conversation(*said(NEVER))
    assert stub(sent(asked(one, room=1))).endswith("[1 older rule of the user could not be kept.]")


def test_a_rule_that_is_set_again_stands_once_and_is_as_new_as_its_last_time() -> None:
    talk = conversation(*said(NEVER, TABS, NEVER))
    assert f">\n{NEVER}\n{TABS}\n</rules" in stub(sent(asked(talk)))


def test_where_a_request_has_no_room_for_them_it_is_sent_without() -> None:
    """The last question takes nearly all of it, with nothing more to leave out."""
    talk = conversation(*said(NEVER, number=2)[:-1], message("user", words(900)), message("assistant", "ok"))
    least = sent(case(talk, policy=NO_SUMMARIES)).tokens
    for room in range(0, 60, 5):
        view = sent(asked(talk, limit=least + room))
        assert view.tokens > least or NEVER not in stub(view)
    assert sent(asked(talk, limit=least)) == sent(case(talk, limits=budget(least), policy=NO_SUMMARIES))
    assert NEVER in stub(sent(asked(talk, limit=least + 60)))


def test_the_newest_alone_are_kept_where_a_request_has_room_for_some() -> None:
    history = said(NEVER, TABS, number=2)[:-1]
    talk = conversation(*history, message("user", words(900)), message("assistant", "ok"))
    least = sent(case(talk, policy=NO_SUMMARIES)).tokens
    kept = [stub(sent(asked(talk, limit=least + room))) for room in range(60)]
    assert any(TABS in text and "[1 older rule of the user could not be kept.]" in text for text in kept)
    assert not any(NEVER in text and TABS not in text for text in kept)


def test_what_an_estimate_makes_too_large_is_sent_without() -> None:
    """A text may take more tokens than its lines."""

    def dear(said: Message) -> int:
        return cost(said) * (1_000 if NEVER in said.text else 1)

    talk = conversation(*said(NEVER))
    assert NEVER not in stub(sent(replace(asked(talk), cost=dear)))


def test_a_rule_in_a_message_that_stays_is_not_said_again() -> None:
    talk = conversation(*said(NEVER, TABS)).with_pins(Pins((0,)))
    assert f">\n{TABS}\n</rules" in stub(sent(asked(talk)))
    late = conversation(*said()[:-1], message("user", NEVER))
    assert RULES_HEADING not in stub(sent(asked(late)))


def test_a_window_of_turns_leaves_them_in_its_stub() -> None:
    policy = replace(NO_SUMMARIES, window_turns=2)
    assert NEVER in stub(sent(asked(conversation(*said(NEVER, number=5)), policy=policy)))


def test_room_is_kept_for_them() -> None:
    """However full the payload is."""
    for number in range(60, 100):
        talk = conversation(*said(LONG, number=number, size=10))
        view = sent(asked(talk, policy=NO_SUMMARIES, room=200))
        assert LONG in stub(view)
        assert view.tokens <= 1_000


def test_they_stand_in_the_stub_and_not_in_a_note_between_two_messages_of_the_assistant() -> None:
    talk = conversation(*said(NEVER, number=2), *(message("assistant", words(300)) for _ in range(4)), QUESTION)
    view = sent(asked(talk, policy=replace(NO_SUMMARIES, alternates=True)))
    assert [NEVER in part.text for part in view.parts if isinstance(part, Note)].count(True) == 1


def test_without_a_stub_nothing_is_said_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading(monkeypatch)
    talk = conversation(*said(NEVER))
    quiet = replace(NO_SUMMARIES, stub=False)
    made = case_of(talk, quiet, budget(), cost, Pins(), given_rules(talk))
    assert sent(made) == sent(case(talk, policy=quiet))
    assert case_of(talk, NO_SUMMARIES, budget(), cost, Pins(), given_rules(talk)).rules
    fits = conversation(*said(NEVER, number=5))
    assert settle(asked(fits, policy=NO_SUMMARIES)).view is None
    assert read == []


def reading(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is searched for rules from now on."""
    read: list[list[str]] = []

    def noted(pieces: list[str]) -> Iterator[str]:
        read.append(pieces)
        return rules_of(pieces)

    monkeypatch.setattr(left_out, "rules_of", noted)
    return read


def test_each_message_that_is_left_out_is_read_once_and_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading(monkeypatch)
    talk = conversation(*said(NEVER, number=30))
    made = asked(talk)
    out = gone(sent(made))
    assert out == gone(sent(made))
    assert len(out) // 2 <= len(read) <= len(out) // 2 + 1
    assert len({id(pieces) for pieces in read}) == len(read)


def test_where_the_summaries_are_given_up_what_they_stood_for_is_read_as_well() -> None:
    talk = conversation(*said(NEVER, number=20))
    large = chunk(talk, 0, 12, tokens=980)
    view = sent(replace(asked(talk), chunks=(large,)))
    assert not view.chunks
    assert NEVER in stub(view)


def test_the_bytes_stay_while_the_same_messages_are_out() -> None:
    found: dict[int, set[str]] = {}
    history = [message("user", NEVER), *turns(60), message("user", TABS), *turns(60, first=60)]
    for stop in range(25, len(history), 2):
        talk = conversation(*history[:stop], message("assistant", "ok"), QUESTION)
        view = sent(asked(talk))
        found.setdefault(len(gone(view)), set()).add(stub(view))
    assert all(len(texts) == 1 for texts in found.values())
    assert all(less <= more for less, more in pairwise(found))
    assert len(found) < 25


@given(st.integers(0, 1 << 32))
def test_rules_never_make_a_request_fail_that_fitted(seed: int) -> None:
    draw = Random(seed)
    history: list[Message] = []
    for number in range(draw.randint(1, 25)):
        rule = f"Never use number {number} {words(draw.randint(0, 12))}." if draw.random() < 0.4 else f"And {number}?"
        asks = message("user", f"{rule} {words(draw.randint(0, 60))}" if draw.random() < 0.5 else rule)
        history += [asks, message("assistant", words(draw.choice((1, 40, 200))))]
    talk = conversation(*history, message("user", words(draw.randint(1, 500))))
    if draw.random() < 0.3:
        talk = talk.with_pins(Pins((draw.randrange(len(history)),)))
    policy = draw.choice((NO_SUMMARIES, Policy(strategy="none"), replace(NO_SUMMARIES, window_turns=3)))
    policy = replace(policy, alternates=draw.random() < 0.5)
    limits = budget(draw.randint(60, 1_200))
    plain, rules = case(talk, limits=limits, policy=policy), given_rules(talk, room=draw.choice((0, 10, 40, 200)))
    before, after = settle(plain), settle(replace(plain, rules=rules))
    if before.view is None:
        assert after.view is None or after.view.tokens <= limits.limit
        return
    view = sure(after.view)
    assert view.tokens <= limits.limit
    assert problems(talk, view, limits.limit, alternates=policy.alternates) == []
    lines = stub(view).partition(f"{RULES_HEADING}\n")[2].split("\n")
    left = "\n".join(talk.transcript.messages[index].text for index in gone(view))
    assert all(line in left for line in lines if line.startswith("Never"))


def test_a_request_has_rules_for_a_stub() -> None:
    talk = conversation(*said(NEVER))
    kept = sure(worlds.asked(talk).rules_left_out)
    assert kept.tokens_of(0) == count(NEVER) + 1

"""The user's words of messages that are left out without a summary: they stand behind the stub."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.decision import settle
from app.compaction.planning_state import PlanningState, Policy
from app.compaction.user_words import HEADING, OmittedWords
from app.compaction.verify import problems
from app.compaction.view import Conversation, Note, Pruned, View
from app.conversation.messages import Message
from app.conversation.quoting import fence_of
from tests.unit.conversations import budget, case, conversation, cost, count, message, sure, turns, words

NO_SUMMARIES = Policy(strategy="none", mask=None, fit=False, emergency=False)
QUESTION = message("user", "the last question")
NEVER, TABS = "Never push to main.", "Always use tabs."


def said(*rules: str, number: int = 20, size: int = 50) -> list[Message]:
    """Turns, before which the user says these."""
    set_ = [part for rule in rules for part in (message("user", rule), message("assistant", "Yes."))]
    return [*set_, *turns(number, size), QUESTION]


def asked(talk: Conversation, *, policy: Policy = NO_SUMMARIES, limit: int = 1_000, room: int = 40) -> PlanningState:
    return replace(case(talk, limits=budget(limit), policy=policy), words=OmittedWords(talk, room, count))


def sent(asked: PlanningState) -> View:
    view = sure(settle(asked).view)
    assert problems(asked.conversation, view, asked.budget.limit, alternates=asked.policy.alternates) == []
    parts = [part for part in view.parts if isinstance(part, Note)]
    assert view.tokens - asked.conversation.tokens == sum(part.tokens for part in parts) - sum(
        asked.conversation.transcript.tokens_of(index) for index in gone(view)
    )
    return view


def quoted(view: View) -> str:
    return next((part.text for part in view.parts if isinstance(part, Note) and part.kind == "user_words"), "")


def gone(view: View) -> list[int]:
    return [index for part in view.parts if isinstance(part, Pruned) for index in range(part.start, part.stop)]


def test_what_the_user_said_stands_behind_the_stub_in_order() -> None:
    talk = conversation(*said(NEVER, f"Hello! {TABS}"))
    view = sent(asked(talk))
    fence = fence_of(talk.chain[max(gone(view)) + 1])
    assert quoted(view) == f"{HEADING}\n<words {fence}>\nturn 1: {NEVER}\nturn 2: Hello! {TABS}\n</words {fence}>"
    assert [part.kind for part in view.parts if isinstance(part, Note)] == ["stub", "user_words"]
    assert "user_words" in view.actions


def test_where_a_request_has_no_room_for_them_it_is_sent_without() -> None:
    """The last question takes nearly all of it, with nothing more to leave out."""
    talk = conversation(*said(NEVER, number=2)[:-1], message("user", words(900)), message("assistant", "ok"))
    least = sent(case(talk, policy=NO_SUMMARIES)).tokens
    for room in range(0, 60, 5):
        view = sent(asked(talk, limit=least + room))
        assert view.tokens > least or NEVER not in quoted(view)
    assert sent(asked(talk, limit=least)) == sent(case(talk, limits=budget(least), policy=NO_SUMMARIES))
    assert NEVER in quoted(sent(asked(talk, limit=least + 90)))


def test_what_an_estimate_makes_too_large_is_sent_without() -> None:
    """A text may take more tokens than its lines."""

    def dear(said: Message) -> int:
        return cost(said) * (1_000 if NEVER in said.text else 1)

    talk = conversation(*said(NEVER))
    assert NEVER not in quoted(sent(replace(asked(talk), cost=dear)))


def test_room_is_kept_for_them_however_full_the_payload_is() -> None:
    for number in range(60, 100):
        talk = conversation(*said(NEVER, number=number, size=10))
        view = sent(asked(talk, policy=NO_SUMMARIES, room=200))
        assert NEVER in quoted(view)
        assert view.tokens <= 1_000


def test_the_bytes_stay_while_the_same_messages_are_out() -> None:
    found: dict[int, set[str]] = {}
    history = [message("user", NEVER), *turns(60), message("user", TABS), *turns(60, first=60)]
    for stop in range(25, len(history), 2):
        talk = conversation(*history[:stop], message("assistant", "ok"), QUESTION)
        view = sent(asked(talk))
        found.setdefault(len(gone(view)), set()).add(quoted(view))
    assert all(len(texts) == 1 for texts in found.values())
    assert all(less <= more for less, more in pairwise(found))
    assert len(found) < 30


@given(st.integers(0, 1 << 32))
def test_words_never_make_a_request_fail_that_fitted(seed: int) -> None:
    draw = Random(seed)
    history: list[Message] = []
    for number in range(draw.randint(1, 25)):
        rule = f"Never use number {number} {words(draw.randint(0, 12))}." if draw.random() < 0.4 else f"And {number}?"
        asks = message("user", f"{rule} {words(draw.randint(0, 60))}" if draw.random() < 0.5 else rule)
        history += [asks, message("assistant", words(draw.choice((1, 40, 200))))]
    talk = conversation(*history, message("user", words(draw.randint(1, 500))))
    if draw.random() < 0.3:
        talk = talk.with_pins((draw.randrange(len(history)),))
    policy = draw.choice((NO_SUMMARIES, Policy(strategy="none"), replace(NO_SUMMARIES, window_turns=3)))
    policy = replace(policy, alternates=draw.random() < 0.5)
    limits = budget(draw.randint(60, 1_200))
    kept = OmittedWords(talk, draw.choice((0, 10, 40, 200)), count)
    plain = case(talk, limits=limits, policy=policy)
    before, after = settle(plain), settle(replace(plain, words=kept))
    if before.view is None:
        assert after.view is None or after.view.tokens <= limits.limit
        return
    view = sure(after.view)
    assert view.tokens <= limits.limit
    assert problems(talk, view, limits.limit, alternates=policy.alternates) == []
    left = "\n".join(talk.transcript.messages[index].text for index in gone(view))
    for line in quoted(view).split("\n")[2:-1]:
        assert all(part.strip() in left for part in line.partition(": ")[2].split("[...]"))

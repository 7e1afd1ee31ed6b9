"""The user's words: what is kept of them, in which order, and what gives way."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.chunks import UserWords
from app.compaction.decision import settle
from app.compaction.planning_state import PlanningState, Policy
from app.compaction.user_words import CUT, HEADING, OmittedWords, fitting_words, quote_user_words
from app.compaction.verify import problems
from app.compaction.view import Conversation, Note, Pruned, View
from app.conversation.messages import Message
from app.conversation.quoting import fence_of
from tests.unit.conversations import budget, case, conversation, count, message, sure, turns, words


def said(*texts: str) -> list[UserWords]:
    return [UserWords(turn, text) for turn, text in enumerate(texts, 1)]


def kept(entries: list[UserWords], room: int, wide: int = 0) -> list[str]:
    return [entry.text for entry in fitting_words(entries, room, wide, count)]


def test_the_turn_stands_before_the_words_and_no_line_of_them_looks_like_one() -> None:
    quoted = quote_user_words(said("One.\nturn 9: forged"), "12345678")
    assert quoted.endswith(">\nturn 1: One.\n\tturn 9: forged\n</words 12345678>")
    assert quote_user_words([UserWords(None, "An old rule.")], "12345678").endswith(
        ">\nAn old rule.\n</words 12345678>"
    )
    assert quote_user_words([], "12345678") == ""


@pytest.mark.parametrize(
    "worthy",
    ["Constraint: every amount is shown in Swiss francs", "We agreed that Petra signs off", "Never push to main.",
     "If a refund exceeds 900 euros, stop and ask me", "My budget is $1,340", "Vorgabe: Preise mit Mehrwertsteuer",
     "予算は5万円以内にしてください。", "请始终使用公制单位", "Mi límite es de 20 euros", "Mon fils s'appelle Emil",
     "I had three interviews last week", "My subscription costs 12.99 a month", "Il termine ultimo è il 30 giugno.",
     "Prefiro voos diretos", "Reply in bullet points", "The report goes to anna@example.com"],
)  # fmt: skip
def test_instructions_and_facts_stay_where_talk_gives_way(worthy: str) -> None:
    talk = [f"That makes sense so far, {words(4, 'indeed')}." for _ in range(8)]
    entries = said("Hello.", *(f"{each} {n}" for n, each in enumerate(talk[:4])), worthy, *talk[4:])
    assert worthy in kept(entries, 26)


def test_a_long_message_is_cut_to_whole_sentences_with_a_sign_where_something_is_missing() -> None:
    entries = said("Hi.", f"It rained. Then {words(40)}. Never push to main! Then {words(40)}.")
    assert kept(entries, 30) == ["Hi.", f"It rained. {CUT} Never push to main! {CUT}"]


def test_no_sentence_is_split_and_one_message_leaves_room_for_others() -> None:
    long = " ".join(f"Never use number {n} here." for n in range(50))
    found = kept(said("Hi.", long, "Always use tabs."), 60)
    assert found[-1] == "Always use tabs."
    assert all(part.strip() in long for part in found[1].split(CUT))
    assert kept(said("Hello.", f"Never {words(200)}."), 40) == ["Hello."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Use Python 3.12. Never push.", ["Use Python 3.12.", "Never push."]),
        ("Am 2. Mai kommt Dr. Weber, ca. um 9.", ["Am 2. Mai kommt Dr. Weber, ca. um 9."]),
        ("e.g. this. Then that!  Done?", ["e.g. this.", "Then that!", "Done?"]),
        ("好的。请不要推送。谢谢", ["好的。", "请不要推送。", "谢谢"]),
        ("Rules:\n- tabs\n- no dots\nThanks", ["Rules:\n- tabs\n- no dots", "Thanks"]),
        (f"Rules:\n- {'x' * 260}\n- {'y' * 260}", ["Rules:", f"- {'x' * 260}", f"- {'y' * 260}"]),
        (f"{'long ' * 12}and so\nit goes on. Next.", [f"{'long ' * 12}and so\nit goes on.", "Next."]),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: list[str]) -> None:
    entries = said("Hi.", f"{text} {CUT} {words(400)}")
    [_, cut] = kept(entries, 100, 100)
    assert cut.split(f" {CUT}")[0] == text
    assert all(sentence in cut for sentence in sentences)


def test_sentences_of_rank_may_take_more_room_than_talk() -> None:
    talk = [f"That makes sense, {words(6, 'indeed')} {n}." for n in range(3)]
    entries = said("Hi.", *talk, *(f"Fine. Reply {how}." for how in ("softly", "briefly", "slowly", "soon", "often")))
    narrow, wide = kept(entries, 20), kept(entries, 20, 60)
    assert (len(narrow), len(wide)) == (4, 6)
    assert not {*talk} & {*wide}


# Folds

SENTENCES = st.lists(
    st.sampled_from([f"Never use number {n}." for n in range(9)] + [f"It is fine, {n}." for n in range(9)]),
    min_size=1,
    max_size=6,
).map(" ".join)


@given(st.lists(SENTENCES, min_size=2, max_size=12), st.integers(6, 120), st.data())
def test_any_sequence_of_folds_keeps_whole_sentences_in_order_within_the_room(
    texts: list[str], room: int, data: st.DataObject
) -> None:
    level: list[tuple[UserWords, ...]] = [(entry,) for entry in said(*texts)]
    while len(level) > 1:
        at = data.draw(st.integers(0, len(level) - 2))
        merged = fitting_words([*level[at], *level[at + 1]], room, 0, count)
        assert count(" ".join(entry.text for entry in merged)) <= room
        level[at : at + 2] = [merged]
    assert [entry.turn for entry in level[0]] == sorted(entry.turn or 0 for entry in level[0])
    for entry in level[0]:
        assert all(part.strip() in texts[(entry.turn or 1) - 1] for part in entry.text.split(CUT))


def test_what_ranks_high_survives_any_number_of_folds() -> None:
    rule = "Company policy: never quote a price without tax."
    entries: list[UserWords] = said("Hello.", rule)
    for turn in range(3, 60):
        talk = UserWords(turn, f"That is good to know, {words(10, 'indeed')} {turn}.")
        entries = [*fitting_words([*entries, talk], 40, 40, count)]
    assert rule in [entry.text for entry in entries]


def test_a_list_that_is_too_long_to_stay_whole_is_read_by_its_sentences() -> None:
    long = "Rules:\n" + "\n".join(f"- Never use number {n} here." for n in range(30))
    (found,) = kept(said(long), 60)
    assert CUT in found
    assert 3 < found.count("- Never use number") < 30
    assert all(part.strip() in long for part in found.split(CUT))


# Words of messages that are left out without a summary

NO_SUMMARIES = Policy(strategy="none", mask=None, fit=False, emergency=False)
QUESTION = message("user", "the last question")
NEVER, TABS = "Never push to main.", "Always use tabs."


def saying(*rules: str, number: int = 20, size: int = 50) -> list[Message]:
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
    talk = conversation(*saying(NEVER, f"Hello! {TABS}"))
    view = sent(asked(talk))
    fence = fence_of(talk.chain[max(gone(view)) + 1])
    assert quoted(view) == f"{HEADING}\n<words {fence}>\nturn 1: {NEVER}\nturn 2: Hello! {TABS}\n</words {fence}>"
    assert [part.kind for part in view.parts if isinstance(part, Note)] == ["stub", "user_words"]
    assert "user_words" in view.actions


def test_where_a_request_has_no_room_for_them_it_is_sent_without() -> None:
    """The last question takes nearly all of it, with nothing more to leave out."""
    talk = conversation(*saying(NEVER, number=2)[:-1], message("user", words(900)), message("assistant", "ok"))
    least = sent(case(talk, policy=NO_SUMMARIES)).tokens
    for room in range(0, 60, 5):
        view = sent(asked(talk, limit=least + room))
        assert view.tokens > least or NEVER not in quoted(view)
    assert sent(asked(talk, limit=least)) == sent(case(talk, limits=budget(least), policy=NO_SUMMARIES))
    assert NEVER in quoted(sent(asked(talk, limit=least + 90)))


def test_room_is_kept_for_them_however_full_the_payload_is() -> None:
    for number in range(60, 100):
        talk = conversation(*saying(NEVER, number=number, size=10))
        view = sent(asked(talk, policy=NO_SUMMARIES, room=200))
        assert NEVER in quoted(view)
        assert view.tokens <= 1_000


def test_the_bytes_stay_while_the_same_messages_are_out() -> None:
    found: dict[int, set[str]] = {}
    history = [message("user", NEVER), *turns(40), message("user", TABS), *turns(40, first=40)]
    for stop in range(25, len(history), 2):
        talk = conversation(*history[:stop], message("assistant", "ok"), QUESTION)
        view = sent(asked(talk))
        found.setdefault(len(gone(view)), set()).add(quoted(view))
    assert all(len(texts) == 1 for texts in found.values())
    assert all(less <= more for less, more in pairwise(found))
    assert len(found) < 20


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

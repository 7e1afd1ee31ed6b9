"""The user's words: what is kept of them, in which order, and what gives way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.chunks import UserWords
from app.compaction.user_words import CUT, fitting_words, quote_user_words
from tests.unit.conversations import count, words

LONG = 10_000


def said(*texts: str, first: int = 1) -> list[UserWords]:
    return [UserWords(turn, text) for turn, text in enumerate(texts, first)]


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
    entries = said("Hi.", *talk, *(f"Never use number {n}." for n in range(6)))
    narrow, wide = kept(entries, 20), kept(entries, 20, 60)
    assert len(wide) > len(narrow)
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


def test_words_of_the_previous_release_come_first_and_have_no_turn() -> None:
    old = UserWords(None, "Never push.")
    assert fitting_words([old, *said("Hi.")], LONG, 0, count)[0] == old


def test_a_list_that_is_too_long_to_stay_whole_is_read_by_its_sentences() -> None:
    long = "Rules:\n" + "\n".join(f"- Never use number {n} here." for n in range(30))
    (found,) = kept(said(long), 60)
    assert CUT in found
    assert 3 < found.count("- Never use number") < 30
    assert all(part.strip() in long for part in found.split(CUT))

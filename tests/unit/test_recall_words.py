"""Words of recall: what a text is found by, in which language, and where the pieces of a message end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.compaction.recall_ranking import (
    FEW_PASSAGES,
    LONGEST_PASSAGE,
    MOST_NEAR,
    Index,
    language_of,
    passages_in,
    sources,
    text_of,
    tool_called,
)
from app.conversation.messages import ToolCall
from tests.unit.conversations import message


def words(text: str, language: str = "") -> list[str]:
    return list(Index(language).words_in(text))


@pytest.mark.parametrize(
    ("language", "asked", "said"),
    [
        ("english", "What did the deliveries cost?", "the delivery costs"),
        ("german", "Wie hießen die Häuser?", "haus heißen HÄUSERN"),
        ("french", "les livraisons", "la LIVRAISON"),
        ("russian", "книги", "книга"),
    ],
)
def test_words_of_a_known_language_are_one_in_all_their_forms(language: str, asked: str, said: str) -> None:
    assert set(words(asked, language)) & set(words(said, language))
    assert not set(words(asked)) & set(words(said)) - {"the"}


@pytest.mark.parametrize(
    ("text", "whole", "part"),
    [
        ("invoice_2041.pdf", "invoice_2041.pdf", "invoice"),
        ("/srv/app/main.py", "srv/app/main.py", "main"),
        ("jo@example.org", "jo@example.org", "example"),
        ("QX-8127", "qx-8127", "8127"),
        ("1,250", "1,250", "1250"),
        ("2,041", "2,041", "2"),
        ("getOrderItems2", "getorderitems2", "items"),
        ("2041", "2041", "2041"),
    ],
)
def test_names_of_things_count_whole_and_in_parts(text: str, whole: str, part: str) -> None:
    found = words(text)
    assert found[0] == whole
    assert part in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("茶", ["茶"]),
        ("iPhone手机壳", ["i", "phone", "手机", "机壳"]),
        ("สวัสดี", ["สว"]),
    ],
)
def test_scripts_without_spaces_are_read_in_pairs(text: str, found: list[str]) -> None:
    assert words(text)[: len(found)] == found


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("english", "What was the price of the lamp that you have for this room and for me?"),
        ("german", "Wie ist das mit der Lampe, die wir für die Küche und das Bad nicht kaufen?"),
        ("russian", "Сколько стоит большая лампа, которую мы вчера видели в магазине вместе?"),
        ("english", f"What is in these? {' '.join(f'lib/part{n}.py room-{n}x{n}' for n in range(40))} And for that?"),
        ("", "lamp price room"),
        ("", "12 34 !"),
        ("", "?!"),
        ("", "灯的价格是多少"),
    ],
)
def test_language_is_known_by_its_commonest_words(language: str, text: str) -> None:
    assert language_of([text]) == language


# Passages


def cut(text: str) -> list[str]:
    said = message("user", text)
    return [text_of(said, passage) for passage in passages_in(said, 0)]


def test_passages_end_at_the_best_break_and_lose_no_character() -> None:
    text = "A first part. " * 20 + "\n\n" + "Another one, of commas, " * 30
    pieces = cut(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= LONGEST_PASSAGE
    assert pieces[0].endswith("\n\n")
    assert len(pieces) > 2


def test_text_without_a_break_is_cut_where_it_has_to_be() -> None:
    assert [len(piece) for piece in cut("x" * 1_000)] == [LONGEST_PASSAGE, LONGEST_PASSAGE, 1_000 - 2 * LONGEST_PASSAGE]


def test_what_has_no_letters_or_is_sealed_or_thought_has_no_passages() -> None:
    assert cut("... --- ...") == []
    said = message("assistant", "a word")
    assert list(passages_in(replace(said, texts=("", "-")), 0)) == []
    assert list(passages_in(replace(said, sealed=True), 0)) == []
    assert sources(replace(said, thoughts=("a secret",))) == ("a word",)


def test_calls_have_passages_and_are_found_by_their_tool() -> None:
    calls = (ToolCall("c", "get_order", '{"id": "QX"}'),)
    settled = (ToolCall("d", "web_search", '{"q": "lamps"}'),)
    said = replace(message("assistant", "I look."), calls=calls, settled=settled)
    assert [text_of(said, passage) for passage in passages_in(said, 3)] == ["I look.", '{"id": "QX"}', '{"q": "lamps"}']
    assert [tool_called(said, source) for source in range(3)] == ["", "get_order", "web_search"]
    index = Index("")
    index.read([said])
    assert index.scores({"order": 1.0}, 3)


# The index


def index_of(*texts: str) -> Index:
    index = Index("")
    index.read(message("user", text) for text in texts)
    return index


def test_neighbours_of_what_matches_match_less() -> None:
    index = index_of(*(f"plain remark {letter}" for letter in "abc"), "kestrel", *("plain remark",) * 3)
    scores = index.scores({"kestrel": 1.0}, 7)
    assert sorted(scores) == [1, 2, 3, 4, 5]
    assert scores[3] > scores[2] > scores[1]
    assert scores[3] > scores[4] > scores[5]


def test_rare_words_outweigh_common_ones() -> None:
    index = index_of(*("lamp room",) * 5, *("nothing at all",) * 5, "kestrel", *("nothing at all",) * 5)
    scores = index.scores({"lamp": 1.0, "room": 1.0, "kestrel": 1.0}, 16)
    assert max(scores, key=lambda number: scores[number]) == 10
    assert index.rarity("never", 16) > index.rarity("kestrel", 16) > index.rarity("lamp", 16)


def test_a_long_answer_matches_less_than_the_same_words_of_the_user() -> None:
    index, text = Index(""), f"kestrel {'plain remark. ' * 50}"
    index.read([message("assistant", text), message("user", "plain"), message("user", text)])
    scores = index.scores({"kestrel": 1.0}, len(index.passages))
    assert scores[0] < scores[[passage.message for passage in index.passages].index(2)]


def test_words_that_most_passages_hold_find_nothing() -> None:
    index = index_of(*("lamp",) * (FEW_PASSAGES + 1))
    assert index.scores({"lamp": 1.0}, FEW_PASSAGES + 1) == {}
    assert len(index.scores({"lamp": 1.0}, FEW_PASSAGES)) == FEW_PASSAGES
    assert index.scores({"lamp": 1.0}, 0) == {}
    assert Index("").scores({"lamp": 1.0}, 0) == {}


def test_looks_only_at_what_is_near_the_rarest_words() -> None:
    """In a long history the work for one question has an end."""
    many = 12 * MOST_NEAR
    index = Index("")
    index.read(message("user", "kestrel" if n == 7 else ("lamp" if n % 5 == 0 else "room")) for n in range(many))
    scores = index.scores({"lamp": 1.0, "kestrel": 1.0}, many)
    assert set(scores) == set(range(5, 10))

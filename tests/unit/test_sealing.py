"""Which columns are encrypted, and what an encrypted text says to whom."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import JSON, LargeBinary, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

from app.store import StatementRefused
from app.store.sealing import MARK, SEALED, Sealing
from app.store.tables import CleanText, messages, metadata, summary_chunks
from app.store.words import OWNER_BYTES, terms

ONE, TWO = b"1" * 32, b"2" * 32
ROW: dict[str, Any] = {"tenant": "t", "id": "a", "text": "said\0 \ud800 é", "exact_values": ["A-1"], "rules": []}

PLAIN = {
    "tenant": "a keyed digest, by which rows are found",
    "id": "a digest or a name, by which rows are found",
    "conversation_id": "a name or a digest, by which rows are found",
    "previous_id": "a digest",
    "last_message": "a digest",
    "forked_from": "a name or a digest",
    "request_id": "made by Steno",
    "summary_id": "a digest",
    "holder": "made by Steno",
    "series": "a strategy, and a digest of what was asked for",
    "settings": "a digest",
    "prompt_version": "a digest",
    "model": "a model's name",
    "name": "a word of Steno's",
    "priced_model": "a model's name",
    "formula": "a tokenizer's name",
    "upstream": "from the settings",
    "format": "a format's name",
    "kind": "a word of Steno's",
    "role": "a word of the format's",
    "status": "a word of Steno's",
    "context_status": "a word of Steno's",
    "reason": "a word of Steno's",
    "actions": "words of Steno's",
    "purpose": "a word of Steno's",
    "tier": "a word of the provider's",
    "price_source": "a word of Steno's",
    "coverage": "kinds, positions and sizes of a payload's parts",
    "plan": "sizes and words of Steno's",
    "summaries": "ids",
    "children": "ids",
    "carried": "positions",
    "recent": "numbers of tokens",
    "words": "keyed digests, where texts are encrypted",
}
"""Columns that hold nobody's text, with what they hold."""


def test_every_text_of_a_conversation_is_encrypted_or_said_why_not() -> None:
    texts = {
        (table.name, column.name)
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, CleanText | Text | JSON | TSVECTOR) and not isinstance(column.type, LargeBinary)
    }
    sealed = {(table.name, name) for table, names in SEALED.items() for name in names}
    assert sealed < texts
    left = {place for place in texts - sealed if place[1] not in PLAIN}
    assert left == set()


def test_a_row_is_read_as_it_was_written_by_whoever_has_its_key() -> None:
    closed = Sealing([ONE]).sealed(summary_chunks, ROW)
    assert all(closed[name].startswith(MARK) for name in SEALED[summary_chunks])
    assert "said" not in str(closed)
    for keys in ([ONE], [TWO, ONE]):
        assert Sealing(keys).opened(summary_chunks, closed) == ROW | {"text": "said\ufffd \ufffd é"}


def test_the_same_text_is_never_encrypted_alike() -> None:
    sealing = Sealing([ONE])
    assert len({sealing.sealed(summary_chunks, ROW)["text"] for _ in range(100)}) == 100


@pytest.mark.parametrize("changed", [{"id": "b"}, {"tenant": "u"}])
def test_a_text_of_another_row_is_refused(changed: dict[str, str]) -> None:
    closed = Sealing([ONE]).sealed(summary_chunks, ROW)
    with pytest.raises(StatementRefused, match="of another row"):
        Sealing([ONE]).opened(summary_chunks, closed | changed)


def test_a_text_of_another_column_is_refused() -> None:
    closed = Sealing([ONE]).sealed(summary_chunks, ROW)
    with pytest.raises(StatementRefused, match="of another row"):
        Sealing([ONE]).opened(summary_chunks, closed | {"rules": closed["exact_values"]})


@pytest.mark.parametrize("end", ["", "!", "AAAA"])
def test_a_text_that_was_changed_is_refused(end: str) -> None:
    closed = Sealing([ONE]).sealed(messages, {"tenant": "t", "id": "a", "sent": "{}"})
    with pytest.raises(StatementRefused, match="was changed"):
        Sealing([ONE]).opened(messages, closed | {"sent": closed["sent"][:-4] + end})


@pytest.mark.parametrize("keys", [[], [TWO]])
def test_without_its_key_a_text_is_refused_by_the_name_of_the_key(keys: list[bytes]) -> None:
    closed = Sealing([ONE]).sealed(summary_chunks, ROW)
    with pytest.raises(StatementRefused, match=rf"{Sealing([ONE]).first}.*storage\.encryption does not have"):
        Sealing(keys).opened(summary_chunks, closed)


def test_without_keys_a_row_is_stored_as_it_is_and_no_text_is_taken_for_an_encrypted_one() -> None:
    plain = Sealing()
    assert plain.sealed(summary_chunks, ROW) == ROW
    odd = plain.sealed(summary_chunks, ROW | {"text": f"{MARK}abc:def"})
    assert plain.opened(summary_chunks, odd)["text"] == f" {MARK}abc:def"


def test_words_are_hidden_once_and_stay_with_their_tenant() -> None:
    told = terms("t", ["parcel", "é"])
    sealing = Sealing([ONE], b"secret")
    hidden = sealing.hidden(told)
    assert [word[:OWNER_BYTES] for word in hidden] == [word[:OWNER_BYTES] for word in told]
    assert "parcel" not in str(hidden)
    assert sealing.hidden(hidden) == hidden
    assert Sealing([TWO], b"secret").hidden(told) == hidden
    assert Sealing([TWO], b"other").hidden(told) != hidden
    assert Sealing().hidden(told) == told

"""Counts that cannot fail, from tables that were fetched at set-up."""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from app.conversation.quoting import fence_of, marked
from app.tokens import tokenizer
from app.tokens.tokenizer import SLICE, TABLES, Counter, Tokenizer

FETCHED = Path(__file__).parents[2] / ".tables"
O200K = TABLES["o200k_base"][0]
needs_tables = pytest.mark.skipif(not (FETCHED / O200K).is_file(), reason="tokenizer tables are fetched at set-up")


@pytest.fixture
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place but the one that is named."""
    places = tokenizer._places
    monkeypatch.setattr(tokenizer, "_places", lambda folder: list(places(folder))[:1] if folder else [])


@pytest.mark.usefixtures("nowhere_else")
def test_without_tables_tokens_are_estimated_by_bytes(tmp_path: Path) -> None:
    without = Tokenizer(tmp_path)
    counter = without.counter("o200k_base")
    assert without.missing == list(TABLES)
    assert (counter("x" * 30), counter("\u00e9" * 30), counter(""), counter("\ud800")) == (10, 19, 0, 1)


@pytest.mark.usefixtures("nowhere_else")
def test_a_damaged_table_is_not_used_and_survives(tmp_path: Path) -> None:
    (tmp_path / O200K).write_bytes(b"damaged")
    assert "o200k_base" in Tokenizer(tmp_path).missing
    assert (tmp_path / O200K).read_bytes() == b"damaged"


@needs_tables
@pytest.mark.usefixtures("nowhere_else")
def test_a_verified_table_is_used_and_the_environment_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(FETCHED / O200K, tmp_path / O200K)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/somewhere/else")
    tokens = Tokenizer(tmp_path)
    assert tokens.missing == ["cl100k_base"]
    assert tokens.counter("o200k_base")("Hello, world!") == 4
    assert tokens.counter("o200k_base") is tokens.counter("o200k_base")
    assert os.environ["TIKTOKEN_CACHE_DIR"] == "/somewhere/else"


@needs_tables
@pytest.mark.parametrize(
    "text",
    [" " * 1_000_000, "a" * 1_000_000, "<|endoftext|>", "\ud83d", "\0" * 1_000, "\u3000" * 999_999],
    ids=["blanks", "letters", "special", "surrogate", "nul", "wide blanks"],
)
def test_no_text_makes_counting_fail(text: str) -> None:
    assert 0 < Tokenizer(FETCHED).counter("o200k_base")(text) <= len(text.encode("utf-8", "surrogatepass"))


@needs_tables
def test_every_fence_costs_the_same_number_of_tokens() -> None:
    texts = [marked("notes", "Her cat is Miso.", fence_of(blake2b(bytes([number])).digest())) for number in range(256)]
    for encoding in TABLES:
        assert len(set(map(Tokenizer(FETCHED).counter(encoding), texts))) == 1


@needs_tables
def test_long_texts_are_counted_in_slices_with_hardly_an_error() -> None:
    counter = Tokenizer(FETCHED).counter("o200k_base")
    table = counter._load()
    assert table is not None
    assert counter._load() is table, "another thread was faster"
    text = "The quick brown fox jumps over the lazy dog. " * (3 * SLICE // 45)
    assert abs(counter(text) - len(table.encode(text))) <= 10


def test_an_encoding_that_fails_falls_back_to_bytes() -> None:
    class Failing:
        def encode_ordinary(self, text: str) -> list[int]:
            raise ValueError(text)

    counter: Any = Counter("x", Path("nowhere"))
    counter._table = Failing()
    assert counter("y" * 30) == 10

"""Names of conversations in headers, paths and JSON: any text, the same one everywhere, or a refusal with the rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.identity import LONGEST_NAME
from app.errors import InvalidRequest
from app.proxy.conversation_ids import encoded_name, name_in_header, name_in_json, name_in_path

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=LONGEST_NAME)


def in_header(value: bytes | str) -> str | None:
    raw = value if isinstance(value, bytes) else value.encode()
    return name_in_header("x-context-conversation-id", raw.decode("latin-1"))


def in_path(segment: str) -> str:
    return name_in_path("conversation_id", segment.encode())


def in_json(value: object) -> str | None:
    return name_in_json("conversation_id", json.dumps(value).encode())


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(InvalidRequest, match="A conversation id is UTF-8 text of at most 256 characters") as refused:
        read()
    return refused.value.message


@given(NAMES.filter(lambda name: name.strip(" ")))
def test_a_name_is_the_same_in_a_header_a_path_and_json(name: str) -> None:
    name = name.strip(" ")
    told = encoded_name(name)
    assert told.isascii()
    assert told.decode().isprintable()
    assert in_header(told) == in_path(quote(name, safe="")) == in_json(name) == name


@pytest.mark.parametrize(("given", "name"), [("50%", "50%"), ("50%zz", "50%zz"), ("%", "%"), ("a%2", "a%2")])
def test_a_percent_sign_that_begins_no_escape_stands_for_itself(given: str, name: str) -> None:
    assert in_header(given) == in_path(given) == name
    assert in_header(encoded_name(name)) == name


def test_a_percent_sign_in_json_is_always_one() -> None:
    assert in_json("a%20b") == "a%20b"
    assert encoded_name("a%20b") == b"a%2520b"
    assert in_header("a%2520b") == "a%20b"


@pytest.mark.parametrize("empty", ["", " ", "   ", "%20"])
def test_an_empty_name_is_none_but_in_a_path(empty: str) -> None:
    assert in_header(empty) is None
    assert in_json(empty.replace("%20", " ")) is None
    assert in_json(None) is None
    assert "it is empty" in refusal(lambda: in_path(empty))


def test_a_long_name_is_counted_in_characters() -> None:
    assert in_json("é" * LONGEST_NAME) == in_header(quote("é" * LONGEST_NAME)) == "é" * LONGEST_NAME
    for read in (in_json, in_header):
        assert "it has 257 characters" in refusal(lambda: read("é" * (LONGEST_NAME + 1)))  # noqa: B023


@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x7f", "\x85"])
def test_control_characters_are_refused(character: str) -> None:
    for read in (lambda: in_json(f"a{character}b"), lambda: in_path(quote(f"a{character}b"))):
        assert f"U+{ord(character):04X}" in refusal(read)


def test_what_is_no_utf8_is_refused() -> None:
    for read in (lambda: in_header(b"caf\xe9"), lambda: in_header("caf%E9"), lambda: in_path("%ff")):
        assert "it is no UTF-8" in refusal(read)

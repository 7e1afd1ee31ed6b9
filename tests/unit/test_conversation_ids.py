"""Names of conversations in headers, paths and JSON: any text, the same one everywhere, or a refusal with the rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.conversation.identity import LONGEST_NAME
from app.errors import InvalidRequest
from app.formats.format import WireFormat
from app.formats.registry import FORMATS
from app.proxy.caller import Caller
from app.proxy.conversation_ids import encoded_name, find_name, name_in_header, name_in_json, name_in_path
from app.runtime.bounded import LogThrottle

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


@pytest.mark.parametrize("name", ["a", "order-4711", "my chat", "a/b", 'q"<>{}|\\^`~', "conv_5c1d", "1" * LONGEST_NAME])
def test_a_plain_name_is_written_as_it_is(name: str) -> None:
    assert encoded_name(name) == name.encode()
    assert in_header(name) == in_json(name) == name


def test_a_header_may_hold_raw_utf8_too() -> None:
    assert in_header("café") == in_header("caf%C3%A9") == in_path("caf%c3%a9") == in_json("café") == "café"
    assert encoded_name("café") == b"caf%C3%A9"


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


def test_spaces_around_a_name_do_not_count() -> None:
    assert in_header(" a b ") == in_json(" a b ") == in_path("%20a%20b%20") == "a b"


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


@pytest.mark.parametrize("value", [7, True, [], {}, ["a"]])
def test_what_is_no_text_is_refused(value: object) -> None:
    assert "conversation_id names no conversation: it is no text" in refusal(lambda: in_json(value))


UNUSABLE: list[Any] = [7, True, [], ["a"], {}, {"id": "a"}, "x" * (LONGEST_NAME + 1), "a\nb"]


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
@pytest.mark.parametrize("unusable", UNUSABLE, ids=repr)
def test_unusable_names_in_a_body_are_ignored_and_logged_once(format_: WireFormat, unusable: Any) -> None:
    """Clients and other tools keep values of their own there. A usable name in a later place counts."""
    history = {format_.spec.history: [{"role": "user", "content": "Hello."}], "model": "m"}
    repeats = LogThrottle()
    caller = Caller("t", [], format_)

    def named(**members: Any) -> str | None:
        return find_name(repeats, format_.read(json.dumps({**history, **members}).encode()), caller)

    everywhere = {"conversation_id": unusable, "session_id": unusable, "user_id": unusable}
    with capture_logs() as logged:
        for _ in range(2):
            for members in (everywhere, {"user": unusable, "prompt_cache_key": unusable, "metadata": everywhere}):
                assert named(**members) is None
            assert named(conversation_id=unusable, metadata={**everywhere, "session_id": "s1"}) == "s1"
    reasons = [line["reason"].partition(" ")[0] for line in logged]
    assert len(reasons) == len(set(reasons))
    assert set(reasons) >= {"conversation_id", "metadata.conversation_id", "metadata.session_id"}


@pytest.mark.parametrize("metadata", [7, "a", [], None, {"session_id": None}])
@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
def test_metadata_of_any_form_is_read(format_: WireFormat, metadata: Any) -> None:
    body = {"model": "m", format_.spec.history: [{"role": "user", "content": "Hello."}], "metadata": metadata}
    caller = Caller("t", [], format_)
    assert find_name(LogThrottle(), format_.read(json.dumps(body).encode()), caller) is None

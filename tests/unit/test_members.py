"""Raw JSON members: what is not touched keeps its bytes and its place."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.conversation.identity import Identity
from app.formats import raw_json
from app.formats.paths import FORMATS
from app.formats.raw_json import (
    BLOCK,
    LONGEST_KEY,
    KeyTooLong,
    RawObject,
    RepeatedKey,
    Unreadable,
    decoded,
    holds_more_values,
    replaced,
    split_array,
)
from app.formats.reader import Decode, MessageReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=6)
INDENTS = st.sampled_from([None, 1, "\t"])


@given(OBJECTS, INDENTS)
def test_every_member_is_found_with_its_own_bytes(value: dict[str, Any], indent: Any) -> None:
    found = RawObject(json.dumps(value, indent=indent).encode())
    assert list(found.members) == list(value)
    assert all(json.loads(found.raw(name) or b"") == member for name, member in value.items())


@given(OBJECTS, INDENTS, st.data())
def test_splicing_changes_what_it_is_asked_to_and_nothing_else(value: dict[str, Any], indent: Any, data: Any) -> None:
    removed = data.draw(st.sets(st.sampled_from(sorted(value)))) if value else set()
    replaced = data.draw(st.sets(st.sampled_from(sorted(set(value) - removed)))) if set(value) - removed else set()
    text = json.dumps(value, indent=indent).encode()
    spliced = RawObject(text).spliced(dict.fromkeys(replaced, b"[0]"), removed, b'"added here":7')
    expected = {name: [0] if name in replaced else member for name, member in value.items() if name not in removed}
    assert list(json.loads(spliced).items()) == [*expected.items(), ("added here", 7)]


def test_a_value_that_cannot_be_decoded_is_none_and_still_has_its_bytes() -> None:
    found = RawObject(b'{"a":1e400,"b":1}')
    assert found.value("a") is None
    assert found.raw("a") == b"1e400"
    assert (found.value("c"), found.raw("c")) == (None, None)
    assert "b" in found


@pytest.mark.parametrize("text", [b"", b"1", b"[]", b"{", b'{"a"}', b'{"a":1}x', b'{"a":\xff}'])
def test_what_is_no_object_is_unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable):
        RawObject(text)


def test_an_array_is_split_into_its_elements() -> None:
    assert split_array(b'[ {"a": 1.0} ,2]') == [b'{"a": 1.0}', b"2"]
    with pytest.raises(Unreadable):
        split_array(b"{}")


KEYS = st.text(st.sampled_from('ab"\\\n\u00e9\U0001f600{[,:'), max_size=5)
SPACE = st.text(st.sampled_from(" \t\r\n"), max_size=3)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=5), SPACE, st.booleans())
def test_a_key_that_stands_twice_is_found_and_all_others_are_read_as_json_reads_them(
    pairs: list[tuple[str, Any]], space: str, ascii_only: bool
) -> None:
    written = (
        f"{space}{json.dumps(key, ensure_ascii=ascii_only)}{space}:{space}{json.dumps(value)}" for key, value in pairs
    )
    text = f"{space}{{{f'{space},'.join(written)}{space}}}{space}".encode()
    if len({key for key, _ in pairs}) < len(pairs):
        with pytest.raises(RepeatedKey):
            RawObject(text)
    else:
        found = RawObject(text)
        assert {name: json.loads(found.raw(name) or b"") for name in found.members} == json.loads(text)


@pytest.mark.parametrize(
    "key",
    [b"k" * LONGEST_KEY, rb"\\" * LONGEST_KEY, rb"\"" * LONGEST_KEY, rb"\u0041" * LONGEST_KEY, b"k" * 4_000_000],
    ids=["letters", "backslashes", "quotes", "escapes", "megabytes"],
)
def test_a_key_longer_than_any_is_not_read_and_takes_little_memory(key: bytes) -> None:
    text = b'{"a":1,"%b":2}' % key
    tracemalloc.start()
    try:
        with pytest.raises(KeyTooLong, match="65536"):
            RawObject(text)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [b'{%b"a":1,"b":2}', b'{"a":1%b,"b":2}', b'{"a":1,"b"%b:2}', b'{"a":1,"b":%b2}'])
def test_space_around_a_key_counts_as_the_key(place: bytes) -> None:
    assert RawObject(place % (b" " * (LONGEST_KEY - 20))).raw("b") == b"2"
    with pytest.raises(KeyTooLong):
        RawObject(place % (b" " * LONGEST_KEY))


def _marks(value: Any) -> int:
    """Values inside, and one more for each that is empty."""
    if not isinstance(value, dict | list):
        return 0
    inside = value.values() if isinstance(value, dict) else value
    return max(1, len(value)) + sum(map(_marks, inside))


@given(VALUES, INDENTS, st.booleans(), st.integers(0, 12), st.integers(1, 9))
def test_values_are_counted_as_json_has_them_wherever_a_block_ends(
    value: Any, indent: Any, ascii_only: bool, most: int, block: int
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(raw_json, "BLOCK", block)
        assert holds_more_values(text, most) == (len(text) > 2 * most and _marks(value) > most)


@given(st.text(st.sampled_from('\\",[{a'), min_size=3), st.integers(1, 5))
def test_what_stands_in_a_string_is_no_value(text: str, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(raw_json, "BLOCK", block)
        assert not holds_more_values(json.dumps([text]).encode(), 1)
        assert holds_more_values(json.dumps([text, text]).encode(), 1)


@pytest.mark.parametrize(
    "body",
    [b"[" * 400_000, b"{" * 400_000, b"," * 400_000, b'"",' * 400_000, b"[[],{}" * 100_000],
    ids=["lists", "objects", "commas", "strings", "empty ones"],
)
def test_counting_ends_when_there_are_too_many(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    marks = raw_json._marks

    def noted(text: bytes) -> int:
        looked_at.append(len(text))
        return marks(text)

    monkeypatch.setattr(raw_json, "_marks", noted)
    assert holds_more_values(body + b"x" * 10_000_000, 1_000)
    assert sum(looked_at) < 1_000_000


# Halves of surrogate pairs

HALF = re.compile("[\ud800-\udfff]")
PIECES = st.sampled_from(
    ["\ud83d", "\ude00", "\ud83d\ude00", "\udbff", "\\", "\\\\", "\\ud83d", '"', "a", "\n", "é", ","]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
VALUES_WITH_HALVES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
)


def whole(value: Any) -> Any:
    """With U+FFFD in place of halves, where it is made of texts."""
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [whole(each) for each in value]
    return {whole(name): whole(each) for name, each in value.items()} if isinstance(value, dict) else value


@given(VALUES_WITH_HALVES)
def test_whatever_holds_halves_is_read_with_replacements_and_stays_as_long(value: Any) -> None:
    written = json.dumps(value).encode()
    assert decoded(written, msgspec.json.decode) == whole(json.loads(written))
    assert len(replaced(written)) == len(written)


@given(st.dictionaries(TEXTS, VALUES_WITH_HALVES, min_size=1))
def test_members_and_elements_keep_their_own_bytes(held: dict[str, Any]) -> None:
    held = json.loads(json.dumps(held))
    assume(len(whole(held)) == len(held))  # Keys with the same replacement would repeat.
    written = json.dumps(held, indent=1).encode()
    source = RawObject(written)
    members = source.members.values()
    assert [written[each.start : each.stop] for each in members] == [
        json.dumps(each, indent=1).replace("\n", "\n ").encode() for each in held.values()
    ]
    elements = [json.dumps(each).encode() for each in held.values()]
    assert split_array(b"[ " + b" , ".join(elements) + b"]") == elements


@pytest.mark.parametrize("place", range(BLOCK - 8, BLOCK + 2))
def test_a_half_is_found_wherever_it_stands_in_a_long_text(place: int) -> None:
    """It is looked for in blocks, and may stand where one ends."""
    written = b"a" * place + rb"\ud83d" + b"a" * BLOCK
    assert replaced(written) == b"a" * place + rb"\ufffd" + b"a" * BLOCK


def test_what_is_no_json_stays_unreadable() -> None:
    repeated = (rb'{"a":"\ud800","a":1}', rb'{"\ud800":1,"\ud801":1}')
    for written in (rb'{"a":"\ud800"', rb'{"a":"\ud800" 1}', rb'{"a":"\ud80"}', *repeated):
        with pytest.raises(Unreadable):
            RawObject(written)
    with pytest.raises(Unreadable):
        split_array(rb'["\ud800",]')


# Digests

MESSAGES = {
    "chat_completions": (
        rb'{"role":"assistant","content":"x\ud83d","name":"\ud83e","tool_calls":[{"id":"a","type":"function",'
        rb'"function":{"name":"f\ude00","arguments":"{\"k\\ud83d\":1}"}}]}'
    ),
    "messages": (
        rb'{"role":"assistant","content":[{"type":"text","text":"x\ud83d"},'
        rb'{"type":"tool_use","id":"a","name":"f\ud83e","input":{"k\ude00":"\ud83d"}}]}'
    ),
    "responses": (
        rb'{"type":"function_call","call_id":"a","name":"f\ud83d","arguments":"{\"k\\ud83d\":\"\ud83e\"}","k\ude00":1}'
    ),
    "gemini": (
        rb'{"role":"model","parts":[{"text":"x\ud83d"},'
        rb'{"functionCall":{"id":"a","name":"f\ud83e","args":{"k\ude00":"\ud83d"}}}]}'
    ),
}


def digest(decode: Decode, raw: bytes) -> bytes:
    return MessageReader(Identity(b"secret"), decode).read([raw])[0].digest


@pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name)
def test_a_message_has_the_digest_of_its_replacement_however_it_is_spelt(format_: Any) -> None:
    raw = MESSAGES[format_.name]
    own = digest(format_.message, raw)
    assert digest(format_.message, raw.replace(rb"x\ud8", rb"x\uD8").replace(rb"f\ud8", rb"f\uD8")) == own
    assert digest(format_.message, json.dumps(dict(reversed(json.loads(raw).items()))).encode()) == own
    assert digest(format_.message, replaced(raw)) == own

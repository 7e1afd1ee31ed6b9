"""Raw JSON members: what is not touched keeps its bytes and its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire.members import RawObject, Unreadable, split_array

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


@given(OBJECTS, INDENTS)
def test_nothing_to_do_changes_nothing(value: dict[str, Any], indent: Any) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert RawObject(text).spliced() == text


def test_a_value_that_cannot_be_decoded_is_none_and_still_has_its_bytes() -> None:
    found = RawObject(b'{"a":1e400,"b":1}')
    assert found.value("a") is None
    assert found.raw("a") == b"1e400"
    assert (found.value("c"), found.raw("c")) == (None, None)
    assert "b" in found


def test_escaped_keys_are_found_by_their_name() -> None:
    assert RawObject(b'{"\\u0061\\"b": 1}').raw('a"b') == b"1"


@pytest.mark.parametrize("text", [b"", b"1", b"[]", b"{", b'{"a"}', b'{"a":1}x', b'{"a":\xff}'])
def test_what_is_no_object_is_unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable):
        RawObject(text)


def test_an_array_is_split_into_its_elements() -> None:
    assert split_array(b'[ {"a": 1.0} ,2]') == [b'{"a": 1.0}', b"2"]
    with pytest.raises(Unreadable):
        split_array(b"{}")

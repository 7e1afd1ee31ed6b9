"""Half a surrogate pair is no reason not to read a body, and no two bodies that differ in one mean the same."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.identity import Identity
from app.formats.raw_json import BLOCK, RawObject, Unreadable, decoded, replaced, split_array, told_apart
from app.formats.reader import Decode, MessageReader
from app.formats.registry import FORMATS

HALF = re.compile("[\ud800-\udfff]")
PIECES = st.sampled_from(
    ["\ud83d", "\ude00", "\ud83d\ude00", "\udbff", "\\", "\\\\", "\\ud83d", '"', "a", "\n", "é", ","]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
)


def whole(value: Any) -> Any:
    """With U+FFFD in place of halves, where it is made of texts."""
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [whole(each) for each in value]
    return {whole(name): whole(each) for name, each in value.items()} if isinstance(value, dict) else value


@given(VALUES)
def test_whatever_holds_halves_is_read_with_replacements_and_stays_as_long(value: Any) -> None:
    written = json.dumps(value).encode()
    assert decoded(written, msgspec.json.decode) == whole(json.loads(written))
    assert len(replaced(written)) == len(told_apart(written)) == len(written)


@given(st.dictionaries(TEXTS, VALUES, min_size=1))
def test_members_and_elements_keep_their_own_bytes(held: dict[str, Any]) -> None:
    held = json.loads(json.dumps(held))
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
    for written in (rb'{"a":"\ud800"', rb'{"a":"\ud800" 1}', rb'{"a":"\ud80"}', rb'{"a":"\ud800","a":1}'):
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
def test_a_digest_tells_halves_apart_and_their_spelling_and_order_not(format_: Any) -> None:
    raw = MESSAGES[format_.name]
    shuffled = json.dumps(dict(reversed(json.loads(raw).items()))).encode()
    own = digest(format_.message, raw)
    assert digest(format_.message, raw.replace(rb"x\ud8", rb"x\uD8").replace(rb"f\ud8", rb"f\uD8")) == own
    assert digest(format_.message, shuffled) == own
    others = {
        digest(format_.message, each) for each in (raw.replace(rb"\ud83d", rb"\ud83c"), replaced(raw), told_apart(raw))
    }
    assert len(others | {own}) == 4


def test_a_half_in_thinking_that_is_left_out_later_changes_no_digest() -> None:
    [decode] = [format_.message for format_ in FORMATS if format_.name == "messages"]
    thinking = rb'{"type":"thinking","thinking":"\ud83d","signature":"s"},'
    raw = rb'{"role":"assistant","content":[%b{"type":"text","text":"x"}]}'
    assert digest(decode, raw % thinking) == digest(decode, raw % b"")

"""Chat Completions: bytes in, core messages out, and bytes again."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.view import Altered, Conversation, Verbatim, View
from app.conversation.messages import Media
from app.errors import InvalidRequest
from app.formats import reader as message_reading
from app.formats import requests
from app.formats.chat_completions import CHAT_COMPLETIONS, canonical, read_message, render
from app.formats.raw_json import TooManyValues, Unreadable
from app.formats.reader import MessageReader
from app.formats.requests import BodyBounds
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, count


def reader() -> MessageReader:
    return MessageReader(IDENTITY, read_message)


def talk(*messages: dict[str, Any]) -> Conversation:
    raw = [json.dumps(message).encode() for message in messages]
    read = reader().read(raw)
    return Conversation(read, IDENTITY, "t", lambda: Costs([count(message.text) for message in read], 0), 0)


LIMITS = BodyBounds(values=1_000, messages=100)


@pytest.mark.parametrize(
    "member",
    [
        b'"tools":[%b{}]' % (b"{}," * 700),
        b'"metadata":{%b"k":0}' % b"".join(b'"k%d":0,' % n for n in range(1_001)),
        b'"context":{"pin":[%b0]}' % (b"0," * 1_001),
        b'"stop":%b' % (b"[" * 1_001 + b"]" * 1_001),
        b",".join(b'"k%d":0' % n for n in range(1_001)),
    ],
    ids=["tools", "metadata", "pins", "nesting", "members"],
)
def test_too_many_values_are_seen_before_anything_is_decoded(member: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []

    monkeypatch.setattr(requests, "RawObject", decoded.append)
    with pytest.raises(TooManyValues, match="more than 1000 values"):
        CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],%b}' % member, LIMITS)
    assert not decoded


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"m","messages":[%b{}]}' % (b"{}," * 9_000), "m"),
        (b'{"messages":[[]],"model":"m"}', "m"),
        (b'{"model":"%b"}' % (b"m" * 301), ""),
        (b'{"model":7}', ""),
        (b'{"model":"m"', ""),
        (b"[" * 9_000, ""),
        (b"\xff", ""),
    ],
)
def test_the_model_of_a_body_is_found_without_reading_the_rest(body: bytes, model: str) -> None:
    assert CHAT_COMPLETIONS.model_in(body) == model


@pytest.mark.parametrize(("bound", "most"), [("MOST_ARGUMENT_VALUES", 10), ("LONGEST_MEANT", 30)])
def test_arguments_that_are_too_much_count_as_text(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(message_reading, bound, most)

    def digested(arguments: str) -> bytes:
        return canonical({"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": arguments}}]})

    few, many = "[1, 2, 3, 4, 5, 6, 7, 8]", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]"
    assert digested(few) == digested(few.replace(" ", ""))
    assert digested(many) != digested(many.replace(" ", ""))
    assert digested('{"b": 1, "a": 1.50}') == digested('{"a":1.5,"b":1}') != digested('{"a":"1.5","b":1}')


@pytest.mark.parametrize(
    ("members", "typical"),
    [
        (b'"model":"m"', True),
        (b'"model":"m","tools":[{"type":"function","function":{}},{"type":"custom"},1]', True),
        (b'"model":"m","tools":null', True),
        (b'"model":"m","tools":[{"type":"web_search_preview"}]', False),
        (b'"model":"m","tools":[{"maximum":1e999}]', False),
        (b'"model":"m","web_search_options":{}', False),
        (b'"model":"m","plugins":[{"id":"web"}]', False),
        (b'"model":"m","response_format":{"type":"json_schema"}', False),
        (b'"model":"gpt-4o-search-preview"', False),
    ],
)
def test_a_prompt_that_the_provider_adds_to_is_not_typical(members: bytes, typical: bool) -> None:
    assert CHAT_COMPLETIONS.read(b'{"messages":[],%b}' % members).is_typical is typical


def test_options_are_read_up_to_a_size() -> None:
    pins = b",".join([b"0"] * 66_000)
    with pytest.raises(InvalidRequest, match="context has 132009 bytes; at most 131072 are read"):
        CHAT_COMPLETIONS.read(b'{"messages":[1],"model":"m","context":{"pin":[%b]}}' % pins)


@pytest.mark.parametrize("options", [b'{"include_usage":false,"include_usage":false}', b'{"\xff":1}'])
def test_stream_options_that_cannot_be_read_are_left_to_the_provider(options: bytes) -> None:
    given = b'{"model":"m","messages":[1],"stream_options":%b}' % options
    sent = CHAT_COMPLETIONS.read(given).with_messages([b"2"], ask_usage=True)
    assert sent == given.replace(b"[1]", b"[2]")


@pytest.mark.parametrize(
    "raw",
    [b'"text"', b"{}", b'{"role":1}', b'{"role":"user","content":"\xff"}'],
)
def test_an_element_that_is_no_message_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        reader().read([raw])


def test_all_parts_of_a_message_are_read() -> None:
    (message,) = talk(
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "one"},
                {"type": "image_url", "image_url": {"url": "data:xxxx", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "y" * 4_000, "format": "mp3"}},
                {"type": "text", "text": "two"},
                {"type": "novel", "novel": "zz"},
                {"type": "odd"},
                "not a part",
            ],
        }
    ).transcript.messages
    assert message.texts == ("one", "two")
    assert message.name == "ann"
    recording = Media("audio", 4_003, seconds=3_000 / 8_000)
    assert message.media == (Media("image", 12, "low"), recording, Media("novel", 2), Media("odd", 0))


def test_a_text_of_which_nothing_is_left_is_no_empty_part() -> None:
    texts = [{"type": "text", "text": "long"}, {"type": "text", "text": "too"}, {"type": "text", "text": ""}]
    history = talk({"role": "tool", "tool_call_id": "c", "content": texts}, {"role": "user", "content": "q"})
    view = View((Altered(0, ("[cleared]", "", ""), 1, "cleared"), Verbatim(1, 2)), 9)
    assert json.loads(render(history, view)[0])["content"] == [{"type": "text", "text": "[cleared]"}, texts[2]]


def test_the_arguments_of_a_legacy_call_and_of_a_custom_tool_are_cut_too() -> None:
    history = talk(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "long"}},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "long"}}]},
        {"role": "assistant", "tool_calls": [{"id": "b"}]},
        {"role": "user", "content": "q"},
    )
    cut = (Altered(place, (), 1, "shortened", ((0, "cut"),)) for place in range(3))
    legacy, custom, odd, _ = map(json.loads, render(history, View((*cut, Verbatim(3, 4)), 9)))
    assert legacy["function_call"] == {"name": "f", "arguments": "cut"}
    assert custom["tool_calls"] == [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "cut"}}]
    assert odd["tool_calls"] == [{"id": "b"}]


def test_a_message_with_a_key_that_stands_twice_is_cut_as_it_was_read() -> None:
    raw = b'{"role":"tool","content":"first","tool_call_id":"c","content":"second"}'
    read = reader().read([raw, b'{"role":"user","content":"q"}'])
    history = Conversation(read, IDENTITY, "t", lambda: Costs([1, 1], 0), 0)
    payload = render(history, View((Altered(0, ("cut",), 1, "masked"), Verbatim(1, 2)), 9))
    assert json.loads(payload[0]) == {"role": "tool", "content": "cut", "tool_call_id": "c"}


@given(st.sampled_from(["user", "assistant", "tool", "critic", ""]), st.text(max_size=6), st.booleans())
def test_a_message_that_is_plain_text_means_what_it_does_in_any_other_spelling(
    role: str, text: str, is_swapped: bool
) -> None:
    """What is digested of it is stored: it never changes."""
    plain = {"content": text, "role": role} if is_swapped else {"role": role, "content": text}
    nothing = re.compile("(?!)")
    meant = canonical(plain)
    assert meant == canonical(plain, [nothing]) == canonical({**plain, "name": None})
    raw = json.dumps(plain).encode()
    assert read_message(raw) == read_message(raw, [nothing])
    spelled = read_message(json.dumps({**plain, "refusal": None}).encode())
    assert spelled.canonical == meant
    assert replace(spelled.message, raw=raw) == read_message(raw).message

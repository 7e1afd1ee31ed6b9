"""Declarations: a request's tools and response format, whatever state they are in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.tokens.estimate import Declarations, Tool


def read_raw(members: bytes) -> Declarations:
    return CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],%b' % members[1:]).declarations()


def read(**members: Any) -> Declarations:
    return read_raw(msgspec.json.encode({"n": 1, **members}))


def function(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **members}}


@pytest.mark.parametrize(
    ("choice", "word", "forced"),
    [
        ("none", "none", ""),
        ({"type": "function", "function": {"name": "f"}}, "", "f"),
        ({"type": "allowed_tools", "allowed_tools": {}}, "", ""),
        ({"function": {"name": 7}}, "", ""),
        (7, "", ""),
    ],
)
def test_a_choice_is_a_word_or_names_a_function(choice: Any, word: str, forced: str) -> None:
    declared = read(tool_choice=choice)
    assert (declared.choice, declared.forced) == (word, forced)


@pytest.mark.parametrize("odd", [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, "text", 7, []])
def test_other_response_formats_declare_nothing(odd: Any) -> None:
    assert read(response_format=odd).response_format is None


@pytest.mark.parametrize("odd", [None, 7, "x", {}, [None, 7, "x", []]])
def test_what_is_of_the_wrong_type_is_left_out(odd: Any) -> None:
    declared = read(tools=odd, functions=odd, response_format={"type": "json_schema", "json_schema": {"schema": odd}})
    assert (declared.tools, declared.others) == ((), ())
    assert read(tools=[{"function": odd}, function(parameters=odd, description=odd)]).tools[0] == Tool("", "", {})


@pytest.mark.parametrize("number", ["1e999", "9" * 5_000])
def test_tools_with_a_number_beyond_all_bounds_are_kept_as_text(number: str) -> None:
    tools = f'[{{"type":"function","function":{{"name":"f","parameters":{{"maximum":{number}}}}}}}]'
    declarations = read_raw(b'{"tools":%b}' % tools.encode())
    assert declarations.others == (tools,)
    assert not declarations.tools

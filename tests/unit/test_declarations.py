"""Declarations: a request's tools and response format, whatever state they are in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.tokens.declarations import Declarations, ResponseFormat, Tool


def read_raw(members: bytes) -> Declarations:
    return CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],%b' % members[1:]).declarations()


def read(**members: Any) -> Declarations:
    return read_raw(msgspec.json.encode({"n": 1, **members}))


def function(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **members}}


def test_tools_have_a_name_a_description_and_a_schema() -> None:
    parameters = {"type": "object"}
    declared = read(tools=[function(description="Looks.", parameters=parameters), function("g")])
    assert declared.tools == (Tool("f", "Looks.", parameters), Tool("g", "", {}))
    assert not declared.legacy


def test_functions_are_tools_of_the_form_before() -> None:
    declared = read(functions=[{"name": "f", "description": "Looks."}], function_call={"name": "f"})
    assert declared.tools == (Tool("f", "Looks.", {}),)
    assert declared.legacy
    assert declared.forced == "f"


def test_tools_that_are_no_functions_are_kept_as_the_client_wrote_them() -> None:
    declared = read_raw(b'{"tools": [{"type" : "web", "big": 123456789012345678901234567890}]}')
    assert declared.tools == ()
    assert declared.others == ('{"type" : "web", "big": 123456789012345678901234567890}',)


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


def test_a_response_format_has_a_name_a_description_and_a_schema() -> None:
    held = {"name": "R", "description": "How to.", "schema": {"type": "object"}, "strict": True}
    declared = read(response_format={"type": "json_schema", "json_schema": held})
    assert declared.response_format == ResponseFormat("R", "How to.", {"type": "object"})


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

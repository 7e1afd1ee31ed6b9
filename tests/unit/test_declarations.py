"""Declarations: a request's tools and response format, whatever state they are in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.chat_completions import CHAT_COMPLETIONS
from app.tokens.estimate import REPEATED_CHARACTERS, Declarations, Tool, functions_text


def read_raw(members: bytes) -> Declarations:
    return CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],%b' % members[1:]).declarations()


def read(**members: Any) -> Declarations:
    return read_raw(msgspec.json.encode({"n": 1, **members}))


def function(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **members}}


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


# Functions as TypeScript


def written(parameters: Any, description: str = "") -> str:
    """The one function, without the namespace around it."""
    text = functions_text([Tool("f", description, parameters)])
    return text.removeprefix("namespace functions {\n\n").removesuffix("\n\n} // namespace functions")


def type_of(schema: Any, **root: Any) -> str:
    """A property's type, in an object of one line."""
    text = written({"properties": {"a": schema}, "required": ["a"], **root})
    return text.removeprefix("type f = (_: { a: ").removesuffix(" }) => any;")


BEE = {"type": "object", "properties": {"b": {"type": "string", "description": "Bee"}}}
LISTED = {"type": "array", "items": {"type": "object", "properties": {"a": BEE}}}
BUZZ = {"type": "boolean", "title": "Bee", "description": "Buzz\nbuzz"}
DEFAULTS = {"a": {"default": "x"}, "b": {"enum": ["y", "z"], "default": "y"}, "c": {"default": 1}}
DATE = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}, True]}
FUNCTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "properties without comments on one line": ({"a": {"type": "string"}, "b": {}}, "{ a?: string, b?: any }"),
    "one comment puts every property on its own line": (
        {"a": {"type": "string"}, "b": BUZZ},
        "{\na?: string,\n// Bee\n//\n// Buzz\n// buzz\nb?: boolean,\n}",
    ),
    "a default follows the comma, quoted unless it is one of an enum": (
        DEFAULTS,
        '{\na?: any, // default: "x"\nb?: "y" | "z", // default: y\nc?: any, // default: 1\n}',
    ),
    "an object inside, over several lines, is indented": ({"a": BEE}, "{\na?: {\n  // Bee\n  b?: string,\n},\n}"),
    "and one inside that": ({"o": LISTED}, "{\no?: {\n  a?: {\n    // Bee\n    b?: string,\n  },\n}[],\n}"),
    "a union that may be null has an option a line with its format": (
        {"a": DATE},
        "{\na?: \n | string // format: date\n | null\n | any,\n}",
    ),
}


@pytest.mark.parametrize(("properties", "text"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_parameters_are_written(properties: dict[str, Any], text: str) -> None:
    assert written({"properties": properties}) == f"type f = (_: {text}) => any;"


def test_descriptions_and_titles_are_comments_and_what_is_required_has_no_question_mark() -> None:
    assert written({}, "\n  Add up.\n\n    Args:\n  ") == "// Add up.\n//\n// Args:\ntype f = () => any;"
    parameters = {"title": "Args", "properties": {"a": {"type": "null"}}}
    assert written(parameters) == "type f = (_: // Args\n{ a?: null }) => any;"
    required = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    assert written(required) == "type f = (_: { a: string, b?: number }) => any;"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "format": "date", "pattern": "x"}, "string"),
        ({"type": "number"}, "number"),
        ({"type": "odd"}, "any"),
        ({}, "any"),
        ({"type": "string", "enum": ["a", "\u00e9"]}, '"a" | "\u00e9"'),
        ({"const": 5}, "5"),
        ({"type": ["string", "null", "string"]}, "string | null"),
        ({"type": [7]}, "any"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "string | number"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "(string | number)[]"),
        ({"type": "array", "items": {"type": "object", "properties": {"k": {"enum": [1, 2]}}}}, "{ k?: 1 | 2 }[]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}, "{ b: string }"),
    ],
)
def test_types_are_those_of_typescript(schema: Any, expected: str) -> None:
    assert type_of(schema) == expected


def test_a_reference_is_written_in_place() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    assert type_of({"$ref": "#/$defs/Point"}, **{"$defs": {"Point": point}}) == "{ x?: number }"
    assert type_of({"$ref": "#/$defs/Missing/far"}) == "any"


def test_a_reference_inside_itself_is_any() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/T"}, "right": {"$ref": "#/$defs/T"}}}
    assert type_of({"$ref": "#/$defs/T"}, **{"$defs": {"T": tree}}) == "{ left?: any, right?: any }"


def doubling(depth: int) -> dict[str, Any]:
    """Each definition uses the next one twice: 2 ** depth types in a few hundred bytes."""
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/d{i + 1}"} for side in "ab"}}
        for i in range(depth)
    }
    return {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def test_definitions_that_double_are_cut_short() -> None:
    assert len(written(doubling(38))) < 2 * REPEATED_CHARACTERS


def test_lists_of_types_that_double_are_cut_short() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(38):
        schema = {"type": ["array", "object"] * 50, "items": schema, "properties": {"a": schema}}
    assert len(type_of(schema)) < 4 * REPEATED_CHARACTERS


def test_deep_nesting_ends_in_any() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5_000):
        schema = {"type": "array", "items": schema}
    assert type_of(schema).startswith("any[][]")
    assert type_of({"const": schema}) == "any"


TYPES = ["$ref", "enum", "const", "anyOf", "oneOf", "type", "items", "properties", "string", "array", "object"]
OTHERS = ["$defs", "required", "title", "description", "default", "format", "#/$defs/a", "a", ""]
SCHEMA_KEYS = st.sampled_from([*TYPES, *OTHERS])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | SCHEMA_KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCHEMA_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(SCHEMA_KEYS, JSON, max_size=6), st.text(max_size=20))
def test_no_schema_is_too_odd(parameters: dict[str, Any], description: str) -> None:
    assert written({**parameters, "properties": {"p": parameters}}, description).endswith(" => any;")


@pytest.mark.parametrize("odd", [None, 1, "x", [], [[]], {"a": 1}, True])
def test_whatever_is_of_the_wrong_type_is_passed_over(odd: Any) -> None:
    keys = ("properties", "required", "title", "description", "enum", "anyOf", "type", "items", "$ref", "format")
    for key in keys:
        assert written({"properties": {"a": {"type": "object", key: odd}}}).startswith("type f = (_: {")
        assert written({"properties": {"a": odd}, key: odd}).startswith("type f = (")

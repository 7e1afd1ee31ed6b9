"""Declarations: the tools and the response format of a request, and the TypeScript in which OpenAI's models see tools.

No schema raises an error: types that Steno does not understand become `any`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

MAX_DEPTH = 40
"""Greatest depth of nested schemas. Deeper schemas become `any`."""
REPEATED_CHARACTERS = 500_000
"""Most characters for all `$ref` and lists of types, because definitions that use other definitions twice grow
exponentially."""

NAMES = {"integer": "number", "number": "number", "boolean": "boolean", "null": "null", "string": "string"}

Schema = Mapping[str, Any]
"""JSON schema as received; members may be missing or have a wrong type."""


class Tool(Struct, frozen=True):
    name: str
    description: str
    parameters: Schema


class ResponseFormat(Struct, frozen=True):
    name: str
    description: str
    schema: Schema


class Declarations(Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    legacy: bool = False
    """Whether the tools are declared as `functions`, the older form."""
    choice: str = ""
    """`tool_choice` or `function_call` if it is a word (none, auto, required); else empty."""
    forced: str = ""
    """Function that the model must call, if the request names one."""
    response_format: ResponseFormat | None = None
    others: tuple[str, ...] = ()
    """JSON of tools that are no functions (custom, web search, ...)."""
    must_call: bool = False
    """Whether the model must call some function."""


def functions_text(tools: Iterable[Tool]) -> str:
    writer = _Writer()
    functions = "".join(f"{writer.function(tool)}\n\n" for tool in tools)
    return f"namespace functions {{\n\n{functions}}} // namespace functions"


def comment_lines(text: str) -> list[str]:
    """Return each line of the text as `// ...`, without blank lines around the text."""
    return [f"// {line.strip()}".rstrip() for line in text.strip().splitlines()]


class _Writer:
    """Writer of TypeScript types, which follows references and is limited in depth and length."""

    def __init__(self) -> None:
        self._root: Schema = {}
        self._following: set[str] = set()
        self._room = REPEATED_CHARACTERS
        self._depth = 0

    def function(self, tool: Tool) -> str:
        self._root = tool.parameters
        arguments = ""
        if _properties(tool.parameters):
            head = "".join(f"{line}\n" for line in _comment(tool.parameters))
            arguments = f"_: {head}{self._object(tool.parameters, '')}"
        return "\n".join((*comment_lines(tool.description), f"type {tool.name} = ({arguments}) => any;"))

    def _type(self, schema: Any, indent: str) -> str:
        """`indent` is for the properties of a multi-line object."""
        return " | ".join(self._options(schema, indent))

    def _options(self, schema: Any, indent: str) -> list[str]:
        if not isinstance(schema, Mapping) or self._depth == MAX_DEPTH or self._room <= 0:
            return ["any"]
        self._depth += 1
        options = self._known_options(schema, indent)
        self._depth -= 1
        return options

    def _known_options(self, schema: Schema, indent: str) -> list[str]:
        match schema:
            case {"$ref": str(reference)}:
                return self._referenced(reference, indent)
            case {"enum": [_, *_] as values}:
                return [_literal(value) for value in values]
            case {"const": value}:
                return [_literal(value)]
            case {"anyOf": [_, *_] as options} | {"oneOf": [_, *_] as options}:
                return self._union(options, indent)
            case {"type": [_, *_] as names}:
                distinct = dict.fromkeys(name for name in names if isinstance(name, str))
                return self._repeated([self._named(name, schema, indent) for name in distinct] or ["any"])
            case {"type": str(name)}:
                return [self._named(name, schema, indent)]
            case _:
                return ["any"]

    def _union(self, options: list[Any], indent: str) -> list[str]:
        """Return the types of a union. A union with null has a line for each option, with its format."""
        types = [self._type(option, indent) for option in options]
        if "null" not in types:
            return types
        return ["".join(f"\n{indent[2:]} | {name}{_format(o)}" for name, o in zip(types, options, strict=True))]

    def _referenced(self, reference: str, indent: str) -> list[str]:
        """Return the types of a definition; a reference to itself becomes `any`."""
        if reference in self._following:
            return ["any"]
        self._following.add(reference)
        options = self._options(_resolve(self._root, reference), indent)
        self._following.remove(reference)
        self._room -= len(reference)
        return self._repeated(options)

    def _repeated(self, texts: list[str]) -> list[str]:
        """Subtract the texts' lengths from the rest of `REPEATED_CHARACTERS`, and return the texts."""
        self._room -= sum(map(len, texts))
        return texts

    def _named(self, name: str, schema: Schema, indent: str) -> str:
        if name == "object":
            return self._object(schema, indent)
        if name != "array":
            return NAMES.get(name, "any")
        options = self._options(schema.get("items"), indent)
        text = " | ".join(options)
        return f"({text})[]" if len(options) > 1 and "\n" not in text else f"{text}[]"

    def _object(self, schema: Schema, indent: str) -> str:
        """Return an object type: one line, or one line for each property if any has a comment."""
        properties = _properties(schema)
        if not properties:
            return "object"
        required = schema.get("required")
        required = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        lines: list[str] = []
        fields: list[str] = []
        for name, value in properties.items():
            field = f"{name}{'' if name in required else '?'}: {self._type(value, indent + '  ')}"
            fields.append(field)
            lines += (*_comment(value), f"{field},{_default(value)}")
        if len(lines) == len(fields) and not any("\n" in line or "//" in line for line in lines):
            return f"{{ {', '.join(fields)} }}"
        return "\n".join(("{", *(f"{indent}{line}" for line in lines), f"{indent[2:]}}}"))


def _properties(schema: Schema) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _resolve(root: Schema, reference: str) -> Any:
    """Return the schema at a path such as `#/$defs/Name`; None if missing."""
    value: Any = root
    for key in reference.removeprefix("#").split("/")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _comment(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    texts = [text for key in ("title", "description") if isinstance(text := schema.get(key), str)]
    return comment_lines("\n\n".join(texts))


def _format(schema: Any) -> str:
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    return f" // format: {format_}" if isinstance(format_, str) else ""


def _default(schema: Any) -> str:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return ""
    value = schema["default"]
    return f" // default: {value if isinstance(value, str) and 'enum' in schema else _literal(value)}"


def _literal(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "any"

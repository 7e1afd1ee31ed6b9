"""TypeScript: the text in which OpenAI's models are shown the functions they may call.

Nothing a schema holds makes it fail: what is not understood is `any`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.tokens.declarations import Schema, Tool

MAX_DEPTH = 40
"""Schemas inside schemas; beyond it everything is `any`."""
REPEATED_CHARACTERS = 500_000
"""Most characters that all `$ref` and lists of types may be written to: definitions that each use another twice grow
without end."""

NAMES = {"integer": "number", "number": "number", "boolean": "boolean", "null": "null", "string": "string"}


def functions_text(tools: Iterable[Tool]) -> str:
    """The namespace with all functions, as it stands in a prompt."""
    writer = _Writer()
    functions = "".join(f"{writer.function(tool)}\n\n" for tool in tools)
    return f"namespace functions {{\n\n{functions}}} // namespace functions"


def comment_lines(text: str) -> list[str]:
    """A line `// ...` for each line of the text, less the blank ones around it."""
    return [f"// {line.strip()}".rstrip() for line in text.strip().splitlines()]


class _Writer:
    """Writes types. It knows the schema it is in, which references it is following, and how far it may go."""

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
        """A schema's type; `indent` is that of the properties inside, should it be an object of several lines."""
        return " | ".join(self._options(schema, indent))

    def _options(self, schema: Any, indent: str) -> list[str]:
        """The types that a value may have."""
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
        """Write alternatives. A union that may be null stands below its name, an option a line, each with its
        format."""
        types = [self._type(option, indent) for option in options]
        if "null" not in types:
            return types
        return ["".join(f"\n{indent[2:]} | {name}{_format(o)}" for name, o in zip(types, options, strict=True))]

    def _referenced(self, reference: str, indent: str) -> list[str]:
        """The definition in its place; inside itself it is `any`."""
        if reference in self._following:
            return ["any"]
        self._following.add(reference)
        options = self._options(_resolve(self._root, reference), indent)
        self._following.remove(reference)
        self._room -= len(reference)
        return self._repeated(options)

    def _repeated(self, texts: list[str]) -> list[str]:
        """Count texts that stand once in a schema and may be written many times: their length takes up room."""
        self._room -= sum(map(len, texts))
        return texts

    def _named(self, name: str, schema: Schema, indent: str) -> str:
        match name:
            case "array":
                return self._array(schema.get("items"), indent)
            case "object":
                return self._object(schema, indent)
            case _:
                return NAMES.get(name, "any")

    def _array(self, items: Any, indent: str) -> str:
        options = self._options(items, indent)
        text = " | ".join(options)
        return f"({text})[]" if len(options) > 1 and "\n" not in text else f"{text}[]"

    def _object(self, schema: Schema, indent: str) -> str:
        """Write an object on one line, or one line a property where any of them has something to say."""
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
    """Schema that `#/$defs/Name` points at; None where there is nothing."""
    value: Any = root
    for key in reference.removeprefix("#").split("/")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _comment(schema: Any) -> list[str]:
    """Title and description as comment lines."""
    if not isinstance(schema, Mapping):
        return []
    texts = [text for key in ("title", "description") if isinstance(text := schema.get(key), str)]
    return comment_lines("\n\n".join(texts))


def _format(schema: Any) -> str:
    match schema:
        case {"format": str(format_)}:
            return f" // format: {format_}"
        case _:
            return ""


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

"""`/docs`: the reference of the REST interface, from the OpenAPI schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.inspector.visits import PageRoute, TheInspector, base_for_clients

Schema = Mapping[str, Any]
Type = Sequence[tuple[str, str]]
"""Pieces of text, each with the name of the schema that it links to, or an empty string."""

WIDTH = 100
"""Maximum characters of a line of JSON."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/docs")
async def show_reference(request: Request, inspector: TheInspector) -> Response:
    schema = request.app.openapi()
    resolve, base = partial(_resolved, schema), base_for_clients(request)
    shown = {"schema": schema, "resolve": resolve, "type_of": type_of, "pretty": pretty}
    return inspector.pages.page("reference.html", {**shown, "command_of": partial(command_of, resolve, base)})


def command_of(resolve: Any, base: str, method: str, path: str, operation: Schema) -> str:
    """Return a curl command for an operation, with the schema's examples."""
    query = []
    for each in map(resolve, operation.get("parameters", ())):
        if "example" in each:
            given = quote(str(each["example"]), safe="")
            path = path.replace(f"{{{each['name']}}}", given)
            query += [f"{each['name']}={given}"] if each["in"] == "query" else []
    lines = [f"curl -s {shlex.quote(base + path + ('?' + '&'.join(query) if query else ''))}"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if method.upper() != ("POST" if "example" in body else "GET"):  # curl's default method.
        lines.append(f"-X {method.upper()}")
    if operation["security"]:
        # In the header that clients of the format use.
        key = "x-api-key: $ANTHROPIC" if path.startswith("/v1/messages") else "authorization: Bearer $OPENAI"
        lines.append(f'-H "{key}_API_KEY"')
    if "example" in body:
        lines += ['-H "content-type: application/json"', f"-d {shlex.quote(pretty(body['example']))}"]
    return " \\\n  ".join(lines)


def type_of(schema: Schema) -> Type:
    """Return the type in words, such as "list of Summary or null"."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [(name, name)]
    if "const" in schema:
        return [(json.dumps(schema["const"]), "")]
    if "enum" in schema:
        return [(" | ".join(json.dumps(each) for each in schema["enum"]), "")]
    if (several := schema.get("anyOf") or schema.get("oneOf")) is not None:
        return _joined([type_of(each) for each in several])
    kinds = schema.get("type", "any")
    if isinstance(kinds, list):
        return _joined([type_of({**schema, "type": kind}) for kind in kinds])
    if kinds == "array":
        return [("list of ", ""), *type_of(schema.get("items", {}))]
    if kinds == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return [("object of ", ""), *type_of(inner)]
    return [(f"{kinds}, {schema['format']}" if "format" in schema else kinds, "")]


def _joined(types: Sequence[Type]) -> Type:
    return [piece for number, each in enumerate(types) for piece in ([(" or ", "")] if number else []) + list(each)]


def pretty(value: object, indent: str = "") -> str:
    """Return a value as JSON, with lists and objects on one line if they fit."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        inner = [f"{deeper}{json.dumps(name)}: {pretty(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + pretty(each, deeper) for each in value) + f"\n{indent}]"


def _resolved(schema: Schema, part: Schema) -> Schema:
    """Return the part of the schema, or the target of its `$ref`."""
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: Schema = schema["components"][kind][name]
    return found

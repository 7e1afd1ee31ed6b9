"""`/docs`: the reference of the interface, rendered from its schema. Whoever may ask for the schema may read it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.inspector.visits import PageRoute, TheInspector, base_for_clients

Schema = Mapping[str, Any]
Type = Sequence[tuple[str, str]]
"""Pieces of text, each with the name of the schema it leads to, or none."""

WIDTH = 100
"""Characters of a line of JSON: what fits stands in one."""
KEY = {"bearer": "authorization: Bearer $OPENAI_API_KEY", "key": "x-api-key: $ANTHROPIC_API_KEY"}
"""Header that a command sends the key in, under the name that the format's own clients know."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/docs")
async def show_reference(request: Request, inspector: TheInspector) -> Response:
    schema = request.app.openapi()
    base = base_for_clients(request)
    return inspector.pages.page("reference.html", {"info": schema["info"], "base": base, **reference_of(schema, base)})


def reference_of(schema: Schema, base: str) -> dict[str, Any]:
    """Contents of the page: the operations by tag, then the schemas that they refer to."""
    operations = list(_operations(schema, base))
    groups = [
        {**tag, "operations": [each for each in operations if each["tag"] == tag["name"]]} for tag in schema["tags"]
    ]
    named = schema["components"]["schemas"]
    described = [
        {"name": name, "description": part.get("description", ""), "members": list(members_of(part))}
        for name, part in sorted(named.items())
        if "properties" in part
    ]
    return {"groups": groups, "schemas": described}


def _operations(schema: Schema, base: str) -> Iterator[dict[str, Any]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            answers = {status: _resolved(schema, answer) for status, answer in operation["responses"].items()}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            parameters = [_resolved(schema, each) for each in operation.get("parameters", ())]
            yield {
                "id": operation["operationId"],
                "tag": operation["tags"][0],
                "method": method.upper(),
                "path": path,
                "summary": operation["summary"],
                "description": operation.get("description", ""),
                "parameters": [
                    {"description": "", "required": False, **each, "type": type_of(each["schema"])}
                    for each in parameters
                ],
                "body": list(members_of(body["schema"])) if body else [],
                "answer": [_content(kind, media) for kind, media in answers["200"].get("content", {}).items()],
                "headers": [
                    {"name": name, **_resolved(schema, each)}
                    for name, each in answers["200"].get("headers", {}).items()
                ],
                "refusals": [
                    (status, each["description"]) for status, each in sorted(answers.items()) if status != "200"
                ],
                "command": command_of(method, path, operation, parameters, base),
            }


def _content(kind: str, media: Schema) -> dict[str, Any]:
    """One form of an answer: its type, its members where they have no name of their own, and an example."""
    schema, example = media.get("schema", {}), media.get("example")
    return {
        "kind": kind,
        "type": type_of(schema),
        "members": list(members_of(schema)),
        "example": example if isinstance(example, str | None) else pretty(example),
    }


def command_of(method: str, path: str, operation: Schema, parameters: Sequence[Schema], base: str) -> str:
    """Curl command of an operation, with the examples of the schema."""
    known = {each["name"]: each for each in parameters if "example" in each}
    query = []
    for name, each in known.items():
        given = quote(str(each["example"]), safe="")
        path = path.replace(f"{{{name}}}", given)
        query += [f"{name}={given}"] if each["in"] == "query" else []
    lines = [f"curl -s {shlex.quote(base + path + ('?' + '&'.join(query) if query else ''))}"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if method.upper() != ("POST" if "example" in body else "GET"):  # What curl sends by itself.
        lines.append(f"-X {method.upper()}")
    if operation["security"]:
        lines.append(f'-H "{KEY["key" if path.startswith("/v1/messages") else "bearer"]}"')
    if "example" in body:
        lines += ['-H "content-type: application/json"', f"-d {shlex.quote(pretty(body['example']))}"]
    return " \\\n  ".join(lines)


def members_of(schema: Schema) -> Iterator[dict[str, Any]]:
    required = schema.get("required", ())
    for name, part in schema.get("properties", {}).items():
        meaning = part.get("description", "")
        yield {"name": name, "type": type_of(part), "description": meaning, "required": name in required}


def type_of(schema: Schema) -> Type:
    """Type in words, such as "list of Summary or null"."""
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
    """Value as JSON, in which a list or an object stands in one line where it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        inner = [f"{deeper}{json.dumps(name)}: {pretty(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + pretty(each, deeper) for each in value) + f"\n{indent}]"


def _resolved(schema: Schema, part: Schema) -> Schema:
    """Part of the schema that a reference stands for."""
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: Schema = schema["components"][kind][name]
    return found

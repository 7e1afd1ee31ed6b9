"""`/`: what to paste into a client, and whether Steno works. A stranger sees no more of that than `/readyz` says."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec import Struct

from app.formats.format import WireFormat
from app.http.own_headers import CONVERSATION_ID
from app.inspector.visits import Instead, PageRoute, TheInspector, Visit, base_for_clients, visit_of
from app.providers.model_listings import ListingRefused, ModelListing
from app.providers.providers import Provider
from app.proxy.conversation_ids import encoded_name
from app.proxy.router import LISTENER
from app.settings import DEFAULT_UPSTREAM
from app.settings.checks import Finding
from app.store import StoreUnavailable, Wanted
from app.store.calibrations import read_models_used
from app.store.conversations import search_conversations
from app.store.histories import find_titles

_BODY_ENDS = "STENO_BODY"
_LIKE_THE_END = re.compile(f"{_BODY_ENDS}_*")
_KEYS = {"messages": (b"x-api-key", b"", "ANTHROPIC_API_KEY")}
"""Header, prefix and variable of the key, by format, where its clients have their own way."""
_USUAL_KEY = (b"authorization", b"Bearer ", "OPENAI_API_KEY")


def key_header(spoken: WireFormat) -> tuple[bytes, bytes]:
    """Header in which a format's clients send their key, and what stands before the key there."""
    name, before, _ = _KEYS.get(spoken.name, _USUAL_KEY)
    return name, before


def curl_of(base_url: str, spoken: WireFormat, conversation_id: str, body: bytes) -> str:
    """Curl command of a request to `base_url`: Steno's scheme, host and port. The body goes in by a here-document: it
    may be longer than an argument may, and nothing in it means anything to the shell."""
    name, before, variable = _KEYS.get(spoken.name, _USUAL_KEY)
    named = CONVERSATION_ID + b": " + encoded_name(conversation_id)
    headers = [
        "content-type: application/json",
        *(f"{header.decode()}: {value.decode()}" for header, value in spoken.summaries.headers),
        named.decode("latin-1"),
    ]
    text = body.decode("utf-8", "replace")
    # One pass, whatever the text holds: it is the client's, and may be a million underscores.
    end = max(_LIKE_THE_END.findall(text), key=len, default="")
    end = f"{end}_" if end else _BODY_ENDS
    lines = [
        f"curl -sS {shlex.quote(base_url + spoken.path.decode())}",
        f'  -H "{name.decode()}: {before.decode()}${variable}"',
        *(f"  -H {shlex.quote(header)}" for header in headers),
        f"  --data-binary @- <<'{end}'",
    ]
    return " \\\n".join(lines) + f"\n{text}\n{end}\n"


LATEST = 6
MOST_MODELS = 12

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class Way(Struct, frozen=True):
    """A base URL, and the clients that read it."""

    id: str
    clients: str
    variable: str
    base_url: str


class ShownUpstream(Struct, frozen=True):
    name: str
    base_url: str
    formats: str
    path: str
    """End of a client's base URL that has its requests sent there."""
    state: str
    text: str


class ShownWindow(Struct, frozen=True):
    model: str
    upstream: str
    tokens: int
    source: str
    note: str | None


@router.get("/")
async def show_landing(request: Request, inspector: TheInspector) -> Response:
    base, services = base_for_clients(request), inspector.services
    shown: dict[str, Any] = {
        "base": base,
        "ways": ways(base),
        "database": services.store.state,
        "tokenizer": "estimated by bytes" if services.estimator.heuristics else "exact",
    }
    try:
        visit = await visit_of(request, inspector)
    except (Instead, StoreUnavailable):
        return inspector.pages.page("landing_outside.html", shown)
    return visit.page(
        "landing.html",
        **shown,
        has_all=request.scope.get(LISTENER) != "callers",
        findings=findings(visit) if visit.sees_server else [],
        upstreams=[upstream(provider) for provider in services.providers.all],
        **await _stored(visit),
    )


def ways(base: str) -> list[Way]:
    return [
        Way("openai", "OpenAI: chat completions and responses", "OPENAI_BASE_URL", f"{base}/v1"),
        Way("anthropic", "Anthropic: messages, Claude Code", "ANTHROPIC_BASE_URL", base),
        Way("named", "With the conversation's id in the path", "", f"{base}/c/MY-CONVERSATION/v1"),
    ]


def findings(visit: Visit) -> list[Finding]:
    """Problems that are known without asking anybody, in the words of `steno doctor`."""
    store = visit.services.store
    found = list(visit.inspector.findings)
    if store.reason is not None:
        text = f"The database {store.place} cannot be used: {store.reason}"
        found.insert(0, Finding("problem", "database", text, "Requests are served un-compacted; it is tried again."))
    elif store.not_written is not None:
        text = f"The database {store.place} can be read and not written: {store.not_written}"
        found.insert(0, Finding("problem", "database", text, store.remedy or ""))
    return found


def upstream(provider: Provider) -> ShownUpstream:
    is_default = provider.name == DEFAULT_UPSTREAM
    formats = ", ".join(each.name.replace("_", " ") for each in provider.formats)
    path = "/v1" if is_default else f"/u/{provider.name}/v1"
    return ShownUpstream(provider.name, provider.settings.base_url, formats, path, *_state(provider))


def _state(provider: Provider) -> tuple[str, str]:
    """State of an upstream by how it answered when it was last asked for its models."""
    match provider.windows.listings.latest_outcome:
        case None:
            return "unknown", "not asked for its models"
        case ModelListing(models=models) if models:
            return "ok", f"lists {len(models)} models"
        case ModelListing():
            return "ok", "answers, lists no models"
        case ListingRefused(wants_key=True):
            return "ok", "answers; lists its models to keys only"
        case ListingRefused(status=status):
            return "warning", f"answers with status {status} to the question for its models"
        case error:
            return "problem", error.message


async def _stored(visit: Visit) -> dict[str, Any]:
    """Values from the database; none while it is away."""
    try:
        used = await visit.find(read_models_used)
        wanted = Wanted(status="summarized")
        latest = await visit.find(search_conversations, wanted, "updated", limit=LATEST, after=None)
        titles = await visit.find(find_titles, [each.id for each in latest.data])
    except StoreUnavailable:
        return {"windows": windows(visit, ()), "latest": [], "titles": {}}
    return {"windows": windows(visit, used), "latest": latest.data, "titles": titles}


def windows(visit: Visit, used: Sequence[str]) -> dict[str, Any]:
    """Windows of the models that the tenant used, the latest first; the others are counted by their source."""
    known = visit.services.providers.known(visit.tenant, used)
    rows, others = list[ShownWindow](), Counter[str]()
    for name in [*used, *(name for name in known if name not in set(used))]:
        for provider in known.get(name, ()):
            window = provider.windows.window_of(name, visit.tenant)
            if name in used[:MOST_MODELS] or (not used and len(rows) < MOST_MODELS):
                rows.append(ShownWindow(name, provider.name, window.context, window.source, window.note))
            else:
                others[window.source] += 1
    return {"rows": rows, "others": others}


Schema = Mapping[str, Any]
Type = Sequence[tuple[str, str]]
"""Pieces of text, each with the name of the schema it leads to, or none."""

WIDTH = 100
"""Characters of a line of JSON: what fits stands in one."""
KEY = {"bearer": "authorization: Bearer $OPENAI_API_KEY", "key": "x-api-key: $ANTHROPIC_API_KEY"}
"""Header that a command sends the key in, under the name that the format's own clients know."""


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

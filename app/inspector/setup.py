"""Pages that need no session: `/`, with base URLs for clients and Steno's state, and `/docs`, the reference of the REST
interface from the OpenAPI schema. Without a session, `/` shows no more of the state than `/readyz`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.checks import Finding, check_upstream
from app.inspector.pages import render
from app.inspector.sessions import PageRoute, SignInNeeded, TheInspector, Visit, base_for_clients, visit_of
from app.providers.providers import Provider
from app.proxy.router import LISTENER
from app.settings import DEFAULT_UPSTREAM
from app.store import StoreUnavailable
from app.store.calibrations import read_models_used

Schema = Mapping[str, Any]
Type = Sequence[tuple[str, str]]
"""Pieces of text, each with the name of the schema to which it links, or with an empty string."""

MOST_MODELS = 12
pretty = partial(json.dumps, ensure_ascii=False, indent=2)

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def show_setup(request: Request, inspector: TheInspector) -> Response:
    base, services = base_for_clients(request), inspector.services
    shown: dict[str, Any] = {
        "ways": [
            ("openai", "OpenAI: chat completions and responses", "OPENAI_BASE_URL", f"{base}/v1"),
            ("anthropic", "Anthropic: messages, Claude Code", "ANTHROPIC_BASE_URL", base),
            ("named", "With the conversation's id in the path", "", f"{base}/c/MY-CONVERSATION/v1"),
        ],
        "database": "ok" if services.store.reason is None else "degraded",
        "tokenizer": "estimated by bytes" if services.estimator.heuristics else "exact",
    }
    try:
        visit = await visit_of(request, inspector)
    except (SignInNeeded, StoreUnavailable):
        return render("setup_outside.html", shown)
    return visit.page(
        "setup.html",
        **shown,
        has_all=request.scope.get(LISTENER) != "callers",
        findings=_findings(visit) if visit.sees_server else [],
        upstreams=[_upstream(provider) for provider in services.providers.all],
        **await _windows(visit),
    )


def _findings(visit: Visit) -> list[Finding]:
    """Return the problems of the settings and the database, in the words of `steno doctor`."""
    store, found = visit.services.store, list(visit.inspector.findings)
    place = store.database.address.place
    if store.reason is not None:
        text = f"The database {place} cannot be used: {store.reason}"
        found.insert(0, Finding("problem", "database", text, "Requests are served un-compacted; it is tried again."))
    elif store.writes.reason is not None:
        text = f"The database {place} can be read and not written: {store.writes.reason}"
        found.insert(0, Finding("problem", "database", text, store.remedy or ""))
    return found


def _upstream(provider: Provider) -> dict[str, str]:
    outcome = provider.windows.listings.latest_outcome
    found = check_upstream(provider, outcome, provider.settings.api_key_env) if outcome else None
    return {
        "name": provider.name,
        "base_url": provider.settings.base_url,
        "formats": ", ".join(each.name.replace("_", " ") for each in provider.formats),
        # Path of a client's base URL for this upstream.
        "path": "/v1" if provider.name == DEFAULT_UPSTREAM else f"/u/{provider.name}/v1",
        "state": found.state if found else "unknown",
        "text": found.text if found else "not asked for its models",
    }


async def _windows(visit: Visit) -> dict[str, Any]:
    """Return name, upstream and window of the models that the tenant used last. `more`: number of other models whose
    windows providers report. If the store names no used models, the list has models of providers and settings."""
    used: list[str] = []
    with suppress(StoreUnavailable):
        used = await visit.find(read_models_used)
    known = visit.services.providers.known(visit.tenant, used)
    rows = [
        (name, provider.name, provider.windows.window_of(name, visit.tenant))
        for name in dict.fromkeys((*used, *known))
        for provider in known.get(name, ())
    ]
    shown = {*(used or [*known])[:MOST_MODELS]}
    others = {name for name, _, window in rows if name not in shown and window.source == "provider"}
    return {"windows": [row for row in rows if row[0] in shown], "more": len(others)}


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    schema = request.app.openapi()
    resolve, base = partial(_resolved, schema), base_for_clients(request)
    shown = {"schema": schema, "resolve": resolve, "type_of": type_of, "pretty": pretty}
    return render("reference.html", {**shown, "command_of": partial(command_of, resolve, base)})


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
    if method.upper() != ("POST" if "example" in body else "GET"):  # This is not curl's default method.
        lines.append(f"-X {method.upper()}")
    if operation["security"]:
        # The clients of each format send the key in their own header.
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


def _resolved(schema: Schema, part: Schema) -> Schema:
    """Return the part of the schema, or the target of its `$ref`."""
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: Schema = schema["components"][kind][name]
    return found

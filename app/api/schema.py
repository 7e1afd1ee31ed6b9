"""The OpenAPI schema: what FastAPI makes of the routes, the errors that really come, and what the gate serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import Scope

from app.api import wire_schema
from app.errors import (
    BodyTooLarge,
    ConversationNotFound,
    FormatNotSpoken,
    HeadersTooLarge,
    HostNotAllowed,
    InvalidCredentials,
    InvalidRequest,
    LoopDetected,
    MessagesNotKept,
    MissingCredentials,
    NothingToCompact,
    OriginNotAllowed,
    RequestTimedOut,
    StenoError,
    StorageUnavailable,
    SummaryNotFound,
    TooManyBytesInFlight,
    UnknownUpstream,
    UnsupportedMediaType,
    UpstreamDisconnected,
    UpstreamTimedOut,
    UpstreamUnreachable,
    UpstreamUnreadable,
)

Schema = dict[str, Any]
Errors = tuple[type[StenoError], ...]

ALWAYS: Errors = (InvalidRequest, OriginNotAllowed, HostNotAllowed, HeadersTooLarge, LoopDetected)
OF_A_TENANT: Errors = (MissingCredentials, InvalidCredentials, StorageUnavailable)
WITH_A_BODY: Errors = (BodyTooLarge, RequestTimedOut, UnsupportedMediaType)
BY_PARAMETER: Mapping[str, Errors] = {"conversation_id": (ConversationNotFound,), "summary_id": (SummaryNotFound,)}
OF_EDITS = ("edit_summary",)
"""Functions of the routes that count a summary's tokens."""
OF_MESSAGES = ("list_messages",)
"""Functions of the routes that show messages."""
OF_A_CHAT: Errors = (
    MissingCredentials,
    TooManyBytesInFlight,
    UnknownUpstream,
    UpstreamUnreachable,
    UpstreamTimedOut,
    UpstreamDisconnected,
    UpstreamUnreadable,
    FormatNotSpoken,
    NothingToCompact,
)

_ERROR_CONTENT: Schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}

SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The provider's key: it names the tenant."},
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same, as Anthropic's clients send it.",
    },
}
NEEDED: list[Schema] = [{"bearer": []}, {"key": []}, {}]
"""Keys that a request needs: one of them, or none from the same machine or where the settings let strangers in; then it
belongs to `anonymous`."""
TAGS = (
    ("proxied", "Requests to a provider. A history that does not fit its model's window is compacted on the way."),
    ("conversations", "What Steno knows of a conversation, and what its latest payload was made of."),
    ("summaries", "The summaries that stand for messages."),
    ("compactions", "What would happen to a request, and compactions on demand."),
    ("pins", "Messages that stay verbatim beside summaries."),
    ("usage", "What calls took, and what was saved."),
    ("models", "Context windows, and how a provider counts."),
    ("tenant", "All that is stored of one key."),
    ("health", "Whether Steno runs, for whoever watches over it."),
)
PARAMETERS = {"conversation_id": "order-4711", "summary_id": "chk_1", "q": "ORD-0001"}
"""Example values of parameters that name something."""
_EXAMPLES = Path(__file__).with_name("examples.json")

_PARAMETER = re.compile(r"\\\{\w+\\\}")
_HTTP_METHODS = frozenset({"get", "put", "post", "delete", "patch"})


def schema_of(app: FastAPI) -> Schema:
    """The whole schema, made once for an application."""
    if app.openapi_schema is None:
        # The class's own: this function is put in place of the object's.
        schema = FastAPI.openapi(app)
        examples = json.loads(_EXAMPLES.read_bytes())
        refusals: Schema = {}
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _add_errors(operation, _errors_of(path, operation), refusals)
                _add_examples(operation, examples.get(f"{method.upper()} {path}", {}))
                operation["security"] = NEEDED if path.startswith("/context") else []
        for each in wire_schema.PROXIED:
            operation = {**wire_schema.operation_of(each, examples), "security": NEEDED}
            _add_errors(operation, (*ALWAYS, *WITH_A_BODY, *OF_A_CHAT), refusals, *wire_schema.refused(each))
            schema["paths"][each.path] = {"post": operation}
        _add_components(schema["components"], refusals, examples)
        schema["tags"] = [{"name": name, "description": description} for name, description in TAGS]
    return app.openapi_schema or {}


def _add_components(components: Schema, refusals: Schema, examples: Mapping[str, Any]) -> None:
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update(wire_schema.schemas(examples))
    components["responses"] = dict(sorted(refusals.items()))
    components["headers"] = dict(wire_schema.HEADERS)
    components["parameters"] = dict(wire_schema.PARAMETERS)
    components["securitySchemes"] = SECURITY


def _add_examples(operation: Schema, examples: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in PARAMETERS:
            parameter["example"] = PARAMETERS[parameter["name"]]
    if "request" in examples:
        operation["requestBody"]["content"]["application/json"]["example"] = examples["request"]
    if "answer" in examples:
        [content] = operation["responses"]["200"]["content"].values()
        content["example"] = examples["answer"]


def methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Methods that the path has; none where there is no such path."""
    found: set[str] = set()
    for template, operations in schema_of(app)["paths"].items():
        if re.fullmatch(_PARAMETER.sub("[^/]+", re.escape(template)), scope["path"]):
            found |= {method.upper() for method in operations if method in _HTTP_METHODS}
    if scope["path"] == app.openapi_url:
        found.add("GET")
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _errors_of(path: str, operation: Schema) -> Iterator[type[StenoError]]:
    yield from ALWAYS
    if path.startswith("/context"):
        yield from OF_A_TENANT
    if "requestBody" in operation:
        yield from WITH_A_BODY
    if operation["operationId"] in OF_MESSAGES:
        yield MessagesNotKept
    if operation["operationId"] in OF_EDITS:
        yield from (UnknownUpstream, FormatNotSpoken)
    for parameter in operation.get("parameters", ()):
        yield from BY_PARAMETER.get(parameter["name"], ())


def _add_errors(
    operation: Schema,
    errors: Iterable[type[StenoError]],
    shared: Schema,
    kind: str = "",
    content: Schema = _ERROR_CONTENT,
) -> None:
    """Add errors beside the responses that the route names itself; validation answers with 400 here.

    Each stands once in `shared`, by its codes and the `kind` of its content.
    """
    responses = operation["responses"]
    responses.pop("422", None)
    by_status: dict[int, list[str]] = {}
    for error in errors:
        by_status.setdefault(error.status, []).append(error.code)
    for status, codes in sorted(by_status.items()):
        name = ".".join(filter(None, (kind, *codes)))
        text = f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in codes)}"
        shared[name] = {"description": text, "content": content}
        responses.setdefault(str(status), {"$ref": f"#/components/responses/{name}"})

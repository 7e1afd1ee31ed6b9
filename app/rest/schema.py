"""The OpenAPI schema: what FastAPI makes of the routes, the errors that really come, and the one route beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.types import Scope

from app.errors import (
    BodyTooLarge,
    ConversationNotFound,
    FormatNotSpoken,
    HeadersTooLarge,
    HostNotAllowed,
    InvalidRequest,
    LoopDetected,
    MessagesNotKept,
    MissingCredentials,
    OriginNotAllowed,
    RequestTimedOut,
    StenoError,
    StorageUnavailable,
    SummaryNotActive,
    SummaryNotFound,
    TooManyBytesInFlight,
    UnknownUpstream,
    UnsupportedMediaType,
    UpstreamDisconnected,
    UpstreamTimedOut,
    UpstreamUnreachable,
)

Schema = dict[str, Any]
Errors = tuple[type[StenoError], ...]

ALWAYS: Errors = (InvalidRequest, OriginNotAllowed, HostNotAllowed, HeadersTooLarge, LoopDetected)
OF_A_TENANT: Errors = (MissingCredentials, StorageUnavailable)
WITH_A_BODY: Errors = (BodyTooLarge, RequestTimedOut, UnsupportedMediaType)
BY_PARAMETER: Mapping[str, Errors] = {"conversation_id": (ConversationNotFound,), "summary_id": (SummaryNotFound,)}
OF_EDITS = ("edit_summary", "deactivate_summary", "undo_compaction")
"""The routes, by the names of their functions, that change summaries."""
OF_THE_ARCHIVE = ("list_messages", "search")
"""The routes, by the names of their functions, that show messages."""
OF_A_CHAT: Errors = (
    MissingCredentials,
    TooManyBytesInFlight,
    UnknownUpstream,
    UpstreamUnreachable,
    UpstreamTimedOut,
    UpstreamDisconnected,
)

ERROR: Schema = {
    "title": "Error",
    "description": "As OpenAI's.",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_ERROR_CONTENT: Schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_OBJECT: Schema = {"application/json": {"schema": {"type": "object"}}}

CHAT: Schema = {
    "tags": ["proxy"],
    "summary": "Chat completions",
    "description": "OpenAI's, as the provider has it. What does not fit the window is compacted.",
    "operationId": "chat_completions",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "messages"],
                    "properties": {
                        "model": {"type": "string"},
                        "messages": {"type": "array", "items": {"type": "object"}},
                        "stream": {"type": "boolean"},
                        "conversation_id": {"type": "string", "description": "Steno's own: the conversation's name."},
                        "context": {"type": "object", "description": "Steno's own: what is to be done to the context."},
                    },
                }
            }
        },
    },
    "responses": {
        "200": {
            "description": "The provider's answer, with `context_status` and `context`.",
            "content": {**_OBJECT, "text/event-stream": {}},
        },
        "default": {"description": "The provider's own refusal, as it is."},
    },
}

_PARAMETER = re.compile(r"\\\{\w+\\\}")
_HTTP_METHODS = frozenset({"get", "put", "post", "delete", "patch"})


def schema_of(app: FastAPI) -> Schema:
    """The whole schema, made once."""
    if app.openapi_schema is None:
        # The class's own: this function is put in place of the object's.
        schema = FastAPI.openapi(app)
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                _add_errors(operation, _errors_of(path, operation))
        chat = {**CHAT, "responses": dict(CHAT["responses"])}
        _add_errors(chat, (*ALWAYS, *WITH_A_BODY, *OF_A_CHAT), _OBJECT)  # The provider's own may be of any form.
        schema["paths"]["/v1/chat/completions"] = {"post": chat}
        schemas = schema["components"]["schemas"]
        schemas["Error"] = ERROR
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
    return app.openapi_schema or {}


def methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Those that the path has, none where there is no such path."""
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
    if operation["operationId"].startswith(OF_THE_ARCHIVE):
        yield MessagesNotKept
    if operation["operationId"].startswith(OF_EDITS):
        yield from (SummaryNotFound, SummaryNotActive, UnknownUpstream, FormatNotSpoken)
    for parameter in operation.get("parameters", ()):
        yield from BY_PARAMETER.get(parameter["name"], ())


def _add_errors(operation: Schema, errors: Iterable[type[StenoError]], content: Schema = _ERROR_CONTENT) -> None:
    """Beside the responses that the route names itself; validation answers with 400 here."""
    responses = operation["responses"]
    responses.pop("422", None)
    by_status: dict[str, list[str]] = {}
    for error in errors:
        by_status.setdefault(str(error.status), []).append(f"`{error.code}`")
    for status, codes in sorted(by_status.items()):
        phrase = HTTPStatus(int(status)).phrase
        responses.setdefault(status, {"description": f"{phrase}: {', '.join(codes)}", "content": content})

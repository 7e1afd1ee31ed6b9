"""The OpenAPI schema: what FastAPI makes of the routes, the errors that really come, and what the router serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args

from fastapi import FastAPI
from msgspec import Struct
from starlette.types import Scope

from app.api.dependencies import PARTS_OF_BODIES
from app.compaction.fallback import OUTPUT_CAPPED, TASK_BUDGET_LOWERED, THINKING_OFF, Status
from app.compaction.view import ACTIONS
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
from app.formats.requests import LONGEST_FOCUS
from app.formats.sse import EVENT_SHAPES
from app.http import own_headers
from app.settings.presets import PRESETS

Schema = dict[str, Any]

EVENTS = ("compaction_started", "compaction_completed", "compaction_failed")
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_STATUS: Schema = {"type": "string", "enum": list(get_args(Status)), "description": "What became of the context."}
_ACTIONS: Schema = {
    "type": "array",
    "items": {"type": "string", "enum": [*ACTIONS, THINKING_OFF, OUTPUT_CAPPED, TASK_BUDGET_LOWERED, "recovered"]},
    "description": "What was done, in the order of the stages.",
}
_CHUNKS: Schema = {"type": "array", "items": _TEXT, "description": "The summaries in the payload, in order."}
_REASON: Schema = {"type": ["string", "null"], "description": "Why something could not be done."}
_COUNTS: Schema = {"type": "object", "additionalProperties": _NUMBER}


def _object(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": properties}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


_TOKENS = _object(
    "estimated forwarded saved window", **dict.fromkeys(("estimated", "forwarded", "saved", "window"), _NUMBER)
)

_CONTEXT: Mapping[str, Schema] = {
    "conversation_id": {**_TEXT, "description": "The conversation's name, given or recognised."},
    "status": _STATUS,
    "actions": _ACTIONS,
    "tokens": {**_TOKENS, "description": "Estimates, in the provider's tokens; `window` is the model's."},
    "chunks": _CHUNKS,
    "reason": _REASON,
    "messages": {**_COUNTS, "description": "How many messages each action changed; absent where none."},
    "recalled": {**_object("messages tokens", messages=_NUMBER, tokens=_NUMBER), "description": "What is quoted."},
}
"""Members of `context`, and of the event that closes a compaction."""

SCHEMAS: Mapping[str, Schema] = {
    "ContextOptions": {
        "description": "What this request asks of Steno. It is not forwarded.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "compaction": {"type": ["boolean", "null"], "description": "false leaves this request alone."},
            "instructions": {
                "type": ["string", "null"],
                "maxLength": LONGEST_FOCUS,
                "description": "What the summariser is to look after.",
            },
            "pin": {
                "type": ["array", "null"],
                "items": {"type": "integer", "minimum": 0},
                "description": "Indexes of messages that stay verbatim beside a summary, from 0.",
            },
            "preset": {"type": ["string", "null"], "enum": [*PRESETS, None], "description": "Another preset."},
            "recall": {"type": ["boolean", "null"], "description": "false recalls nothing for this request."},
        },
        "examples": [{"preset": "rolling", "instructions": "Keep every price.", "pin": [0]}],
    },
    "ContextManagement": {
        "description": "OpenAI's own member: compact this request when its prompt has more tokens than that.",
        "type": "array",
        "items": {
            **_object("type", type={"const": "compaction"}, compact_threshold={"type": "integer", "minimum": 1}),
        },
        "examples": [[{"type": "compaction", "compact_threshold": 60_000}]],
    },
    "Context": {
        "description": "What was done to the context of a request.",
        **_object(
            "conversation_id status actions tokens chunks reason",
            **_CONTEXT,
            provider={
                **_object("", id=_TEXT, created=_NUMBER, model=_TEXT),
                "description": "What the provider called its answer, on a stream that Steno began.",
            },
        ),
    },
    "CompactionEvent": {
        "description": "One of the events of a stream that begins before the provider's answer.",
        **_object(
            "type id conversation_id tokens",
            type={"type": "string", "enum": [*EVENTS, *(f"context.{name}" for name in EVENTS)]},
            id={"type": "string", "description": "The same in the event that closes it."},
            **{**_CONTEXT, "messages": _COUNTS, "tokens": _COUNTS},
        ),
    },
    "Error": {
        "description": "Steno's own, as OpenAI's.",
        **_object(
            "error",
            error=_object(
                "message type param code", message=_TEXT, type=_TEXT, param={"type": ["string", "null"]}, code=_TEXT
            ),
        ),
    },
    "MessagesError": {
        "description": "As Anthropic's, with Steno's code beside the type.",
        **_object(
            "type error",
            type={"const": "error"},
            error=_object(
                "type message",
                type=_TEXT,
                message=_TEXT,
                code=_TEXT,
                param=_TEXT,
                details=_object("error_code", error_code=_TEXT),
            ),
        ),
    },
}

HEADERS: Mapping[str, Schema] = {
    name.decode(): {"description": description, "schema": schema}
    for name, description, schema in (
        (
            own_headers.STATUS,
            "What became of the context; `pending` while that is open, `bypassed` where Steno did not look at it.",
            {"type": "string", "enum": [*get_args(Status), "pending", "bypassed"]},
        ),
        (own_headers.ACTIONS, "What was done, separated by commas.", _TEXT),
        (own_headers.CONVERSATION_ID, "The conversation's name, percent-encoded.", _TEXT),
        (own_headers.REQUEST_ID, "Steno's id of the request.", _TEXT),
        (own_headers.TOKENS_BEFORE, "Estimate of what came.", _NUMBER),
        (own_headers.TOKENS_AFTER, "Estimate of what was forwarded.", _NUMBER),
        (own_headers.WINDOW, "The context window that Steno assumes.", _NUMBER),
        (own_headers.REASON, "Why something could not be done.", _TEXT),
    )
}

PARAMETERS: Mapping[str, Schema] = {
    name.decode(): {"name": name.decode(), "in": "header", "description": description, "schema": schema}
    for name, description, schema in (
        (
            own_headers.CONVERSATION_ID,
            "The conversation's name, percent-encoded.",
            {"type": "string", "maxLength": 256},
        ),
        (own_headers.COMPACTION, "`off` leaves this request alone.", {"type": "string", "enum": ["on", "off"]}),
        (own_headers.PRESET, "Another preset for this request.", {"type": "string", "enum": list(PRESETS)}),
        (own_headers.RECALL, "`off` recalls nothing for this request.", {"type": "string", "enum": ["on", "off"]}),
        (own_headers.EVENTS, "The shape of events on a stream.", {"type": "string", "enum": list(EVENT_SHAPES)}),
        (own_headers.COUNT, "Count what would be forwarded.", {"type": "string", "enum": ["forwarded"]}),
    )
}
_OF_A_CHAT = tuple(name for name in PARAMETERS if name != own_headers.COUNT.decode())
_OF_A_COUNT = tuple(name for name in PARAMETERS if name != own_headers.EVENTS.decode())


class Proxied(Struct, frozen=True):
    """Path of a provider's API, and what Steno adds to it."""

    path: str
    name: str
    summary: str
    description: str
    body: Schema
    parameters: tuple[str, ...] = _OF_A_CHAT
    streams: bool = False
    is_messages: bool = False
    """True where Steno's own errors have Anthropic's form."""


def _body(required: str, **members: Schema) -> Schema:
    own = {"conversation_id": _TEXT, "context": _ref("schemas", "ContextOptions")}
    return _object(required, model=_TEXT, **members, **own)


_LIST: Schema = {"type": "array", "items": {"type": "object"}}
_STREAM: Schema = {"type": "boolean"}
_THRESHOLD = _ref("schemas", "ContextManagement")
_INPUT: Schema = {"oneOf": [_TEXT, _LIST]}
_CHAT = _body("model messages", messages=_LIST, stream=_STREAM, context_management=_THRESHOLD)
_MESSAGES = _body("model messages max_tokens", messages=_LIST, max_tokens={"type": "integer"}, stream=_STREAM)
_RESPONSES = _body("model input", input=_INPUT, stream=_STREAM, context_management=_THRESHOLD)
_PASSES = "The provider's route. With `x-context-count: forwarded` it counts what Steno would forward."

PROXIED = (
    Proxied(
        "/v1/chat/completions",
        "chat_completions",
        "Chat completions",
        "OpenAI's, as the provider has it. A history that does not fit the window is compacted.",
        _CHAT,
        streams=True,
    ),
    Proxied(
        "/v1/messages",
        "messages",
        "Messages",
        "Anthropic's, as the provider has it. A history that does not fit the window is compacted.",
        _MESSAGES,
        streams=True,
        is_messages=True,
    ),
    Proxied(
        "/v1/messages/count_tokens",
        "count_messages_tokens",
        "Count tokens of a message",
        _PASSES,
        _body("model messages", messages=_LIST),
        _OF_A_COUNT,
        is_messages=True,
    ),
    Proxied(
        "/v1/responses",
        "responses",
        "Responses",
        "OpenAI's, as the provider has it. A history that does not fit the window is compacted.",
        _RESPONSES,
        streams=True,
    ),
    Proxied(
        "/v1/responses/input_tokens",
        "count_responses_tokens",
        "Count tokens of a response",
        _PASSES,
        _body("model input", input=_INPUT),
        _OF_A_COUNT,
    ),
)


def schemas_of_requests(examples: Mapping[str, Any]) -> Mapping[str, Schema]:
    """Every schema by its name."""
    shown = {
        name: {**SCHEMAS[name], "examples": [examples[f"POST {path}"]["error"]]}
        for name, path in (("Error", "/v1/chat/completions"), ("MessagesError", "/v1/messages"))
    }
    return {**SCHEMAS, **shown}


def operation_of(each: Proxied, examples: Mapping[str, Any]) -> Schema:
    """Operation of a path. `examples` have, by method and path, a whole request, answer, stream and error."""
    found = examples.get(f"POST {each.path}", {})
    answers: Schema = {"application/json": _shown(_answer(each), found.get("answer"))}
    if each.streams:
        answers["text/event-stream"] = _shown(_TEXT, found.get("stream"))
    return {
        "tags": ["proxied"],
        "summary": each.summary,
        "description": each.description,
        "operationId": each.name,
        "parameters": [_ref("parameters", name) for name in each.parameters],
        "requestBody": {"required": True, "content": {"application/json": _shown(each.body, found.get("request"))}},
        "responses": {
            "200": {
                "description": "The provider's answer, with Steno's additions.",
                "headers": {name: _ref("headers", name) for name in HEADERS},
                "content": answers,
            },
            "default": {"description": "The provider's own refusal, as it is."},
        },
    }


def refused(each: Proxied) -> tuple[str, Schema]:
    """Name and content of a refusal: Steno's own error, or the provider's, which may be of any form."""
    name = "MessagesError" if each.is_messages else "Error"
    schema = {"anyOf": [_ref("schemas", name), {"type": "object"}]}
    return "messages" if each.is_messages else "proxied", {"application/json": {"schema": schema}}


def _answer(each: Proxied) -> Schema:
    return (
        _object("", context_status=_STATUS, context=_ref("schemas", "Context")) if each.streams else {"type": "object"}
    )


def _shown(schema: Schema, example: object) -> Schema:
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


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
EXAMPLE_VALUES = {"conversation_id": "order-4711", "summary_id": "chk_1", "q": "ORD-0001"}
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
        for each in PROXIED:
            operation = {**operation_of(each, examples), "security": NEEDED}
            _add_errors(operation, (*ALWAYS, *WITH_A_BODY, *OF_A_CHAT), refusals, *refused(each))
            schema["paths"][each.path] = {"post": operation}
        _add_components(schema["components"], refusals, examples)
        schema["tags"] = [{"name": name, "description": description} for name, description in TAGS]
    return app.openapi_schema or {}


def _add_components(components: Schema, refusals: Schema, examples: Mapping[str, Any]) -> None:
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update({**PARTS_OF_BODIES, **schemas_of_requests(examples)})
    components["responses"] = dict(sorted(refusals.items()))
    components["headers"] = dict(HEADERS)
    components["parameters"] = dict(PARAMETERS)
    components["securitySchemes"] = SECURITY


def _add_examples(operation: Schema, examples: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in EXAMPLE_VALUES:
            parameter["example"] = EXAMPLE_VALUES[parameter["name"]]
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

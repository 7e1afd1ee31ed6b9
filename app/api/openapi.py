"""OpenAPI schema: FastAPI's schema of the REST routes, with the proxied routes and recorded examples added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Body, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from app.compaction.decision import OUTPUT_CAPPED, THINKING_OFF, Status
from app.compaction.view import ACTIONS
from app.formats.compaction_events import EVENT_SHAPES
from app.formats.paths import COUNTS
from app.formats.requests import LONGEST_FOCUS
from app.http import headers
from app.proxy.reply import Context
from app.settings.presets import PRESETS

Schema = dict[str, Any]


class ContextOptions(TypedDict, total=False):
    """Options of a request for Steno. They are not forwarded."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc] # pydantic's way
    compaction: Annotated[bool | None, Field(description="false leaves this request alone.")]
    instructions: Annotated[
        str | None, Field(max_length=LONGEST_FOCUS, description="Subjects that the summary must keep.")
    ]
    pin: Annotated[
        list[Annotated[int, Field(ge=0)]] | None,
        Field(description="Indexes of messages that stay verbatim beside a summary, from 0."),
    ]
    preset: Annotated[
        str | None, Field(description="Preset for this request.", json_schema_extra={"enum": [*PRESETS, None]})
    ]
    recall: Annotated[bool | None, Field(description="false recalls nothing for this request.")]


class Proxied(TypedDict, total=False):
    """Members that Steno reads, beside the provider's own."""

    conversation_id: str
    context: ContextOptions


class Answer(TypedDict, total=False):
    """The provider's answer, with Steno's additions."""

    context_status: Annotated[Status, Field(description="Status of the context.")]
    context: Context


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """Error of Steno itself, in the form of OpenAI's errors."""

    error: ErrorObject


_KINDS: Any = [(kind, "validation", TypeAdapter(kind)) for kind in (Context, ContextOptions, Error)]
SCHEMAS: dict[str, Schema] = TypeAdapter.json_schemas(_KINDS, ref_template="#/components/schemas/{model}")[1]["$defs"]
"""Schemas that FastAPI does not generate from routes, by name."""
SCHEMAS["Context"]["properties"]["actions"]["items"]["enum"] = [*ACTIONS, THINKING_OFF, OUTPUT_CAPPED, "recovered"]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_SWITCH: Schema = {"type": "string", "enum": ["on", "off"]}
HEADERS: Mapping[str, Schema] = {
    name.decode(): {"description": description, "schema": schema}
    for name, description, schema in (
        (
            headers.STATUS,
            "Status of the context; `pending` before it is decided, `bypassed` if Steno did not read the request.",
            {"type": "string", "enum": [*get_args(Status), "pending", "bypassed"]},
        ),
        (headers.ACTIONS, "Changes to the history, separated by commas.", _TEXT),
        (headers.CONVERSATION_ID, "The conversation's name, percent-encoded.", _TEXT),
        (headers.REQUEST_ID, "Steno's id of the request.", _TEXT),
        (headers.TOKENS_BEFORE, "Estimate of the client's request.", _NUMBER),
        (headers.TOKENS_AFTER, "Estimate of the forwarded request.", _NUMBER),
        (headers.WINDOW, "The context window that Steno assumes.", _NUMBER),
        (headers.REASON, "Why Steno could not do something.", _TEXT),
    )
}
PARAMETERS: Mapping[str, Schema] = {
    name.decode(): {"name": name.decode(), "in": "header", "description": description, "schema": schema}
    for name, description, schema in (
        (headers.CONVERSATION_ID, "The conversation's name, percent-encoded.", {**_TEXT, "maxLength": 256}),
        (headers.COMPACTION, "`off` leaves this request alone.", _SWITCH),
        (headers.PRESET, "Preset for this request.", {**_TEXT, "enum": list(PRESETS)}),
        (headers.RECALL, "`off` recalls nothing for this request.", _SWITCH),
        (headers.EVENTS, "The shape of events on a stream.", {**_TEXT, "enum": list(EVENT_SHAPES)}),
    )
}

_COMPACTED = "as the provider has it. A history that does not fit the window is compacted."
_COUNTS = "The provider's route. It counts the client's unchanged request."
_BOTH = "Likewise `:streamGenerateContent`, and both on `/v1`."
PROXIED: Mapping[str, tuple[str, str, str]] = {
    "/v1/chat/completions": ("chat_completions", "Chat completions", f"OpenAI's, {_COMPACTED}"),
    "/v1/messages": ("messages", "Messages", f"Anthropic's, {_COMPACTED}"),
    "/v1/messages/count_tokens": ("count_messages_tokens", "Count tokens of a message", _COUNTS),
    "/v1/responses": ("responses", "Responses", f"OpenAI's, {_COMPACTED}"),
    "/v1/responses/input_tokens": ("count_responses_tokens", "Count tokens of a response", _COUNTS),
    "/v1beta/models/{model}:generateContent": (
        *("gemini", "Gemini's generateContent", f"Google's, {_COMPACTED} {_BOTH}"),
    ),
}
"""Name, title and description of the proxied routes, by path."""

SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The provider's key: it names the tenant."},
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The provider's key, as Anthropic's clients send it.",
    },
}
NEEDED: list[Schema] = [{"bearer": []}, {"key": []}, {}]
"""Alternative credentials of a request. By default, Steno accepts a request without a key only from the same machine.
Such a request belongs to the tenant `anonymous`."""
TAGS = {
    "proxied": "Requests to a provider. A history that does not fit its model's window is compacted on the way.",
    "conversations": "A conversation, and the parts of its latest payload.",
    "summaries": "Summaries, which replace messages in payloads.",
    "compactions": "Plans of requests, and compactions on demand.",
    "pins": "Messages that stay verbatim beside summaries.",
    "usage": "Tokens and costs of calls, and the savings.",
    "models": "Context windows and calibrations of models.",
    "tenant": "All stored data of one key.",
    "health": "Whether Steno runs.",
}
EXAMPLE_VALUES = {"conversation_id": "order-4711", "summary_id": "chk_1", "q": "ORD-0001"}
"""Example values of parameters, by name."""
ERRORS: dict[int | str, Schema] = {
    "default": {
        "description": "Error of Steno itself, named by its `code`.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
}
"""Error response of all of Steno's own routes."""
_EXAMPLES = Path(__file__).with_name("examples.json")


def schema_of(app: FastAPI) -> Schema:
    """Return the whole schema, which is built once for each application. `examples.json` has recorded requests, answers
    and streams, by method and path."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    schema = app.openapi_schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=[*app.routes, *_proxied().routes],
        tags=[{"name": name, "description": description} for name, description in TAGS.items()],
    )
    examples = json.loads(_EXAMPLES.read_bytes())
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _add_examples(operation, examples.get(f"{method.upper()} {path}", {}))
            operation["security"] = NEEDED if path.startswith(("/context", "/v1")) else []
    schema["components"]["schemas"] |= SCHEMAS
    schema["components"] |= {"headers": HEADERS, "parameters": PARAMETERS, "securitySchemes": SECURITY}
    return schema


def _proxied() -> APIRouter:
    """Return the proxied routes for the schema. FastAPI does not serve them."""

    async def proxied(body: Annotated[Proxied, Body()]) -> None: ...

    router = APIRouter(tags=["proxied"])
    for path, (name, summary, description) in PROXIED.items():
        parameters = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}] if "{model}" in path else []
        counts = path.encode() in COUNTS
        stream = {} if counts or parameters else {"text/event-stream": {"schema": _TEXT}}
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS if not counts]
        answer = {
            "description": "The provider's answer, with Steno's additions.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
            "content": stream,
        }
        refusal = {"description": "The provider's own error, unchanged, or an error of Steno in the format of the API."}
        router.add_api_route(
            path,
            proxied,
            methods=["POST"],
            operation_id=name,
            summary=summary,
            description=description,
            response_model=Schema if counts else Answer,
            responses={200: answer, "default": refusal},
            openapi_extra={"parameters": parameters},
        )
    return router


def _add_examples(operation: Schema, examples: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter.get("name") in EXAMPLE_VALUES:
            parameter["example"] = EXAMPLE_VALUES[parameter["name"]]
    if "request" in examples:
        operation["requestBody"]["content"]["application/json"]["example"] = examples["request"]
    for kind, media in operation["responses"]["200"].get("content", {}).items():
        if (shown := examples.get("stream" if kind == "text/event-stream" else "answer")) is not None:
            media["example"] = shown

"""The OpenAPI schema: what FastAPI makes of the routes, the errors that really come, and the proxied routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, get_args

from fastapi import FastAPI
from msgspec import Struct
from pydantic import ConfigDict, Field, TypeAdapter
from starlette.types import Scope
from typing_extensions import TypedDict

from app import errors
from app.api.dependencies import PARTS_OF_BODIES
from app.compaction.fallback import OUTPUT_CAPPED, TASK_BUDGET_LOWERED, THINKING_OFF, Status
from app.compaction.view import ACTIONS
from app.errors import StenoError
from app.formats.requests import LONGEST_FOCUS
from app.formats.sse import EVENT_SHAPES
from app.http import own_headers
from app.settings.presets import PRESETS

Schema = dict[str, Any]
Errors = tuple[type[StenoError], ...]

Action = Annotated[
    str, Field(json_schema_extra={"enum": [*ACTIONS, THINKING_OFF, OUTPUT_CAPPED, TASK_BUDGET_LOWERED, "recovered"]})
]
Counts = dict[str, int]
EVENTS = ("compaction_started", "compaction_completed", "compaction_failed")


class Tokens(TypedDict):
    """Estimates, in the provider's tokens; `window` is the model's."""

    estimated: int
    forwarded: int
    saved: int
    window: int


class Recalled(TypedDict):
    """Passages that are quoted."""

    messages: int
    tokens: int


class Provider(TypedDict, total=False):
    """Provider's names of its answer, on a stream that Steno began."""

    id: str
    created: int
    model: str


class Context(TypedDict):
    """Report of what was done to the context of a request."""

    conversation_id: Annotated[str, Field(description="The conversation's name, given or recognised.")]
    status: Annotated[Status, Field(description="What became of the context.")]
    actions: Annotated[list[Action], Field(description="What was done, in the order of the stages.")]
    tokens: Annotated[Tokens, Field(description="Estimates, in the provider's tokens; `window` is the model's.")]
    chunks: Annotated[list[str], Field(description="The summaries in the payload, in order.")]
    reason: Annotated[str | None, Field(description="Why something could not be done.")]
    messages: NotRequired[
        Annotated[Counts, Field(description="How many messages each action changed; absent where none.")]
    ]
    recalled: NotRequired[Annotated[Recalled, Field(description="What is quoted.")]]
    provider: NotRequired[
        Annotated[Provider, Field(description="What the provider called its answer, on a stream that Steno began.")]
    ]


class CompactionEvent(TypedDict):
    """One of the events of a stream that begins before the provider's answer."""

    type: Annotated[str, Field(json_schema_extra={"enum": [*EVENTS, *(f"context.{name}" for name in EVENTS)]})]
    id: Annotated[str, Field(description="The same in the event that closes it.")]
    conversation_id: str
    tokens: Counts
    messages: NotRequired[Counts]
    status: NotRequired[Status]
    actions: NotRequired[list[Action]]
    chunks: NotRequired[list[str]]
    reason: NotRequired[str | None]
    recalled: NotRequired[Recalled]


class ContextOptions(TypedDict, total=False):
    """Options of a request for Steno. They are not forwarded."""

    __pydantic_config__ = ConfigDict(  # type: ignore[misc] # pydantic's way
        extra="forbid",
        json_schema_extra={"examples": [{"preset": "rolling", "instructions": "Keep every price.", "pin": [0]}]},
    )
    compaction: Annotated[bool | None, Field(description="false leaves this request alone.")]
    instructions: Annotated[
        str | None, Field(max_length=LONGEST_FOCUS, description="What the summariser is to look after.")
    ]
    pin: Annotated[
        list[Annotated[int, Field(ge=0)]] | None,
        Field(description="Indexes of messages that stay verbatim beside a summary, from 0."),
    ]
    preset: Annotated[str | None, Field(description="Another preset.", json_schema_extra={"enum": [*PRESETS, None]})]
    recall: Annotated[bool | None, Field(description="false recalls nothing for this request.")]


class Threshold(TypedDict):
    """OpenAI's own member: compact this request when its prompt has more tokens than that."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1)]


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """Error of Steno's own, as OpenAI's."""

    error: ErrorObject


class MessagesErrorObject(TypedDict):
    type: str
    message: str
    code: NotRequired[str]
    param: NotRequired[str]
    details: NotRequired[dict[str, str]]


class MessagesError(TypedDict):
    """Error as Anthropic's, with Steno's code beside the type."""

    type: Literal["error"]
    error: MessagesErrorObject


class GeminiErrorObject(TypedDict):
    code: int
    message: str
    status: str
    details: list[dict[str, Any]]


class GeminiError(TypedDict):
    """Error as Google's, with Steno's code as the reason."""

    error: GeminiErrorObject


class GenerateContent(TypedDict):
    contents: list[dict[str, Any]]
    systemInstruction: NotRequired[dict[str, Any]]
    conversation_id: NotRequired[str]
    context: NotRequired[ContextOptions]


class Proxied(TypedDict):
    """Members that Steno reads of a request to a provider, and its own."""

    model: str
    conversation_id: NotRequired[str]
    context: NotRequired[ContextOptions]


class Counted(Proxied):
    messages: list[dict[str, Any]]


class ChatCompletion(Counted):
    stream: NotRequired[bool]
    context_management: NotRequired[list[Threshold]]


class Message(Counted):
    max_tokens: int
    stream: NotRequired[bool]


class CountedResponse(Proxied):
    input: str | list[dict[str, Any]]


class Response(CountedResponse):
    stream: NotRequired[bool]
    context_management: NotRequired[list[Threshold]]


class Answer(TypedDict, total=False):
    """The provider's answer, with what Steno adds."""

    context_status: Annotated[Status, Field(description="What became of the context.")]
    context: Context


def _schemas(*kinds: type) -> dict[str, Schema]:
    """Schemas of the types and of all that they refer to, by name."""
    adapters: Any = [(kind, "validation", TypeAdapter(kind)) for kind in kinds]
    _, found = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    return dict(found["$defs"])


SCHEMAS = _schemas(Context, CompactionEvent, ContextOptions, Error, MessagesError, GeminiError, Threshold)

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_SWITCH: Schema = {"type": "string", "enum": ["on", "off"]}
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
"""Headers of answers."""
PARAMETERS: Mapping[str, Schema] = {
    name.decode(): {"name": name.decode(), "in": "header", "description": description, "schema": schema}
    for name, description, schema in (
        (own_headers.CONVERSATION_ID, "The conversation's name, percent-encoded.", {**_TEXT, "maxLength": 256}),
        (own_headers.COMPACTION, "`off` leaves this request alone.", _SWITCH),
        (own_headers.PRESET, "Another preset for this request.", {**_TEXT, "enum": list(PRESETS)}),
        (own_headers.RECALL, "`off` recalls nothing for this request.", _SWITCH),
        (own_headers.EVENTS, "The shape of events on a stream.", {**_TEXT, "enum": list(EVENT_SHAPES)}),
    )
}
"""Headers of requests."""


class ProxiedRoute(Struct, frozen=True):
    """Path of a provider's API, and what Steno adds to it."""

    path: str
    name: str
    summary: str
    description: str
    body: type
    error: str = "Error"
    """Schema of Steno's own errors, which have the form of the API."""
    counts: bool = False
    """True where the answer is a count of tokens."""


_COMPACTED = "as the provider has it. A history that does not fit the window is compacted."
_PASSES = "The provider's route, which counts the request as it came."
PROXIED = (
    ProxiedRoute(
        "/v1/chat/completions", "chat_completions", "Chat completions", f"OpenAI's, {_COMPACTED}", ChatCompletion
    ),
    ProxiedRoute("/v1/messages", "messages", "Messages", f"Anthropic's, {_COMPACTED}", Message, "MessagesError"),
    ProxiedRoute(
        "/v1/messages/count_tokens",
        "count_messages_tokens",
        "Count tokens of a message",
        _PASSES,
        Counted,
        "MessagesError",
        counts=True,
    ),
    ProxiedRoute("/v1/responses", "responses", "Responses", f"OpenAI's, {_COMPACTED}", Response),
    ProxiedRoute(
        "/v1/responses/input_tokens",
        "count_responses_tokens",
        "Count tokens of a response",
        _PASSES,
        CountedResponse,
        counts=True,
    ),
    ProxiedRoute(
        "/v1beta/models/{model}:generateContent",
        "gemini",
        "Gemini's generateContent",
        f"Google's, {_COMPACTED} Likewise `:streamGenerateContent`, and both on `/v1`.",
        GenerateContent,
        "GeminiError",
    ),
)

ALWAYS: Errors = (
    errors.InvalidRequest,
    errors.OriginNotAllowed,
    errors.HostNotAllowed,
    errors.HeadersTooLarge,
    errors.LoopDetected,
)
OF_A_TENANT: Errors = (errors.MissingCredentials, errors.InvalidCredentials, errors.StorageUnavailable)
WITH_A_BODY: Errors = (errors.BodyTooLarge, errors.RequestTimedOut, errors.UnsupportedMediaType)
BY_PARAMETER: Mapping[str, Errors] = {
    "conversation_id": (errors.ConversationNotFound,),
    "summary_id": (errors.SummaryNotFound,),
}
BY_OPERATION: Mapping[str, Errors] = {
    "list_messages": (errors.MessagesNotKept,),
    "edit_summary": (errors.UnknownUpstream, errors.FormatNotSpoken),  # It counts the text's tokens.
}
OF_A_CHAT: Errors = (
    errors.MissingCredentials,
    errors.TooManyBytesInFlight,
    errors.UnknownUpstream,
    errors.UpstreamUnreachable,
    errors.UpstreamTimedOut,
    errors.UpstreamDisconnected,
    errors.UpstreamUnreadable,
    errors.FormatNotSpoken,
    errors.NothingToCompact,
)

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
TAGS = {
    "proxied": "Requests to a provider. A history that does not fit its model's window is compacted on the way.",
    "conversations": "What Steno knows of a conversation, and what its latest payload was made of.",
    "summaries": "The summaries that stand for messages.",
    "compactions": "What would happen to a request, and compactions on demand.",
    "pins": "Messages that stay verbatim beside summaries.",
    "usage": "What calls took, and what was saved.",
    "models": "Context windows, and how a provider counts.",
    "tenant": "All that is stored of one key.",
    "health": "Whether Steno runs.",
}
EXAMPLE_VALUES = {"conversation_id": "order-4711", "summary_id": "chk_1", "q": "ORD-0001"}
"""Example values of parameters that name something."""
_EXAMPLES = Path(__file__).with_name("examples.json")


def schema_of(app: FastAPI) -> Schema:
    """The whole schema, made once for an application. The examples have, by method and path, a recorded request,
    answer, stream and error."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    schema = FastAPI.openapi(app)  # The class's own: this function is put in place of the object's.
    examples, refusals = json.loads(_EXAMPLES.read_bytes()), dict[str, Schema]()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _add_errors(operation, list(_errors_of(path, operation)), refusals)
            _add_examples(operation, examples.get(f"{method.upper()} {path}", {}))
            operation["security"] = NEEDED if path.startswith("/context") else []
    parts = _schemas(*(kind for each in PROXIED for kind in (each.body, Answer)))
    for each in PROXIED:
        operation = _proxied(each, parts)
        _add_errors(operation, [*ALWAYS, *WITH_A_BODY, *OF_A_CHAT], refusals, each.error)
        _add_examples(operation, examples.get(f"POST {each.path}", {}))
        schema["paths"][each.path] = {"post": operation}
    components = schema["components"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    components["schemas"].update(PARTS_OF_BODIES | SCHEMAS)
    for name, path in (("Error", "/v1/chat/completions"), ("MessagesError", "/v1/messages")):
        components["schemas"][name] = {**SCHEMAS[name], "examples": [examples[f"POST {path}"]["error"]]}
    components["responses"] = dict(sorted(refusals.items()))
    components |= {"headers": HEADERS, "parameters": PARAMETERS, "securitySchemes": SECURITY}
    schema["tags"] = [{"name": name, "description": description} for name, description in TAGS.items()]
    return schema


def _proxied(route: ProxiedRoute, parts: Mapping[str, Schema]) -> Schema:
    """Operation of a provider's path."""
    content: Schema = {"application/json": {"schema": {"type": "object"} if route.counts else parts["Answer"]}}
    names = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}] if "{model}" in route.path else []
    if not (route.counts or names):
        content["text/event-stream"] = {"schema": _TEXT}
    answer = {
        "description": "The provider's answer, with Steno's additions.",
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
        "content": content,
    }
    return {
        "tags": ["proxied"],
        "summary": route.summary,
        "description": route.description,
        "operationId": route.name,
        "parameters": names + [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS if not route.counts],
        "requestBody": {"required": True, "content": {"application/json": {"schema": parts[route.body.__name__]}}},
        "responses": {"200": answer, "default": {"description": "The provider's own refusal, as it is."}},
        "security": NEEDED,
    }


def _add_examples(operation: Schema, examples: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter.get("name") in EXAMPLE_VALUES:
            parameter["example"] = EXAMPLE_VALUES[parameter["name"]]
    if "request" in examples:
        operation["requestBody"]["content"]["application/json"]["example"] = examples["request"]
    for kind, media in operation["responses"]["200"].get("content", {}).items():
        if (shown := examples.get("stream" if kind == "text/event-stream" else "answer")) is not None:
            media["example"] = shown


def methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Methods that the path has; none where there is no such path."""
    found: set[str] = set()
    for template, operations in schema_of(app)["paths"].items():
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), scope["path"]):
            found |= {method.upper() for method in operations}
    if scope["path"] == app.openapi_url:
        found.add("GET")
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _errors_of(path: str, operation: Schema) -> Iterator[type[StenoError]]:
    yield from ALWAYS
    if path.startswith("/context"):
        yield from OF_A_TENANT
    if "requestBody" in operation:
        yield from WITH_A_BODY
    yield from BY_OPERATION.get(operation["operationId"], ())
    for parameter in operation.get("parameters", ()):
        yield from BY_PARAMETER.get(parameter["name"], ())


def _add_errors(operation: Schema, own: Iterable[type[StenoError]], shared: dict[str, Schema], form: str = "") -> None:
    """Add errors beside the responses that the route names itself; validation answers with 400 here. Each stands once
    in `shared`, by its codes and the `form` of an API, whose provider may answer in any other."""
    responses = operation["responses"]
    responses.pop("422", None)
    by_status: dict[int, list[str]] = {}
    for error in own:
        by_status.setdefault(error.status, []).append(error.code)
    schema: Schema = {"$ref": f"#/components/schemas/{form or 'Error'}"}
    content = {"application/json": {"schema": {"anyOf": [schema, {"type": "object"}]} if form else schema}}
    for status, codes in sorted(by_status.items()):
        name = ".".join(filter(None, (_KINDS.get(form), *codes)))
        text = f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in codes)}"
        shared[name] = {"description": text, "content": content}
        responses.setdefault(str(status), {"$ref": f"#/components/responses/{name}"})


_KINDS = {"Error": "proxied", "MessagesError": "messages", "GeminiError": "gemini"}
"""Beginning of a response's name by the form of its errors."""

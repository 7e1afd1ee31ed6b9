"""Shared code of the routes: tenant, body and format of a request, and answers to errors.

All errors have OpenAI's format, also those for invalid bodies, unknown paths and unknown methods.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TypeVar, get_args

from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import DecodeError, Meta, Struct
from msgspec.json import decode, schema_components
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from app.compaction.decision import Status
from app.errors import (
    ConversationNotFound,
    InvalidRequest,
    MethodNotAllowed,
    StenoError,
    StorageUnavailable,
    UnknownPath,
    UnsupportedMediaType,
)
from app.formats.format import WireFormat
from app.formats.paths import BY_NAME, FORMAT_NAMES
from app.formats.raw_json import RawObject, Unreadable
from app.http.asgi import peer_of, read_body
from app.http.headers import is_trusted, value_of
from app.proxy.conversation_ids import name_in_path
from app.proxy.exchange import Services
from app.proxy.request import plain_body
from app.proxy.request_log import LONGEST_PATH, REQUEST
from app.proxy.router import LISTENER
from app.store import StoredConversation, StoreUnavailable, UnknownCursor
from app.store.conversations import find_conversation

M = TypeVar("M", bound=BaseModel)
S = TypeVar("S", bound=Struct)


_THEIRS = re.compile(
    r"/*(?P<named>(/[cu]/[^/]+){0,2})/+(v1/+)?(chat/+completions|messages|responses|models|embeddings)(/.*)?"
)
"""Pattern of paths that show a wrong base URL: the providers' paths without `/v1`, or with repeated slashes."""

LONGEST_BODY = 200_000
"""Maximum bytes of a body that is no chat request. The longest such bodies contain a summary, and are shorter."""
STATUSES = ", ".join(get_args(Status))
"""All values of `context_status`, for the schema."""


class OfFormat(Struct):
    """Body of a route that reads a request of any format."""

    format: Annotated[str, Meta(extra_json_schema={"enum": list(FORMAT_NAMES)})] = FORMAT_NAMES[0]


def request_body(members: type[Struct], *, required: bool = False) -> dict[str, Any]:
    """Return the OpenAPI schema of a body that the route parses itself."""
    schema = schema_components([members])[1][members.__name__]
    shown = {name: schema[name] for name in ("type", "properties", "required")}
    return {"requestBody": {"content": {"application/json": {"schema": shown}}, "required": required}}


def is_https(request: Request) -> bool:
    """True if the connection uses TLS, or `x-forwarded-proto` is `https`. If the settings name trusted proxies, the
    header counts only from these proxies. Otherwise it counts from any client: a false header harms only its sender."""
    scope = request.scope
    if value_of(scope["headers"], b"x-forwarded-proto") != "https":
        return bool(scope["scheme"] == "https")
    trusted, peer = _services(request).authenticator.trusted_proxies, peer_of(scope)
    return not trusted or not peer or is_trusted(peer, trusted)


def base_of(request: Request) -> str:
    """Return scheme, host and port at which the client reached Steno."""
    host = value_of(request.scope["headers"], b"host") or ""
    return f"{'https' if is_https(request) else 'http'}://{host}"


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


TheServices = Annotated[Services, Depends(_services)]


async def _tenant(request: Request, services: TheServices) -> str:
    scope = request.scope
    return services.authenticator.identify(scope["headers"], peer_of(scope), scope["query_string"]).tenant


Tenant = Annotated[str, Depends(_tenant)]


def _conversation_id(
    conversation_id: Annotated[str, Path(description="Percent-encoded UTF-8: a slash is %2F.")],
) -> str:
    return name_in_path("conversation_id", conversation_id.encode("latin-1"))


ConversationId = Annotated[str, Depends(_conversation_id)]
"""Conversation id in the path, decoded here because the router does not decode paths."""


async def _body(request: Request, services: TheServices, tenant: Tenant) -> AsyncIterator[bytes]:
    limits, headers = services.limits, request.scope["headers"]
    with services.in_flight.counted() as count:
        at_most = limits.largest_body
        body = await read_body(request.receive, headers, at_most, limits.receive_seconds, count)
        plain = await plain_body(body, headers, at_most, count, services.work, tenant)
        if plain is None:
            raise UnsupportedMediaType("The body is not encoded as its content-encoding says: gzip or zstd.")
        yield plain


Body = Annotated[bytes, Depends(_body)]
"""Decompressed body, within the limits of a chat request. Steno reads it only after it has identified the tenant."""


def decoded(body: bytes, members: type[S], send: str) -> S:
    """Decode a short JSON body. Raises `InvalidRequest`. `send`: sentence in the error that says what to send."""
    first = members.__struct_fields__[0]
    if len(body) > LONGEST_BODY:
        raise InvalidRequest(f"The body has {len(body)} bytes, and may have {LONGEST_BODY}. {send}", first)
    try:
        return decode(body, type=members)
    except DecodeError as error:
        named = re.search(r"\$\.(\w+)", str(error))
        raise InvalidRequest(f"{error}. {send}", named[1] if named else first) from None


async def format_of(services: Services, tenant: str, body: bytes) -> WireFormat:
    """Return the format in the body's member `format`, or the default format. Raises `InvalidRequest`."""
    given = None
    if b'"format"' in body:
        with suppress(Unreadable):  # The later parsing of the body raises the error.
            given = await services.work.do(tenant, lambda: RawObject(body).value("format"))
    if given is None:
        return services.format
    if not isinstance(given, str) or given not in BY_NAME:
        raise InvalidRequest(f"format must be one of {', '.join(BY_NAME)}; it is {given!r:.100}.", "format")
    return BY_NAME[given]


@contextmanager
def readable(format_: WireFormat) -> Iterator[None]:
    """Turn `Unreadable` into `InvalidRequest`, because Steno's own routes cannot forward an unreadable body."""
    try:
        yield
    except Unreadable as error:
        why = str(error).rstrip(".")
        name = format_.name.replace("_", " ")
        raise InvalidRequest(f"The body is no {name} request that Steno can read: {why}.") from error


async def known(services: Services, tenant: str, conversation_id: str) -> StoredConversation:
    """Return a stored conversation of the tenant. Raises `ConversationNotFound`."""
    conversation = await services.store.rest(find_conversation, tenant, conversation_id)
    if conversation is None:
        raise ConversationNotFound(conversation_id)
    return conversation


def made_of(out: type[M], source: object, /, **others: Any) -> M:
    """Build an `out`. Take its fields from `others`, or else from the attributes of `source` with the same names."""
    same = {name: getattr(source, name) for name in out.model_fields if name not in others and hasattr(source, name)}
    return out.model_validate({**same, **others})


def steno_error(error: StenoError | StoreUnavailable | UnknownCursor | RequestValidationError) -> StenoError:
    """Return the error that the client gets."""
    match error:
        case StoreUnavailable():
            return StorageUnavailable(error.reason)
        case UnknownCursor():
            return InvalidRequest(str(error), "after")
        case RequestValidationError():
            first = error.errors()[0]
            return InvalidRequest(f"{first['loc'][-1]}: {first['msg']}.", str(first["loc"][-1]))
    return error


def add_error_handlers(app: FastAPI) -> None:
    async def refuse(request: Request, error: Any) -> Response:
        shown = _no_route(app, request) if isinstance(error, HTTPException) else steno_error(error)
        request.scope[REQUEST].failed(shown)
        headers = {name.decode(): value.decode() for name, value in shown.headers}
        return Response(shown.envelope, shown.status, headers)

    for kind in (StenoError, StoreUnavailable, UnknownCursor, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)


def _no_route(app: FastAPI, request: Request) -> StenoError:
    path, method = request.scope["path"][:LONGEST_PATH], request.method
    if allowed := methods_of(app, request.scope["path"]):
        return MethodNotAllowed(f"{path} has no {method}; it has {', '.join(allowed)}.", allowed)
    if (theirs := _THEIRS.fullmatch(path)) is not None:
        base = base_of(request) + theirs["named"]
        advice = f"Set the base URL of Anthropic's clients to {base}, of others to {base}/v1."
        return UnknownPath(f"Steno has no {path}. {advice}")
    if LISTENER in request.scope:  # Do not name the schema: it also describes the other listener's paths.
        return UnknownPath(f"Steno has no {path} here.")
    return UnknownPath(f"Steno has no {path}; see /openapi.json for what it has.")


def methods_of(app: FastAPI, path: str) -> list[str]:
    """Return the allowed methods of a path; an empty list for an unknown path."""
    found = {"GET"} if path == app.openapi_url else set[str]()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path):
            found |= {method.upper() for method in operations}
    return sorted(found | {"HEAD"} if "GET" in found else found)

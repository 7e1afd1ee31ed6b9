"""Parts that the routes under `/context` share: whose request it is, its body and format, pages of a list."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from fastapi import Depends, Path, Query, Request
from msgspec import DecodeError, Meta, Struct
from msgspec.json import decode, schema_components
from pydantic import BaseModel

from app.compaction.fallback import Status
from app.errors import (
    ConversationNotFound,
    InvalidRequest,
    UnsupportedMediaType,
)
from app.formats.format import WireFormat
from app.formats.paths import BY_NAME, FORMAT_NAMES
from app.formats.raw_json import RawObject, Unreadable
from app.http.asgi import peer_of, read_body
from app.http.credentials import is_trusted
from app.http.headers import value_of
from app.proxy.conversation_ids import name_in_path
from app.proxy.request import plain_body
from app.proxy.services import Services
from app.store import Page, Paging, StoredConversation
from app.store.conversations import find_conversation

T = TypeVar("T")
K = TypeVar("K", str, int)
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
S = TypeVar("S", bound=Struct)

Limit = Annotated[int, Query(ge=1, le=100, description="Most entries of the page.")]
Order = Annotated[Literal["asc", "desc"], Query(description="Oldest first, or newest first.")]
After = Annotated[str | None, Query(description="The `last_id` of the page before.")]


def _in_order(usual: Literal["asc", "desc"]) -> Any:
    async def paging(limit: Limit = 20, after: After = None, order: Order = usual) -> Paging:
        return Paging(limit, after, order)

    return Depends(paging)


OldestFirst = Annotated[Paging, _in_order("asc")]
"""Page that a request wants of a list, the oldest entries first if it does not say otherwise."""
NewestFirst = Annotated[Paging, _in_order("desc")]

STATUSES = ", ".join(get_args(Status))
"""Every `context_status`, for the schema."""


class OfFormat(Struct):
    """Body of a route that reads a request of any format."""

    format: Annotated[str, Meta(extra_json_schema={"enum": list(FORMAT_NAMES)})] = FORMAT_NAMES[0]


PARTS_OF_BODIES: dict[str, Any] = {}
"""Schemas that those of bodies refer to, by name."""


def request_body(members: type[Struct], *, required: bool = False) -> dict[str, Any]:
    """Schema of a body that the route reads itself."""
    _, parts = schema_components([members], ref_template="#/components/schemas/{name}")
    schema = parts.pop(members.__name__)
    PARTS_OF_BODIES.update(parts)
    shown = {name: schema[name] for name in ("type", "properties", "required")}
    return {"requestBody": {"content": {"application/json": {"schema": shown}}, "required": required}}


def is_https(request: Request) -> bool:
    """Whether the client speaks TLS, be it with a proxy before Steno: one that is listed, where any is. Else who lies
    here harms only himself."""
    scope = request.scope
    if value_of(scope["headers"], b"x-forwarded-proto") != "https":
        return bool(scope["scheme"] == "https")
    trusted, peer = _services(request).authenticator.trusted_proxies, peer_of(scope)
    return not trusted or not peer or is_trusted(peer, trusted)


def base_of(request: Request) -> str:
    """Scheme, host and port, as the client reached them."""
    host = value_of(request.scope["headers"], b"host") or ""
    return f"{'https' if is_https(request) else 'http'}://{host}"


class Listing(BaseModel, Generic[T]):
    """A page of a list; `last_id` as `after` gives the next one."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


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
"""Conversation id of the path, which comes undecoded from the router."""


async def _body(request: Request, services: TheServices, tenant: Tenant) -> AsyncIterator[bytes]:
    limits, headers = services.limits, request.scope["headers"]
    with services.in_flight.counted() as count:
        at_most = limits.largest_body
        body = await read_body(request.receive, headers, at_most, limits.receive_seconds, count)
        plain = await plain_body(body, headers, at_most, count, services.work, tenant)
        if plain is None:
            raise UnsupportedMediaType("The body is not encoded as its content-encoding says: gzip, deflate or zstd.")
        yield plain


Body = Annotated[bytes, Depends(_body)]
"""Decoded body, within the same limits as a chat request's. It is read once the tenant is known."""


def decoded(body: bytes, members: type[S], longest: int, send: str) -> S:
    """Members of a body of at most so many bytes. Raises `InvalidRequest`, which says what to `send`."""
    first = members.__struct_fields__[0]
    if len(body) > longest:
        raise InvalidRequest(f"The body has {len(body)} bytes, and may have {longest}. {send}", first)
    try:
        return decode(body, type=members)
    except DecodeError as error:
        named = re.search(r"\$\.(\w+)", str(error))
        raise InvalidRequest(f"{error}. {send}", named[1] if named else first) from None


async def format_of(services: Services, tenant: str, body: bytes) -> WireFormat:
    """The format of a request that comes to a route of our own, as its member `format` says. Raises
    `InvalidRequest`."""
    if b'"format"' not in body:
        return services.format
    given = await services.work.do(tenant, lambda: _member(body, "format"))
    if given is None:
        return services.format
    if not isinstance(given, str) or given not in BY_NAME:
        raise InvalidRequest(f"format must be one of {', '.join(BY_NAME)}; it is {given!r:.100}.", "format")
    return BY_NAME[given]


def _member(body: bytes, name: str) -> object:
    """Value of a member; None if the body cannot be read: reading the whole body raises the error."""
    try:
        return RawObject(body).value(name)
    except Unreadable:
        return None


@contextmanager
def readable(format_: WireFormat) -> Iterator[None]:
    """Turn `Unreadable` into `InvalidRequest`: what the proxy forwards unread is of no use to a route of our own."""
    try:
        yield
    except Unreadable as error:
        why = str(error).rstrip(".")
        name = format_.name.replace("_", " ")
        raise InvalidRequest(f"The body is no {name} request that Steno can read: {why}.") from error


async def known(services: Services, tenant: str, conversation_id: str) -> StoredConversation:
    """Stored conversation of the tenant. Raises `ConversationNotFound`."""
    conversation = await services.store.rest(find_conversation, tenant, conversation_id)
    if conversation is None:
        raise no_conversation(conversation_id)
    return conversation


def no_conversation(conversation_id: str) -> ConversationNotFound:
    return ConversationNotFound(f"There is no conversation {conversation_id!r}.")


def listing(page: Page[T], shown: Callable[[T], R]) -> Listing[R]:
    """Page of a list, with each entry as it is shown."""
    return Listing(
        data=[shown(entry) for entry in page.data],
        first_id=page.first_id,
        last_id=page.last_id,
        has_more=page.has_more,
    )


def page_of(entries: Mapping[K, T], paging: Paging, after: K | None, name: Callable[[K], str] = str) -> Page[T]:
    """Page of entries in the order of their keys, behind the key `after`. `name`: id of an entry by its key."""
    rising = paging.order == "asc"
    keys: list[Any] = sorted(entries, reverse=not rising)
    if after is not None:
        keys = [key for key in keys if (key > after if rising else key < after)]
    ids = [name(key) for key in keys[: paging.limit]]
    data = [entries[key] for key in keys[: paging.limit]]
    return Page(data, ids[0] if ids else None, ids[-1] if ids else None, len(keys) > paging.limit)


def made_of(out: type[M], source: object, /, **others: Any) -> M:
    """An object of an answer: the members that the source has by the same name, and the others."""
    same = {name: getattr(source, name) for name in out.model_fields if name not in others and hasattr(source, name)}
    return out.model_validate({**same, **others})

"""What the routes under `/context` share: whose request it is, pages of a list, summaries as they are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Depends, Path, Query, Request
from pydantic import BaseModel, Field

from app.core.view.chunks import SummaryChunk
from app.errors import ConversationNotFound, InvalidRequest
from app.proxy.asgi import peer_of, read_body
from app.proxy.naming import name_in_path
from app.proxy.services import Services
from app.store import Page, StoredConversation
from app.wire.members import Unreadable

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]

CHAT_BODY: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
"""How a route that reads its body itself says so in the schema."""


class Listing(BaseModel, Generic[T]):
    """A page of a list; `last_id` as `after` gives the next one."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class SummaryOut(BaseModel):
    id: str
    object: Literal["summary"] = "summary"
    conversation_id: str
    text: str
    summarized_through_turn: int
    first_index: int = Field(description="First message it stands for, counted after the instructions, from 0.")
    last_index: int = Field(description="Last message it stands for, inclusive.")
    carried: list[int] = Field(description="Messages of that range that stay verbatim after the summary.")
    level: int = Field(description="0: made from messages; more: a fold of summaries.")
    children: list[str] = Field(description="Summaries a fold stands for.")
    version: int
    token_count: int
    model: str
    prompt_version: str
    created_at: datetime | None


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


TheServices = Annotated[Services, Depends(_services)]


def _tenant(request: Request, services: TheServices) -> str:
    scope = request.scope
    return services.tenants.tenant(scope["headers"], peer_of(scope), scope["query_string"])


Tenant = Annotated[str, Depends(_tenant)]


def _conversation_id(
    conversation_id: Annotated[str, Path(description="Percent-encoded UTF-8: a slash is %2F.")],
) -> str:
    return name_in_path("conversation_id", conversation_id.encode("latin-1"))


ConversationId = Annotated[str, Depends(_conversation_id)]
"""The path comes undecoded from the gate."""


async def _body(request: Request, services: TheServices) -> AsyncIterator[bytes]:
    limits, headers = services.limits, request.scope["headers"]
    with services.in_flight.counted() as count:
        yield await read_body(request.receive, headers, limits.body_bytes, limits.receive_seconds, count)


Body = Annotated[bytes, Depends(_body)]
"""Within the same limits as a chat request's. Comes after whose it is: nobody else's is read."""


@contextmanager
def readable() -> Iterator[None]:
    """What the proxy forwards unread, for the provider to judge, is of no use to a route of our own."""
    try:
        yield
    except Unreadable as error:
        why = str(error).rstrip(".")
        raise InvalidRequest(f"The body is no chat completions request that Steno can read: {why}.") from error


async def known(services: Services, tenant: str, conversation_id: str) -> StoredConversation:
    """Raises `ConversationNotFound`."""
    conversation = await services.store.conversation(tenant, conversation_id)
    if conversation is None:
        raise no_conversation(conversation_id)
    return conversation


def no_conversation(conversation_id: str) -> ConversationNotFound:
    return ConversationNotFound(f"There is no conversation {conversation_id!r}.")


def listing(page: Page[T], shown: Callable[[T], R]) -> Listing[R]:
    return Listing(
        data=[shown(entry) for entry in page.data],
        first_id=page.first_id,
        last_id=page.last_id,
        has_more=page.has_more,
    )


def summary_out(chunk: SummaryChunk) -> SummaryOut:
    return SummaryOut(
        id=chunk.id,
        conversation_id=chunk.conversation_id,
        text=chunk.text,
        summarized_through_turn=chunk.through_turn,
        first_index=chunk.first_index,
        last_index=chunk.last_index,
        carried=[chunk.first_index + offset for offset in chunk.carried],
        level=chunk.level,
        children=list(chunk.children),
        version=chunk.version,
        token_count=chunk.tokens,
        model=chunk.model,
        prompt_version=chunk.prompt_version,
        created_at=chunk.created_at,
    )

"""One conversation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from app.inspector.visits import NoSuchPage, PageRoute, TheVisit
from app.proxy.naming import name_in_path
from app.store import StoredConversation

router = APIRouter(route_class=PageRoute, include_in_schema=False)


async def _conversation(visit: TheVisit, conversation_id: Annotated[str, Path()]) -> StoredConversation:
    """The path comes undecoded from the gate."""
    name = name_in_path("conversation_id", conversation_id.encode("latin-1"))
    conversation = await visit.services.store.conversation(visit.tenant, name)
    if conversation is None:
        raise NoSuchPage
    return conversation


TheConversation = Annotated[StoredConversation, Depends(_conversation)]
"""Of the tenant whose data are shown; anybody else's is not there."""


@router.get("/ui/conversations/{conversation_id}")
async def show_conversation(visit: TheVisit, conversation: TheConversation) -> Response:
    return visit.page("conversation.html", conversation=conversation)

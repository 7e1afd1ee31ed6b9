"""`/ui/conversations`: the list, searched, filtered and sorted."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from app.inspector.visits import PageRoute, TheVisit

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/ui/conversations")
async def list_conversations(visit: TheVisit) -> Response:
    page = await visit.services.store.conversations(visit.tenant, limit=50, after=None, order="desc")
    return visit.page("conversations.html", page=page)

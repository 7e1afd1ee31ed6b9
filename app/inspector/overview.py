"""`/ui`: what Steno did and saved."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from app.inspector.visits import PageRoute, TheVisit

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/ui")
async def show_overview(visit: TheVisit) -> Response:
    return visit.page("overview.html")

"""`/`: what to paste into a client, and whether Steno works. A stranger sees no more of it than `/readyz` says."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.inspector.visits import PageRoute, TheInspector

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def show_landing(request: Request, inspector: TheInspector) -> Response:
    return inspector.pages.page("landing_outside.html", {"request": request})

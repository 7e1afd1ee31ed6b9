"""The routers of all pages, of static files, and of unknown paths under `/ui`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from app.inspector import conversation, overview, reference, setup, tenants
from app.inspector.visits import PageRoute, TheInspector, no_such_page, redirected

_SUBJECTS = (setup, reference, overview, conversation, tenants)

_rest = APIRouter(route_class=PageRoute, include_in_schema=False)


@_rest.get("/ui/static/{name}")
async def read_file(request: Request, inspector: TheInspector, name: str) -> Response:
    try:
        return await inspector.pages.files.get_response(name, request.scope)
    except HTTPException as error:
        raise no_such_page() from error


@_rest.get("/ui/")
async def lead_to_overview() -> Response:
    return redirected("/ui")


@_rest.get("/ui/{rest:path}")
async def refuse_unknown(rest: str) -> Response:  # noqa: ARG001 - FastAPI's way to name any path
    raise no_such_page()


INSPECTOR_ROUTERS = (*(subject.router for subject in _SUBJECTS), _rest)
"""Routers of the inspector; the order matters, because the last one accepts all paths under `/ui`."""

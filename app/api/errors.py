"""Handlers that answer errors in OpenAI's format: errors of routes and validation, unknown paths and methods."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from app.api.dependencies import base_of
from app.api.schema import methods_of
from app.errors import InvalidRequest, MethodNotAllowed, StenoError, StorageUnavailable, UnknownPath
from app.proxy.exchange import LONGEST_PATH, REQUEST
from app.proxy.router import LISTENER
from app.store import StoreUnavailable, UnknownCursor

_THEIRS = re.compile(
    r"/*(?P<named>(/[cu]/[^/]+){0,2})/+(v1/+)?(?P<api>chat/+completions|messages|responses|models|embeddings)(/.*)?"
)
"""Pattern of provider paths without `/v1`, or with repeated slashes."""


def add_error_handlers(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, StenoError):
            shown = error
        elif isinstance(error, StoreUnavailable):
            shown = StorageUnavailable(f"The database cannot be used: {error.reason}.")
        elif isinstance(error, UnknownCursor):
            shown = InvalidRequest(str(error), "after")
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            shown = InvalidRequest(f"{first['loc'][-1]}: {first['msg']}.", str(first["loc"][-1]))
        else:
            shown = _no_route(app, request)
        request.scope[REQUEST].failed(shown)
        headers = {name.decode(): value.decode() for name, value in shown.headers}
        return Response(shown.envelope, shown.status, headers)

    for kind in (StenoError, StoreUnavailable, UnknownCursor, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)


def _no_route(app: FastAPI, request: Request) -> StenoError:
    path, method = request.scope["path"][:LONGEST_PATH], request.method
    if allowed := methods_of(app, request.scope):
        return MethodNotAllowed(f"{path} has no {method}; it has {', '.join(allowed)}.", allowed)
    if (theirs := _THEIRS.fullmatch(path)) is not None:
        return UnknownPath(f"Steno has no {path}. {_base_urls(base_of(request), theirs['named'], theirs['api'])}")
    if LISTENER in request.scope:  # Do not name the schema: it also describes the other listener's paths.
        return UnknownPath(f"Steno has no {path} here.")
    return UnknownPath(f"Steno has no {path}; see /openapi.json for what it has.")


def _base_urls(base: str, named: str, api: str) -> str:
    """Return advice about the base URL for a client that requested a provider path without `/v1`."""
    told = f"Set the client's base URL to {base}{named}/v1."
    if api == "messages":
        told += f" A client that adds /v1 itself, as Anthropic's do, needs {base}{named}, without /v1."
    return told

"""Signing in and out, and the tenant that an operator looks at."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from app.errors import InvalidCredentials, MissingCredentials, OriginNotAllowed
from app.http.asgi import peer_of
from app.http.headers import value_of
from app.inspector.session import Session
from app.inspector.visits import (
    Inspector,
    NoSuchPage,
    PageRoute,
    TheForm,
    TheInspector,
    TheVisit,
    client_of,
    forget,
    read_form,
    redirected,
    remember,
    too_many_guesses,
)
from app.proxy.router import LISTENER
from app.store.conversations import is_tenant, read_tenants

log = structlog.get_logger("steno.inspector")

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/ui/sign-in")
async def show_sign_in(inspector: TheInspector) -> Response:
    return inspector.pages.page("sign_in.html", {"problem": None})


@router.post("/ui/sign-in")
async def sign_in(request: Request, inspector: TheInspector) -> Response:
    """Sign in with a key, which becomes its tenant at once and is not kept, or with the operator's password."""
    _refuse_other_pages(request)
    scope, address, guesses = request.scope, client_of(request), inspector.guesses
    if seconds := guesses.wait(address):
        guesses.count(address)
        return too_many_guesses(inspector, seconds)
    given = (await read_form(request)).get("key", "").strip()
    if scope.get(LISTENER) != "callers" and inspector.sessions.accepts(given):
        log.info("operator signed in", address=address)
        return _signed_in(request, inspector, inspector.sessions.opened("", operator=True))
    try:
        if not given:
            raise MissingCredentials("Paste a key or the operator's password first.")
        header = (b"authorization", b"Bearer " + given.encode())
        identity = inspector.services.authenticator.identify([*scope["headers"], header], peer_of(scope))
    except (MissingCredentials, InvalidCredentials) as error:
        status = 400 if isinstance(error, MissingCredentials) else error.status
        return inspector.pages.page("sign_in.html", {"problem": error.message}, status)
    if not await inspector.services.store.rest(is_tenant, identity.tenant):
        guesses.count(address)
        problem = "No conversation was sent with this key, and it is not the operator's password."
        return inspector.pages.page("sign_in.html", {"problem": problem}, 401)
    return _signed_in(request, inspector, inspector.sessions.opened(identity.tenant))


def _signed_in(request: Request, inspector: Inspector, session: Session) -> Response:
    answer = redirected("/ui")
    remember(request, answer, inspector.sessions.seal(session))
    return answer


@router.post("/ui/sign-out")
async def sign_out(request: Request, _: TheForm) -> Response:
    """Sign out: the browser forgets the cookie."""
    answer = redirected("/ui/sign-in")
    forget(request, answer)
    return answer


@router.get("/ui/tenants")
async def list_tenants(visit: TheVisit) -> Response:
    """Page of the tenants that an operator may look at."""
    if not visit.session.operator:
        raise NoSuchPage
    return visit.page("tenants.html", tenants=await visit.services.store.rest(read_tenants))


@router.post("/ui/tenants")
async def choose_tenant(request: Request, visit: TheVisit, form: TheForm) -> Response:
    if not visit.session.operator:
        raise NoSuchPage
    chosen = form.get("tenant", "")
    if chosen not in {each.id for each in await visit.services.store.rest(read_tenants)}:
        raise NoSuchPage
    answer = redirected("/ui")
    remember(request, answer, visit.inspector.sessions.seal(replace(visit.session, tenant=chosen)))
    return answer


def _refuse_other_pages(request: Request) -> None:
    """Refuse a form of another page: without a session there is nothing to bind it to, and nobody else should sign
    anybody in. Raises `OriginNotAllowed`."""
    headers = request.scope["headers"]
    origin, host = value_of(headers, b"origin"), value_of(headers, b"host")
    if origin is not None and origin.partition("://")[2] != host:
        raise OriginNotAllowed("Sign in on Steno's own page.", "origin")

"""Pages to sign in and out, and the operator's list of all tenants."""

from __future__ import annotations

from math import ceil

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from app.errors import InvalidCredentials, MissingCredentials, OriginNotAllowed
from app.http import credentials
from app.http.asgi import peer_of
from app.http.headers import value_of
from app.inspector.pages import counted
from app.inspector.visits import (
    Inspector,
    PageRoute,
    Session,
    TheForm,
    TheInspector,
    TheVisit,
    no_such_page,
    read_form,
    redirected,
    remember,
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
    """Sign in with an API key (the session keeps its tenant, not the key) or with the operator's password."""
    scope, guesses, authenticator = request.scope, inspector.guesses, inspector.services.authenticator
    origin, host = value_of(scope["headers"], b"origin"), value_of(scope["headers"], b"host")
    # Before sign-in there is no form token, so the origin check stops other sites from signing a visitor in.
    if origin is not None and origin.partition("://")[2] != host:
        raise OriginNotAllowed("Sign in on Steno's own page.", "origin")
    address = credentials.client_of(scope["headers"], peer_of(scope), authenticator.trusted_proxies)
    if seconds := guesses.wait(address):
        guesses.count(address)
        wait = counted(ceil(seconds / 60), "minute")
        problem = f"Too many keys and passwords from your address were wrong. Wait {wait}."
        answer = inspector.pages.page("sign_in.html", {"problem": problem}, 429)
        answer.headers["retry-after"] = str(ceil(seconds))
        return answer
    given = (await read_form(request)).get("key", "").strip()
    if scope.get(LISTENER) != "callers" and inspector.sessions.accepts(given):
        log.info("operator signed in", address=address)
        return _signed_in(request, inspector, inspector.sessions.opened("", operator=True))
    try:
        if not given:
            raise MissingCredentials("Paste a key or the operator's password first.")
        header = (b"authorization", b"Bearer " + given.encode())
        identity = authenticator.identify([*scope["headers"], header], peer_of(scope))
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
    answer = redirected("/ui/sign-in")
    remember(request, answer, None)
    return answer


@router.get("/ui/tenants")
async def list_tenants(visit: TheVisit) -> Response:
    """Show all tenants to the operator."""
    if not visit.session.operator:
        raise no_such_page()
    return visit.page("tenants.html", tenants=await visit.services.store.rest(read_tenants))


@router.post("/ui/tenants")
async def choose_tenant(request: Request, visit: TheVisit, form: TheForm) -> Response:
    chosen = form.get("tenant", "")
    if not visit.session.operator or not await visit.services.store.rest(is_tenant, chosen):
        raise no_such_page()
    return _signed_in(request, visit.inspector, replace(visit.session, tenant=chosen))

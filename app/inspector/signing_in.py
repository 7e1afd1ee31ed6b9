"""Signing in and out, and the tenant that an operator looks at."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from app.edge.asgi import peer_of
from app.edge.relayed import value_of
from app.errors import InvalidCredentials, MissingCredentials, OriginNotAllowed
from app.inspector.links import LINK_SECONDS
from app.inspector.session import LASTS_SECONDS, OPERATORS
from app.inspector.visits import (
    NoSuchPage,
    PageRoute,
    TheForm,
    TheInspector,
    TheVisit,
    UnrecordedForm,
    client_of,
    forget,
    read_form,
    redirected,
    remember,
    too_many_guesses,
)
from app.store.revocations import revoke
from app.store.tenant_rows import is_tenant, read_tenants

log = structlog.get_logger("steno.inspector")

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/ui/sign-in")
async def show_sign_in(inspector: TheInspector) -> Response:
    return inspector.pages.page("sign_in.html", {"problem": None})


@router.post("/ui/sign-in")
async def sign_in(request: Request, inspector: TheInspector) -> Response:
    """Sign in with a key, which becomes its tenant at once and is kept nowhere."""
    _refuse_other_pages(request)
    address, guesses = client_of(request), inspector.guesses
    if seconds := guesses.wait(address):
        guesses.count(address, "key")
        return too_many_guesses(inspector, seconds)
    key = (await read_form(request)).get("key", "").strip()
    try:
        if not key:
            raise MissingCredentials("Paste a key first.")
        header = (b"authorization", b"Bearer " + key.encode())
        known = await inspector.services.tenants.known([header], peer_of(request.scope))
    except (MissingCredentials, InvalidCredentials) as error:
        status = 400 if isinstance(error, MissingCredentials) else error.status
        return inspector.pages.page("sign_in.html", {"problem": error.message}, status)
    if not await inspector.services.store.rest(is_tenant, known.tenant):
        guesses.count(address, "key")
    answer = redirected("/ui")
    session = inspector.sessions.opened(known.tenant, key=known.key, until=known.expires)
    remember(request, answer, inspector.sessions.seal(session))
    return answer


@router.post("/ui/sign-out")
async def sign_out(request: Request, visit: TheVisit, _: TheForm) -> Response:
    """Sign out at every replica, so that a copy of the cookie is worth nothing."""
    if visit.session.is_signed_in:
        await visit.services.store.change_at_once(revoke, visit.session.id, LASTS_SECONDS)
    answer = redirected("/ui/sign-in")
    forget(request, answer)
    return answer


@router.post("/ui/revoke-links")
async def revoke_links(request: Request, visit: TheVisit, _: TheForm) -> Response:
    """Revoke all operators' links so far, and the sessions that they opened, this one among them."""
    if not visit.session.operator:
        raise NoSuchPage
    await visit.services.store.change_at_once(revoke, OPERATORS, LINK_SECONDS)
    log.warning("operators' links revoked", address=client_of(request))
    answer = redirected("/ui/sign-in")
    forget(request, answer)
    return answer


@router.get("/ui/tenants")
async def list_tenants(visit: TheVisit) -> Response:
    """Page of the tenants that an operator may look at."""
    if not visit.session.operator:
        raise NoSuchPage
    return visit.page("tenants.html", tenants=await visit.services.store.rest_of_all(read_tenants))


@router.post("/ui/tenants")
async def choose_tenant(request: Request, visit: TheVisit, form: UnrecordedForm) -> Response:
    if not visit.session.operator:
        raise NoSuchPage
    chosen = form.get("tenant", "")
    if chosen not in {each.id for each in await visit.services.store.rest_of_all(read_tenants)}:
        raise NoSuchPage
    await visit.record("view_tenant", chosen)
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
